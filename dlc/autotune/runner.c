/* Runs two artefacts of one kernel in turn, on a machine that has no Python.
 *
 * usage: runner CANDIDATE ANCHOR ROUNDS
 * Reads from standard input: i64 inputs, i64 outputs, i64 bytes of each, the data of the inputs,
 * the first content of the outputs. Writes: i64 overrun, the outputs of the candidate's first run,
 * i64 rounds, the candidate's times, the anchor's times (i64, ns). Parallel loops run in order. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "dlc/abi.h"

enum { FILL = 0x5B, MAX_BUFFERS = 64 };

static void give_up(const char *why) {
  fprintf(stderr, "%s\n", why);
  exit(3);
}

static int inside; /* of the body of a parallel loop */

static void parallel(void *self, dlc_body body, void *closure, int64_t extent) {
  (void)self;
  inside = 1;
  body(closure, 0, extent);
  inside = 0;
}

static void *scratch(void *self, int64_t bytes) {
  static void *memory[2];
  static int64_t capacity[2];
  (void)self;
  if (bytes > capacity[inside]) {
    capacity[inside] = (bytes + DLC_ALIGNMENT - 1) / DLC_ALIGNMENT * DLC_ALIGNMENT;
    free(memory[inside]);
    memory[inside] = aligned_alloc(DLC_ALIGNMENT, (size_t)capacity[inside]);
  }
  return memory[inside];
}

static void fail(void *self, const char *message) {
  (void)self;
  give_up(message);
}

/* A buffer that ends where a page begins that cannot be touched. */
static unsigned char *guarded(int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t pages = (bytes + 64 + page - 1) / page;
  unsigned char *base = mmap(NULL, (size_t)((pages + 1) * page), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) give_up("out of memory");
  mprotect(base + pages * page, (size_t)page, PROT_NONE);
  memset(base, FILL, (size_t)(pages * page - bytes));
  return base + pages * page - bytes;
}

static void read_all(void *into, int64_t bytes) {
  if (fread(into, 1, (size_t)bytes, stdin) != (size_t)bytes) give_up("the input is cut short");
}

static const dlc_model *open_model(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) give_up(dlerror());
  dlc_model_query_fn query = (dlc_model_query_fn)dlsym(library, DLC_MODEL_SYMBOL);
  const dlc_model *model = query == NULL ? NULL : query(DLC_ABI_VERSION);
  if (model == NULL) give_up("built for another ABI");
  return model;
}

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int main(int argc, char **argv) {
  if (argc != 4) give_up("usage: runner CANDIDATE ANCHOR ROUNDS");
  const dlc_model *models[2] = {open_model(argv[1]), open_model(argv[2])};
  const int64_t rounds = atoll(argv[3]);
  dlc_host host = {0};
  host.parallel = parallel;
  host.scratch = scratch;
  host.fail = fail;
  int64_t head[2], bytes[MAX_BUFFERS], sizes[1] = {0};
  void *buffers[MAX_BUFFERS];
  read_all(head, sizeof head);
  const int64_t count = head[0] + head[1];
  if (count > MAX_BUFFERS) give_up("too many buffers");
  read_all(bytes, count * 8);
  for (int64_t i = 0; i < count; ++i) read_all(buffers[i] = guarded(bytes[i]), bytes[i]);
  const void *const *inputs = (const void *const *)buffers;
  void *const *outputs = buffers + head[0];
  void *arena = aligned_alloc(DLC_ALIGNMENT, DLC_ALIGNMENT);
  if (models[0]->run(&host, sizes, inputs, outputs, arena)) give_up("the run failed");
  int64_t overrun = 0;
  for (int64_t i = head[0]; i < count; ++i) {
    for (int k = 1; k <= 64; ++k) overrun |= ((unsigned char *)buffers[i])[-k] != FILL;
  }
  fwrite(&overrun, 8, 1, stdout);
  for (int64_t i = head[0]; i < count; ++i) fwrite(buffers[i], 1, (size_t)bytes[i], stdout);
  fwrite(&rounds, 8, 1, stdout);
  int64_t *times = calloc((size_t)rounds * 2 + 1, 8);
  for (int64_t round = 0; round < rounds; ++round) {
    for (int which = 0; which < 2; ++which) {
      const int64_t began = now_ns();
      models[which]->run(&host, sizes, inputs, outputs, arena);
      times[which * rounds + round] = now_ns() - began;
    }
  }
  fwrite(times, 8, (size_t)rounds * 2, stdout);
  return 0;
}

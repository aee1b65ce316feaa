/* Runs two artefacts of one kernel or model in turn, on a machine that has no Python.
 *
 * usage: runner CANDIDATE ANCHOR ROUNDS BUDGET_MS
 * Reads from standard input: i64 inputs, i64 outputs, i64 sizes, the size variables, i64 bytes of
 * each input and output, the data of the inputs, the first content of the outputs. Where the bytes
 * of outputs are -1 - rank, they have no content, and are allocated as the model plans them.
 * Writes: i64 overrun, the outputs of the candidate's first run that have content, i64 rounds, for
 * each the times of the candidate and the anchor (i64, ns). Three rounds are made even where they take
 * longer than the budget; 0 is none. Parallel loops run in order. */
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

enum { FILL = 0x5B, MAX_BUFFERS = 1024, MAX_DIMS = 16 * MAX_BUFFERS, LEAST_ROUNDS = 3 };

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

static void *allocate(void *self, int64_t bytes) {
  (void)self;
  const int64_t padded = (bytes + DLC_ALIGNMENT - 1) / DLC_ALIGNMENT * DLC_ALIGNMENT;
  void *memory = aligned_alloc(DLC_ALIGNMENT, (size_t)(padded > 0 ? padded : DLC_ALIGNMENT));
  if (memory == NULL) give_up("out of memory");
  return memory;
}

static void release(void *self, void *memory) {
  (void)self;
  free(memory);
}

static void *output(void *self, uint32_t index, const int64_t *dims) {
  (void)self, (void)index, (void)dims;
  give_up("only the data tells the size of an output");
  return NULL;
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

/* The arena that a model needs; `dims` gets the dimensions of its outputs. */
static int64_t plan(const dlc_model *model, const dlc_host *host, const int64_t *sizes,
                    int64_t *dims) {
  int64_t arena = 0;
  if (model->plan(host, sizes, dims, &arena)) give_up("the sizes do not fit");
  return arena;
}

/* Room for an output of some dimensions and elements of up to 8 bytes. */
static void *planned(int64_t rank, const int64_t *dims) {
  int64_t bytes = 8;
  for (int64_t i = 0; i < rank; ++i) {
    if (dims[i] < 0) give_up("only the data tells the size of an output");
    bytes *= dims[i];
  }
  return allocate(NULL, bytes);
}

int main(int argc, char **argv) {
  if (argc != 5) give_up("usage: runner CANDIDATE ANCHOR ROUNDS BUDGET_MS");
  const dlc_model *models[2] = {open_model(argv[1]), open_model(argv[2])};
  int64_t rounds = atoll(argv[3]);
  const int64_t budget_ns = atoll(argv[4]) * 1000000;
  dlc_host host = {.parallel = parallel, .scratch = scratch, .fail = fail};
  host.allocate = allocate;
  host.release = release;
  host.output = output;
  static int64_t head[3], sizes[MAX_BUFFERS], bytes[MAX_BUFFERS], dims[MAX_DIMS];
  static void *buffers[MAX_BUFFERS];
  read_all(head, sizeof head);
  const int64_t count = head[0] + head[1];
  if (count > MAX_BUFFERS || head[2] > MAX_BUFFERS) give_up("too many buffers");
  read_all(sizes, head[2] * 8);
  read_all(bytes, count * 8);
  int64_t arena_bytes = plan(models[1], &host, sizes, dims);
  const int64_t other = plan(models[0], &host, sizes, dims);
  const int64_t *next = dims;
  for (int64_t i = 0; i < count; ++i) {
    if (bytes[i] >= 0) {
      read_all(buffers[i] = guarded(bytes[i]), bytes[i]);
    } else {
      buffers[i] = planned(-1 - bytes[i], next);
      next += -1 - bytes[i];
    }
  }
  const void *const *inputs = (const void *const *)buffers;
  void *const *outputs = buffers + head[0];
  void *arena = allocate(NULL, arena_bytes > other ? arena_bytes : other);
  if (models[0]->run(&host, sizes, inputs, outputs, arena)) give_up("the run failed");
  int64_t overrun = 0;
  for (int64_t i = head[0]; i < count; ++i) {
    for (int k = 1; bytes[i] >= 0 && k <= 64; ++k) {
      overrun |= ((unsigned char *)buffers[i])[-k] != FILL;
    }
  }
  fwrite(&overrun, 8, 1, stdout);
  for (int64_t i = head[0]; i < count; ++i) {
    if (bytes[i] >= 0) fwrite(buffers[i], 1, (size_t)bytes[i], stdout);
  }
  if (rounds > 0) models[1]->run(&host, sizes, inputs, outputs, arena);
  int64_t *times = calloc((size_t)rounds * 2 + 1, 8);
  const int64_t first = now_ns();
  for (int64_t round = 0; round < rounds; ++round) {
    for (int turn = 0; turn < 2; ++turn) {
      const int which = (int)(round + turn) % 2;
      const int64_t began = now_ns();
      models[which]->run(&host, sizes, inputs, outputs, arena);
      times[round * 2 + which] = now_ns() - began;
    }
    if (round + 1 >= LEAST_ROUNDS && now_ns() - first > budget_ns) rounds = round + 1;
  }
  fwrite(&rounds, 8, 1, stdout);
  fwrite(times, 8, (size_t)rounds * 2, stdout);
  return 0;
}

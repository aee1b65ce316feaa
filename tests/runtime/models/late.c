/* A model by hand: y[i] = i for i < count[0]. What it allocates on the way must be aligned, apart
 * from each other, and found again after it was given up. */
#include "dlc/abi.h"

static int32_t plan(const dlc_host *host, const int64_t *sizes, int64_t *dims, int64_t *arena) {
  (void)host;
  (void)sizes;
  dims[0] = -1;
  *arena = 0;
  return 0;
}

static int32_t fail(const dlc_host *host, const char *message) {
  host->fail(host->self, message);
  return 1;
}

static int32_t run(const dlc_host *host, const int64_t *sizes, const void *const *inputs,
                   void *const *outputs, void *arena) {
  (void)sizes;
  (void)arena;
  const int64_t count = *(const int64_t *)inputs[0];
  if (outputs[0] != 0) return fail(host, "there is memory for an output of unknown shape");
  char *first = host->allocate(host->self, count * 4);
  char *second = host->allocate(host->self, count * 4);
  if (first == 0 || second == 0) return fail(host, "no memory");
  if ((intptr_t)first % DLC_ALIGNMENT || (intptr_t)second % DLC_ALIGNMENT) {
    return fail(host, "memory is not aligned");
  }
  if (first < second + count * 4 && second < first + count * 4) return fail(host, "memory is shared");
  host->release(host->self, 0);
  host->release(host->self, first);
  if (host->allocate(host->self, count * 4) != first) return fail(host, "memory is not found again");
  float *y = host->output(host->self, 0, &count);
  if (y == 0) return 1;
  for (int64_t i = 0; i < count; ++i) y[i] = (float)i;
  return 0;
}

static const dlc_model model = {DLC_ABI_VERSION, 1, 1, 0, plan, run};

__attribute__((visibility("default"))) const dlc_model *dlc_model_query(uint32_t abi_version) {
  return abi_version == DLC_ABI_VERSION ? &model : 0;
}

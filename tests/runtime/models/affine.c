/* A model by hand: y[batch, 3] = FACTOR x[batch, 3] + b[3], total[1] = sum of y.
 *
 * Parallel over the batch. Refuses a NaN in b, and a batch of 13. Where b[0] is negative, total is
 * the number of denormals that survive a halving: 1, or 0 if the thread flushes them. */
#include <math.h>
#include <stddef.h>

#include "dlc/abi.h"

#ifndef FACTOR
#define FACTOR 2
#endif

struct call {
  const dlc_host *host;
  const float *x, *b;
  float *y;
};

static int32_t plan(const dlc_host *host, const int64_t *sizes, int64_t *dims, int64_t *arena) {
  if (sizes[0] == 13) {
    host->fail(host->self, "a batch of 13 is bad luck");
    return 1;
  }
  dims[0] = sizes[0];
  dims[1] = 3;
  dims[2] = 1;
  *arena = 4 * sizes[0];
  return 0;
}

static void rows(void *closure, int64_t begin, int64_t end) {
  const struct call *call = closure;
  float *own = call->host->scratch(call->host->self, 256);
  if (own == NULL) {
    call->host->fail(call->host->self, "no scratch memory");
    return;
  }
  own[63] = -1; /* not the memory that `run` holds around the loop */
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t j = 0; j < 3; ++j) call->y[i * 3 + j] = FACTOR * call->x[i * 3 + j] + call->b[j];
  }
}

static int32_t run(const dlc_host *host, const int64_t *sizes, const void *const *inputs,
                   void *const *outputs, void *arena) {
  struct call call = {host, inputs[0], inputs[1], outputs[0]};
  float *sums = arena; /* a write to all of the arena, for the sanitizers */
  float *scratch = host->scratch(host->self, 256);
  float *total = outputs[1];
  for (int64_t j = 0; j < 3; ++j) {
    if (isnan(call.b[j])) {
      host->fail(host->self, "b is not a number");
      host->fail(host->self, "a second message, which nobody reads");
      return 1;
    }
  }
  if (scratch == NULL) {
    host->fail(host->self, "no scratch memory");
    return 1;
  }
  scratch[63] = 1;
  host->parallel(host->self, rows, &call, sizes[0]);
  if (scratch[63] != 1) {
    host->fail(host->self, "the loop took the scratch memory around it");
    return 1;
  }
  if (call.b[0] < 0) {
    volatile float smallest_normal = 0x1p-126f;
    *total = smallest_normal / 2 > 0;
    return 0;
  }
  *total = 0;
  for (int64_t i = 0; i < sizes[0]; ++i) {
    scratch[0] = call.y[i * 3] + call.y[i * 3 + 1] + call.y[i * 3 + 2];
    sums[i] = scratch[0];
    *total += sums[i];
  }
  return 0;
}

static const dlc_model model = {DLC_ABI_VERSION, 2, 2, 1, plan, run};

__attribute__((visibility("default"))) const dlc_model *dlc_model_query(uint32_t abi_version) {
  return abi_version == DLC_ABI_VERSION ? &model : NULL;
}

/* A model by hand: scalar [] and vector [n] come out as they went in. -DBYTES: of one element. */
#include <string.h>

#include "dlc/abi.h"

static int32_t plan(const dlc_host *host, const int64_t *sizes, int64_t *dims, int64_t *arena) {
  (void)host;
  dims[0] = sizes[0];
  *arena = 0;
  return 0;
}

static int32_t run(const dlc_host *host, const int64_t *sizes, const void *const *inputs,
                   void *const *outputs, void *arena) {
  (void)host;
  (void)arena;
  memcpy(outputs[0], inputs[0], BYTES);
  memcpy(outputs[1], inputs[1], (size_t)sizes[0] * BYTES);
  return 0;
}

static const dlc_model model = {DLC_ABI_VERSION, 2, 2, 1, plan, run};

__attribute__((visibility("default"))) const dlc_model *dlc_model_query(uint32_t abi_version) {
  return abi_version == DLC_ABI_VERSION ? &model : 0;
}

/* The C interface is plain C99, and the headers need nothing but themselves. */
#include "dlc/abi.h"
#include "dlc/runtime.h"

int main(void) {
  dlc_module *module = NULL;
  if (dlc_module_load("/no/such/model.so", DLC_VERIFY_FULL, &module) != DLC_NOT_FOUND) return 1;
  if (module != NULL || dlc_last_error()[0] == '\0') return 2;
  if (dlc_num_threads() < 1) return 3;
  dlc_module_free(NULL);
  dlc_context_free(NULL);
  return 0;
}

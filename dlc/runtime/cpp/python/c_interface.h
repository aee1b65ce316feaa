// The C interface as C++ likes it: a failure is thrown, and a handle is freed with its owner.
#ifndef DLC_PYTHON_C_INTERFACE_H
#define DLC_PYTHON_C_INTERFACE_H

#include <memory>
#include <string>

#include "dlc/runtime.h"

namespace dlc_python {

struct StatusError {
  dlc_status status;
  std::string message;
};

inline void check(dlc_status status) {
  if (status != DLC_OK) throw StatusError{status, dlc_last_error()};
}

struct FreeModule {
  void operator()(dlc_module *module) const noexcept { dlc_module_free(module); }
};
struct FreeContext {
  void operator()(dlc_context *context) const noexcept { dlc_context_free(context); }
};
using ModuleHandle = std::unique_ptr<dlc_module, FreeModule>;
using ContextHandle = std::unique_ptr<dlc_context, FreeContext>;

struct Module {
  ModuleHandle handle;
};

}  // namespace dlc_python

#endif

#include "failure.h"

#include <cstdio>

namespace dlc_runtime {
namespace {
thread_local char last_error[1024] = "";
}  // namespace

void set_last_error(const char *message) noexcept {
  std::snprintf(last_error, sizeof last_error, "%s", message);
}

void fail(dlc_status status, std::string message) { throw Failure{status, std::move(message)}; }

}  // namespace dlc_runtime

const char *dlc_last_error(void) { return dlc_runtime::last_error; }

const char *dlc_runtime_version(void) { return DLC_RUNTIME_VERSION; }

const char *dlc_status_name(dlc_status status) {
  switch (status) {
    case DLC_OK:
      return "DLC_OK";
    case DLC_INVALID_ARGUMENT:
      return "DLC_INVALID_ARGUMENT";
    case DLC_NOT_FOUND:
      return "DLC_NOT_FOUND";
    case DLC_BAD_ARTIFACT:
      return "DLC_BAD_ARTIFACT";
    case DLC_INCOMPATIBLE:
      return "DLC_INCOMPATIBLE";
    case DLC_BAD_TENSOR:
      return "DLC_BAD_TENSOR";
    case DLC_RUN_FAILED:
      return "DLC_RUN_FAILED";
    case DLC_NO_MEMORY:
      return "DLC_NO_MEMORY";
    case DLC_INTERNAL:
      return "DLC_INTERNAL";
  }
  return "unknown status";
}

// How functions of the runtime fail: inside by throwing `Failure`, outside by a status.
#ifndef DLC_SRC_FAILURE_H
#define DLC_SRC_FAILURE_H

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "dlc/runtime.h"

namespace dlc_runtime {

struct Failure {
  dlc_status status;
  std::string message;
};

[[noreturn]] void fail(dlc_status status, std::string message);

// Keeps the text in a fixed buffer of the thread: reporting an error must not itself fail.
void set_last_error(const char *message) noexcept;

// Runs `body`, turning what it throws into a status and a message.
template <typename Body>
dlc_status guarded(Body body) noexcept {
  try {
    body();
    return DLC_OK;
  } catch (const Failure &failure) {
    set_last_error(failure.message.c_str());
    return failure.status;
  } catch (const std::bad_alloc &) {
    set_last_error("out of memory");
    return DLC_NO_MEMORY;
  } catch (const std::exception &error) {
    set_last_error(error.what());
    return DLC_INTERNAL;
  } catch (...) {
    set_last_error("an exception of unknown type");
    return DLC_INTERNAL;
  }
}

}  // namespace dlc_runtime
#endif

#include "host.h"

#include <cstdio>

#include "memory.h"

namespace dlc_runtime {

Host::Host(bool expects_loops)
    : interface_{this, &Host::parallel, &Host::scratch, &Host::fail}, pool_(thread_pool()) {
  message_[0] = '\0';
  if (expects_loops && pool_.size() > 1) {
    pool_.begin_run();
    in_run_ = true;
  }
}

Host::~Host() {
  if (in_run_) pool_.end_run();
}

std::string Host::failure() const {
  const bool written = state_.load(std::memory_order_acquire) == kFailed;
  return written ? message_ : "the model failed without saying why";
}

namespace {

// Whether this thread is inside of a loop that it runs itself: the function around the loop may
// still use its scratch memory, so the body gets another piece.
thread_local bool inside_loop = false;

}  // namespace

void Host::parallel(void *self, dlc_body body, void *closure, std::int64_t extent) noexcept {
  auto &host = *static_cast<Host *>(self);
  host.used_loops_ = true;
  inside_loop = true;
  host.pool_.parallel(body, closure, extent);
  inside_loop = false;
}

void *Host::scratch(void *, std::int64_t bytes) noexcept {
  thread_local AlignedMemory memory[2];
  try {
    return memory[inside_loop ? 1 : 0].at_least(bytes > 0 ? bytes : 1);
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}

void Host::fail(void *self, const char *message) noexcept {
  auto &host = *static_cast<Host *>(self);
  int expected = kFine;
  if (!host.state_.compare_exchange_strong(expected, kWriting)) return;
  std::snprintf(host.message_, sizeof host.message_, "%s", message != nullptr ? message : "");
  host.state_.store(kFailed, std::memory_order_release);
}

}  // namespace dlc_runtime

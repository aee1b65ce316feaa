// What the runtime offers a model during one call: threads, scratch memory, a way to fail.
#ifndef DLC_SRC_HOST_H
#define DLC_SRC_HOST_H

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "dlc/abi.h"
#include "dlc/runtime.h"
#include "thread_pool.h"

namespace dlc_runtime {

class Host {
 public:
  // `expects_loops`: wake the workers now, so that they are ready at the first loop.
  // `steps`: where a model that reports its steps is to note them.
  explicit Host(bool expects_loops, std::vector<dlc_step> *steps = nullptr);
  ~Host();
  Host(const Host &) = delete;
  Host &operator=(const Host &) = delete;

  const dlc_host *interface() const noexcept { return &interface_.host; }
  bool used_loops() const noexcept { return used_loops_; }
  // The message given to `fail`, or a general one.
  std::string failure() const;
  bool failed() const noexcept { return state_.load(std::memory_order_acquire) != kFine; }

 private:
  static void parallel(void *self, dlc_body body, void *closure, std::int64_t extent) noexcept;
  static void *scratch(void *self, std::int64_t bytes) noexcept;
  static void fail(void *self, const char *message) noexcept;
  static void step(void *self, std::int64_t step, std::int64_t operations,
                   std::int64_t bytes) noexcept;

  enum State : int { kFine, kWriting, kFailed };

  dlc_profile_host interface_;
  ThreadPool &pool_;
  bool in_run_ = false;
  bool used_loops_ = false;
  std::vector<dlc_step> *steps_;
  std::atomic<int> state_{kFine};
  char message_[512];
};

}  // namespace dlc_runtime
#endif

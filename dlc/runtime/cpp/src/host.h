// What the runtime offers a model during one call: threads, scratch memory, a way to fail.
#ifndef DLC_SRC_HOST_H
#define DLC_SRC_HOST_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dlc/abi.h"
#include "dlc/runtime.h"
#include "memory.h"
#include "texts.h"
#include "thread_pool.h"

namespace dlc_runtime {

// Memory for tensors whose sizes depend on the data. It is kept from run to run.
class Blocks {
 public:
  // Throws bad_alloc.
  void *take(std::int64_t bytes);
  void give_back(const void *memory) noexcept;
  void give_back_all() noexcept;

 private:
  struct Block {
    AlignedMemory memory;
    void *start = nullptr;
    std::int64_t bytes = 0;
    bool taken = false;
  };
  std::vector<Block> blocks_;
};

// Where the outputs go whose shapes the model tells during the run.
class OutputPlaces {
 public:
  virtual ~OutputPlaces() = default;
  // Throws Failure.
  virtual void *place(std::size_t index, const std::int64_t *dims) = 0;
};

class Host {
 public:
  // `expects_loops`: wake the workers now, so that they are ready at the first loop.
  // `steps`: where a model that reports its steps is to note them.
  // `texts`: those of the run, for a model that computes with texts.
  // A model that only plans needs neither `blocks` nor `places`.
  explicit Host(bool expects_loops, Blocks *blocks = nullptr, OutputPlaces *places = nullptr,
                std::vector<dlc_step> *steps = nullptr, Texts *texts = nullptr);
  ~Host();
  Host(const Host &) = delete;
  Host &operator=(const Host &) = delete;

  const dlc_host *interface() const noexcept { return &interface_.profile.host; }
  bool used_loops() const noexcept { return used_loops_; }
  // The message given to `fail`, or a general one.
  std::string failure() const;
  // What a run lacked that returned `status`.
  dlc_status cause(std::int32_t status) const noexcept;
  bool failed() const noexcept { return state_.load(std::memory_order_acquire) != kFine; }

 private:
  static void parallel(void *self, dlc_body body, void *closure, std::int64_t extent) noexcept;
  static void *scratch(void *self, std::int64_t bytes) noexcept;
  static void fail(void *self, const char *message) noexcept;
  static void step(void *self, std::int64_t step, std::int64_t operations,
                   std::int64_t bytes) noexcept;
  static void *allocate(void *self, std::int64_t bytes) noexcept;
  static void release(void *self, void *memory) noexcept;
  static void *output(void *self, std::uint32_t index, const std::int64_t *dims) noexcept;
  static std::int32_t text(void *self, std::uint32_t function, const std::int64_t *sizes,
                           void *const *buffers) noexcept;

  enum State : int { kFine, kWriting, kFailed };

  dlc_text_host interface_;
  ThreadPool &pool_;
  Blocks *blocks_;
  OutputPlaces *places_;
  bool in_run_ = false;
  bool used_loops_ = false;
  std::vector<dlc_step> *steps_;
  Texts *texts_;
  std::atomic<int> state_{kFine};
  std::atomic<bool> kept_last_{false};  // the message of the last call of `fail`
  char message_[512];
};

}  // namespace dlc_runtime
#endif

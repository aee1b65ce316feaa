// One pool of threads for the whole process, made for loops of a few microseconds.
//
// Each thread owns a contiguous part of a loop, cut into a few chunks, and claims its chunks by
// one atomic addition on a line of its own; whoever has finished steals chunks of the others. So
// the same rows stay in the same core's cache from loop to loop, and a thread that is descheduled
// or asleep delays the loop by one chunk at most. The caller is thread 0 and needs nobody: with
// every worker asleep it does all the work.
#ifndef DLC_SRC_THREAD_POOL_H
#define DLC_SRC_THREAD_POOL_H

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "dlc/abi.h"

namespace dlc_runtime {

constexpr unsigned kMaxThreads = 1024;

class ThreadPool {
 public:
  explicit ThreadPool(unsigned threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;

  unsigned size() const noexcept { return size_.load(std::memory_order_relaxed); }
  // Changes the number of threads, once the loop in progress is done.
  void resize(unsigned threads);

  // Runs `body` over [0, extent). While another thread has the pool, runs it all on this one.
  void parallel(dlc_body body, void *closure, std::int64_t extent) noexcept;

  // Between these two the workers are about to be needed: they are awake, and spin for longer.
  void begin_run() noexcept;
  void end_run() noexcept;

 private:
  // What is left of one thread's part: number of chunks << 32 | next chunk. A line of its own,
  // two lines wide because processors fetch lines in pairs.
  struct alignas(128) Part {
    std::atomic<std::uint64_t> state{0};
  };
  // The loop in progress. Read only by who has claimed one of its chunks: until that chunk is
  // reported done, the caller is still waiting and nothing here changes.
  struct alignas(128) Loop {
    std::atomic<dlc_body> body{nullptr};
    std::atomic<void *> closure{nullptr};
    std::atomic<std::int64_t> extent{0};
  };

  void start_workers() noexcept;
  void stop_workers() noexcept;
  void worker(unsigned index) noexcept;
  void sleep_until_signal(unsigned index) noexcept;
  void wake_sleepers() noexcept;
  std::uint64_t run_chunks(unsigned part) noexcept;
  void help(unsigned first_part) noexcept;
  void run_loop(dlc_body body, void *closure, std::int64_t extent) noexcept;

  Loop loop_;
  alignas(128) std::atomic<std::uint64_t> chunks_done_{0};
  alignas(128) std::atomic<bool> busy_{false};  // held by the thread whose loop is in progress
  alignas(128) std::atomic<std::uint32_t> runs_{0};  // runs in progress
  std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<std::uint32_t> signal_{0};  // the futex sleepers wait on
  std::atomic<bool> stopping_{false};
  std::atomic<unsigned> size_;
  unsigned started_ = 0;  // parts with a thread, the caller's included; 0 before the first loop
  std::unique_ptr<Part[]> parts_;
  std::vector<std::thread> threads_;
};

// The pool of this process. After fork, a child has a new one.
ThreadPool &thread_pool();

}  // namespace dlc_runtime
#endif

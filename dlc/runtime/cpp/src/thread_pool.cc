#include "thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "cpu_count.h"
#include "dlc/runtime.h"
#include "failure.h"
#include "float_environment.h"

namespace dlc_runtime {
namespace {

using Clock = std::chrono::steady_clock;

// Chunks per thread. More of them balance better and cost more: about 10 ns each, measured with
// two threads on an AMD EPYC of family 26, where a whole empty loop takes 0.1 to 0.3 us.
constexpr std::int64_t kChunks = 4;
// How long an idle worker spins before it sleeps; waking it takes 60 to 70 us, measured on a Xeon.
constexpr auto kSpin = std::chrono::microseconds(100);
// The same while a run is in progress: its next parallel loop is near.
constexpr auto kSpinInRun = std::chrono::milliseconds(2);
// Spins of the caller, about 100 us, before it gives its core away to a worker that may need it.
constexpr unsigned kSpinsBeforeYield = 4096;

void pause_cpu() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  __asm__ volatile("isb" ::: "memory");  // `yield` returns at once on most cores
#endif
}

long futex(std::atomic<std::uint32_t> &word, int operation, std::uint32_t value) noexcept {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t *>(&word), operation, value, nullptr,
                 nullptr, 0);
}

bool has_chunks(std::uint64_t state) noexcept { return (state & 0xFFFFFFFFU) < state >> 32U; }

struct Range {
  std::int64_t begin, end;
};

// Part `part` of `parts` nearly equal ones.
Range part_of(std::int64_t extent, std::int64_t part, std::int64_t parts) noexcept {
  const std::int64_t each = extent / parts;
  const std::int64_t longer = extent % parts;  // the first ones have one iteration more
  const std::int64_t begin = part * each + std::min(part, longer);
  return {begin, begin + each + (part < longer ? 1 : 0)};
}

std::int64_t chunks_of(Range part) noexcept { return std::min(part.end - part.begin, kChunks); }

Range chunk_of(Range part, std::int64_t chunk) noexcept {
  const Range range = part_of(part.end - part.begin, chunk, chunks_of(part));
  return {part.begin + range.begin, part.begin + range.end};
}

}  // namespace

ThreadPool::ThreadPool(unsigned threads) : size_(threads) {}

ThreadPool::~ThreadPool() { stop_workers(); }

void ThreadPool::resize(unsigned threads) {
  while (busy_.exchange(true, std::memory_order_acquire)) sched_yield();
  stop_workers();
  size_.store(threads, std::memory_order_relaxed);
  busy_.store(false, std::memory_order_release);
}

// Called with `busy_` held. A thread that cannot be had, for want of memory or at a limit on
// threads, is done without.
void ThreadPool::start_workers() noexcept {
  const unsigned wanted = size_.load(std::memory_order_relaxed);
  // Signals belong to the host's threads: workers inherit a mask that blocks them. Faults are
  // the thread's own, and end the process past its handlers where they are blocked.
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (const int fault : {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP}) {
    sigdelset(&blocked, fault);
  }
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  try {
    parts_.reset(new Part[wanted]);
    threads_.reserve(wanted - 1);
    for (unsigned i = 1; i < wanted; ++i) threads_.emplace_back([this, i] { worker(i); });
  } catch (const std::exception &) {
    // Those that run already are enough.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  started_ = static_cast<unsigned>(threads_.size()) + 1;
  size_.store(started_, std::memory_order_relaxed);
}

// Called with `busy_` held, or by the last user.
void ThreadPool::stop_workers() noexcept {
  stopping_.store(true);
  wake_sleepers();
  for (std::thread &thread : threads_) thread.join();
  stopping_.store(false);
  threads_.clear();
  started_ = 0;
}

void ThreadPool::begin_run() noexcept {
  runs_.fetch_add(1, std::memory_order_relaxed);
  if (sleepers_.load(std::memory_order_relaxed) > 0) wake_sleepers();
}

void ThreadPool::end_run() noexcept { runs_.fetch_sub(1, std::memory_order_relaxed); }

void ThreadPool::wake_sleepers() noexcept {
  signal_.fetch_add(1);
  futex(signal_, FUTEX_WAKE_PRIVATE, kMaxThreads);
}

void ThreadPool::parallel(dlc_body body, void *closure, std::int64_t extent) noexcept {
  if (extent <= 0) return;
  const bool alone = extent == 1 || size() == 1;
  if (alone || busy_.exchange(true, std::memory_order_acquire)) {
    body(closure, 0, extent);
    return;
  }
  if (started_ == 0) start_workers();
  if (started_ == 1) {
    body(closure, 0, extent);
  } else {
    run_loop(body, closure, extent);
  }
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::run_loop(dlc_body body, void *closure, std::int64_t extent) noexcept {
  loop_.body.store(body, std::memory_order_relaxed);
  loop_.closure.store(closure, std::memory_order_relaxed);
  loop_.extent.store(extent, std::memory_order_relaxed);
  chunks_done_.store(0, std::memory_order_relaxed);
  std::uint64_t total = 0;
  // From the last to the first: the workers start while the caller is still writing.
  for (unsigned i = started_; i-- > 0;) {
    const auto chunks = static_cast<std::uint64_t>(chunks_of(part_of(extent, i, started_)));
    total += chunks;
    parts_[i].state.store(chunks << 32U, std::memory_order_release);
  }
  if (sleepers_.load(std::memory_order_relaxed) > 0) wake_sleepers();
  help(0);
  for (unsigned spins = 0; chunks_done_.load(std::memory_order_acquire) != total; ++spins) {
    if (spins < kSpinsBeforeYield) {
      pause_cpu();
    } else {
      sched_yield();
    }
  }
}

// Runs chunks of all parts, from `first_part` on, until none is left. Each part is reported before
// the next is looked at: the caller must not wait for a thread that merely finds nothing to steal.
void ThreadPool::help(unsigned first_part) noexcept {
  unsigned part = first_part;
  for (unsigned i = 0; i < started_; ++i) {
    const std::uint64_t done = run_chunks(part);
    if (done > 0) chunks_done_.fetch_add(done, std::memory_order_release);
    part = part + 1 == started_ ? 0 : part + 1;
  }
}

std::uint64_t ThreadPool::run_chunks(unsigned part) noexcept {
  std::atomic<std::uint64_t> &state = parts_[part].state;
  std::uint64_t done = 0;
  while (has_chunks(state.load(std::memory_order_relaxed))) {
    // The load only saves additions; what counts is the state this addition returns.
    const std::uint64_t claimed = state.fetch_add(1, std::memory_order_acq_rel);
    if (!has_chunks(claimed)) break;
    const Range whole =
        part_of(loop_.extent.load(std::memory_order_relaxed), part, started_);
    const Range chunk = chunk_of(whole, static_cast<std::int64_t>(claimed & 0xFFFFFFFFU));
    loop_.body.load(std::memory_order_relaxed)(loop_.closure.load(std::memory_order_relaxed),
                                               chunk.begin, chunk.end);
    ++done;
  }
  return done;
}

void ThreadPool::worker(unsigned index) noexcept {
  pthread_setname_np(pthread_self(), "dlc-worker");
  set_default_float_environment();
  // started_ is written after this thread is; the first chunk of this part orders the two.
  const std::atomic<std::uint64_t> &state = parts_[index].state;
  unsigned spins = 0;
  Clock::time_point idle_since;
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (has_chunks(state.load(std::memory_order_acquire))) {
      help(index);
      spins = 0;
      continue;
    }
    pause_cpu();
    if (++spins % 64 != 0) continue;  // reading the clock at each spin would delay the work
    const Clock::time_point now = Clock::now();
    if (spins == 64) idle_since = now;
    const auto patience = runs_.load(std::memory_order_relaxed) > 0 ? Clock::duration(kSpinInRun)
                                                                    : Clock::duration(kSpin);
    if (now - idle_since < patience) continue;
    sleep_until_signal(index);
    spins = 0;
  }
}

// A signal missed here costs time, never the loop: others steal this part's chunks. Stopping is
// not missed, because `signal_` is read before `stopping_`.
void ThreadPool::sleep_until_signal(unsigned index) noexcept {
  sleepers_.fetch_add(1);
  const std::uint32_t seen = signal_.load();
  if (!stopping_.load() && !has_chunks(parts_[index].state.load())) {
    futex(signal_, FUTEX_WAIT_PRIVATE, seen);
  }
  sleepers_.fetch_sub(1);
}

namespace {

std::atomic<ThreadPool *> current_pool{nullptr};

// In a child of fork the pool's threads do not exist. The old pool is left as it is: its memory
// may be in any state. Nothing is locked, so nothing can be left locked.
void forget_pool() { current_pool.store(nullptr); }

std::atomic<unsigned> requested_threads{0};  // 0: automatic

unsigned threads_of_new_pool() {
  const unsigned requested = requested_threads.load();
  return requested > 0 ? requested : default_num_threads();
}

}  // namespace

ThreadPool &thread_pool() {
  ThreadPool *pool = current_pool.load(std::memory_order_acquire);
  if (pool != nullptr) return *pool;
  static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
  static_cast<void>(registered);
  auto fresh = std::make_unique<ThreadPool>(threads_of_new_pool());
  if (current_pool.compare_exchange_strong(pool, fresh.get())) {
    // Never destroyed: a run may be in progress while the process ends.
    return *fresh.release();
  }
  return *pool;
}

}  // namespace dlc_runtime

dlc_status dlc_set_num_threads(uint32_t count) {
  using namespace dlc_runtime;
  return guarded([&] {
    if (count > kMaxThreads) {
      fail(DLC_INVALID_ARGUMENT, "at most " + std::to_string(kMaxThreads) + " threads");
    }
    requested_threads.store(count);
    thread_pool().resize(threads_of_new_pool());
  });
}

uint32_t dlc_num_threads(void) { return dlc_runtime::thread_pool().size(); }

// Every iteration runs exactly once, whoever calls, whatever happens to the pool meanwhile.
#include "thread_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "check.h"
#include "dlc/runtime.h"

using dlc_runtime::thread_pool;
using dlc_runtime::ThreadPool;

namespace {

struct Counts {
  explicit Counts(std::int64_t extent) : of(static_cast<std::size_t>(extent)) {}
  std::vector<int> of;  // plain: an iteration run twice at once is a race the sanitizer sees
};

void count(void *closure, std::int64_t begin, std::int64_t end) {
  auto *counts = static_cast<Counts *>(closure);
  for (std::int64_t i = begin; i < end; ++i) ++counts->of[static_cast<std::size_t>(i)];
}

bool runs_each_once(ThreadPool &pool, std::int64_t extent) {
  Counts counts(extent);
  pool.parallel(count, &counts, extent);
  for (const int n : counts.of) {
    if (n != 1) return false;
  }
  return true;
}

void test_every_extent_and_size() {
  for (const unsigned threads : {1U, 2U, 3U, 5U, 8U}) {
    ThreadPool pool(threads);
    for (std::int64_t extent = 0; extent < 70; ++extent) CHECK(runs_each_once(pool, extent));
    CHECK(runs_each_once(pool, 100003));
  }
}

void test_loops_in_close_succession() {
  ThreadPool pool(4);
  bool all = true;
  for (int i = 0; i < 3000; ++i) all = runs_each_once(pool, i % 37) && all;
  CHECK(all);
}

// Whether a worker takes part, with chunks so slow that it has all the time it needs to wake up.
void note_thread(void *closure, std::int64_t begin, std::int64_t end) {
  auto *by = static_cast<std::vector<std::thread::id> *>(closure);
  for (std::int64_t i = begin; i < end; ++i) {
    (*by)[static_cast<std::size_t>(i)] = std::this_thread::get_id();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

bool shares_work(ThreadPool &pool) {
  std::vector<std::thread::id> by(64);
  pool.parallel(note_thread, &by, 64);
  for (const std::thread::id id : by) {
    if (id != std::this_thread::get_id()) return true;
  }
  return false;
}

void test_the_work_is_shared() {
  ThreadPool pool(2);
  CHECK(shares_work(pool));
}

void test_workers_that_sleep_are_woken() {
  ThreadPool pool(2);
  CHECK(shares_work(pool));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // they spin for far less
  CHECK(shares_work(pool));
  for (int i = 0; i < 30; ++i) {
    pool.begin_run();
    CHECK(runs_each_once(pool, 64));
    pool.end_run();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void test_many_callers_at_once() {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = 0; i < 300; ++i) {
        if (!runs_each_once(pool, 11 + (caller + i) % 90)) ++wrong;
      }
    });
  }
  for (int i = 0; i < 20; ++i) pool.resize(1 + static_cast<unsigned>(i) % 4);
  for (std::thread &caller : callers) caller.join();
  CHECK(wrong == 0);
}

void test_the_size_can_be_set() {
  CHECK(dlc_set_num_threads(3) == DLC_OK);
  CHECK(dlc_num_threads() == 3);
  CHECK(runs_each_once(thread_pool(), 50));
  CHECK(dlc_set_num_threads(2000) == DLC_INVALID_ARGUMENT);
  CHECK(dlc_num_threads() == 3);
  setenv("DLC_NUM_THREADS", "2", 1);
  CHECK(dlc_set_num_threads(0) == DLC_OK);
  CHECK(dlc_num_threads() == 2);
  setenv("DLC_NUM_THREADS", "many", 1);
  CHECK(dlc_set_num_threads(0) == DLC_OK);
  CHECK(dlc_num_threads() >= 1 && dlc_num_threads() <= std::thread::hardware_concurrency());
}

// A child of fork has none of the threads, and finds the pool as its parent left it: in use.
void fork_inside(void *closure, std::int64_t begin, std::int64_t end) {
  if (begin == 0) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // a deadlock ends the child, and the test sees it
      const bool fine = dlc_num_threads() == 3 && runs_each_once(thread_pool(), 5000) &&
                        shares_work(thread_pool()) && dlc_set_num_threads(2) == DLC_OK;
      _exit(fine ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    *static_cast<int *>(closure) = status;
  }
  static_cast<void>(end);
}

void test_a_forked_child_has_a_pool_of_its_own() {
  dlc_set_num_threads(3);
  CHECK(runs_each_once(thread_pool(), 100));
  int status = -1;
  thread_pool().parallel(fork_inside, &status, 12);
  CHECK(status == 0);
  CHECK(runs_each_once(thread_pool(), 100));
}

}  // namespace

// With any argument, the test of fork is left out: ThreadSanitizer does not support threads in a
// forked child.
int main(int argc, char **) {
  test_every_extent_and_size();
  test_loops_in_close_succession();
  test_workers_that_sleep_are_woken();
  test_the_work_is_shared();
  test_many_callers_at_once();
  test_the_size_can_be_set();
  if (argc == 1) test_a_forked_child_has_a_pool_of_its_own();
  return check::result();
}

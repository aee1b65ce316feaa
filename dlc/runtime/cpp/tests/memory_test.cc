// Every allocation of a load and a run fails once: each time there is a status, nothing leaks (the
// address sanitizer looks), and the next attempt works.
#include <cstdlib>
#include <new>
#include <string>

#include "check.h"
#include "dlc/runtime.h"
#include "memory.h"

namespace {

constexpr int kNever = -1;
thread_local int allocations_left = kNever;  // of the calling thread; the workers are not hit

bool may_allocate() {
  if (allocations_left == kNever) return true;
  if (allocations_left == 0) return false;  // and from now on every one fails
  --allocations_left;
  return true;
}

}  // namespace

void *operator new(std::size_t size) {
  void *memory = may_allocate() ? std::malloc(size) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }

// The runtime's arenas come from here: the program's own definition is the one that is linked.
extern "C" void *aligned_alloc(std::size_t alignment, std::size_t size) {
  void *memory = nullptr;
  if (!may_allocate() || posix_memalign(&memory, alignment, size) != 0) return nullptr;
  return memory;
}

namespace {

struct Attempt {
  dlc_status status;
  float total;
};

Attempt load_and_run(const char *path) {
  dlc_module *module = nullptr;
  dlc_context *context = nullptr;
  float x[60], b[] = {0, 0, 0};
  for (float &value : x) value = 1;
  std::int64_t x_shape[] = {20, 3}, b_shape[] = {3};
  const DLDataType f32 = {kDLFloat, 32, 1};
  const DLTensor in[] = {{x, {kDLCPU, 0}, 2, f32, x_shape, nullptr, 0},
                         {b, {kDLCPU, 0}, 1, f32, b_shape, nullptr, 0}};
  DLTensor out[2] = {};
  dlc_status status = dlc_module_load(path, DLC_VERIFY_FULL, &module);
  if (status == DLC_OK) status = dlc_context_create(module, &context);
  if (status == DLC_OK) status = dlc_run(context, in, out);
  const float total = status == DLC_OK ? *static_cast<float *>(out[1].data) : 0;
  dlc_context_free(context);
  dlc_module_free(module);
  return {status, total};
}

// The pool starts anew each time: where it cannot make its threads, the caller runs alone.
void test_each_allocation_fails_once(const char *path, unsigned threads) {
  int failed = 0;
  for (int allowed = 0; allowed < 1000; ++allowed) {
    dlc_set_num_threads(threads);
    allocations_left = allowed;
    const Attempt attempt = load_and_run(path);
    const bool reached = allocations_left == 0;
    allocations_left = kNever;
    if (attempt.status == DLC_OK) {
      CHECK(attempt.total == 120.0F);
      if (!reached) break;  // more were allowed than there are
    } else {
      ++failed;
      // The model reports scratch memory it does not get in words of its own.
      CHECK(attempt.status == DLC_NO_MEMORY || attempt.status == DLC_RUN_FAILED);
      CHECK(dlc_last_error()[0] != '\0');
    }
    CHECK(load_and_run(path).total == 120.0F);
  }
  CHECK(failed > 20);
}

// As the arena of a model that is given one token more in each run.
void test_what_grows_by_little_is_allocated_rarely() {
  dlc_runtime::AlignedMemory memory;
  memory.at_least(64000);
  CHECK(memory.capacity() == 64000);  // what never grows takes no more than it needs
  int allocated = 0;
  for (std::int64_t bytes = 64000; bytes < 128000; bytes += 64) {
    const std::int64_t before = memory.capacity();
    memory.at_least(bytes);
    CHECK(memory.capacity() >= bytes);
    if (memory.capacity() != before) ++allocated;
  }
  CHECK(allocated <= 8);
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  test_each_allocation_fails_once(argv[1], 1);
  test_each_allocation_fails_once(argv[1], 4);
  test_what_grows_by_little_is_allocated_rarely();
  return check::result();
}

#include "host.h"

#include <chrono>
#include <cstdio>

#include "failure.h"

namespace dlc_runtime {

void *Blocks::take(std::int64_t bytes) {
  Block *best = nullptr;  // the smallest free one that is large enough
  for (Block &block : blocks_) {
    if (block.taken || block.bytes < bytes) continue;
    if (best == nullptr || block.bytes < best->bytes) best = &block;
  }
  for (Block &block : blocks_) {  // else one that grows
    if (best == nullptr && !block.taken) best = &block;
  }
  if (best == nullptr) best = &blocks_.emplace_back();
  if (best->bytes < bytes || best->start == nullptr) {
    best->bytes = 0;
    best->start = nullptr;
    best->start = best->memory.at_least(bytes > 0 ? bytes : 1);
    best->bytes = bytes;
  }
  best->taken = true;
  return best->start;
}

void Blocks::give_back(const void *memory) noexcept {
  for (Block &block : blocks_) {
    if (block.taken && block.start == memory) block.taken = false;
  }
}

void Blocks::give_back_all() noexcept {
  for (Block &block : blocks_) block.taken = false;
}

Host::Host(bool expects_loops, Blocks *blocks, OutputPlaces *places, std::vector<dlc_step> *steps,
           Texts *texts)
    : interface_{{{this, &Host::parallel, &Host::scratch, &Host::fail, &Host::allocate,
                   &Host::release, &Host::output},
                  &Host::step},
                 &Host::text},
      pool_(thread_pool()),
      blocks_(blocks),
      places_(places),
      steps_(steps),
      texts_(texts) {
  message_[0] = '\0';
  if (expects_loops && pool_.size() > 1) {
    pool_.begin_run();
    in_run_ = true;
  }
}

Host::~Host() {
  if (in_run_) pool_.end_run();
  if (blocks_ != nullptr) blocks_->give_back_all();
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

dlc_status Host::cause(std::int32_t status) const noexcept {
  return status == DLC_RUN_NO_MEMORY && kept_last_ ? DLC_NO_MEMORY : DLC_RUN_FAILED;
}

void Host::fail(void *self, const char *message) noexcept {
  auto &host = *static_cast<Host *>(self);
  int expected = kFine;
  host.kept_last_ = host.state_.compare_exchange_strong(expected, kWriting);
  if (expected != kFine) return;
  std::snprintf(host.message_, sizeof host.message_, "%s", message != nullptr ? message : "");
  host.state_.store(kFailed, std::memory_order_release);
}

namespace {

std::int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

// Between two calls, `time_ns` of the last step is when it began.
void Host::step(void *self, std::int64_t step, std::int64_t operations,
                std::int64_t bytes) noexcept {
  auto &host = *static_cast<Host *>(self);
  if (host.steps_ == nullptr) return;
  const std::int64_t ended = now_ns();
  if (!host.steps_->empty()) host.steps_->back().time_ns = ended - host.steps_->back().time_ns;
  if (step < 0) return;
  try {
    host.steps_->push_back({step, 0, operations, bytes});
    host.steps_->back().time_ns = now_ns();
  } catch (const std::bad_alloc &) {
    host.steps_ = nullptr;
    fail(self, "no memory for the times of the steps");
  }
}

std::int32_t Host::text(void *self, std::uint32_t function, const std::int64_t *sizes,
                        void *const *buffers) noexcept {
  try {
    static_cast<Host *>(self)->texts_->call(function, sizes, buffers);
    return 0;
  } catch (const Failure &failure) {
    fail(self, failure.message.c_str());
  } catch (...) {
    fail(self, "there is no memory for a text");
  }
  return 1;
}

void *Host::allocate(void *self, std::int64_t bytes) noexcept {
  auto &host = *static_cast<Host *>(self);
  try {
    return host.blocks_ == nullptr ? nullptr : host.blocks_->take(bytes);
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}

void Host::release(void *self, void *memory) noexcept {
  static_cast<Host *>(self)->blocks_->give_back(memory);
}

void *Host::output(void *self, std::uint32_t index, const std::int64_t *dims) noexcept {
  auto &host = *static_cast<Host *>(self);
  try {
    return host.places_ == nullptr ? nullptr : host.places_->place(index, dims);
  } catch (const Failure &failure) {
    fail(self, failure.message.c_str());
  } catch (...) {
    // No memory: the model knows whose result it is, and says so.
  }
  return nullptr;
}

}  // namespace dlc_runtime

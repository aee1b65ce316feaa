#include <algorithm>
#include <utility>

#include "gpu.h"
#include "host.h"
#include "memory.h"

namespace dlc_runtime {

GpuMemory::~GpuMemory() {
  if (pointer_ != 0) driver_.release(pointer_);
}

CuResult GpuMemory::grow(std::int64_t bytes) {
  if (pointer_ != 0) driver_.release(std::exchange(pointer_, 0));
  bytes_ = 0;
  const CuResult result =
      driver_.allocate(&pointer_, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
  if (result == 0) bytes_ = bytes;
  return result;
}

CuDevicePointer GpuMemory::at_least(std::int64_t bytes) {
  if (!has(bytes)) check_cuda(driver_, grow(bytes), "get memory of the GPU");
  return pointer_;
}

bool GpuMemory::try_at_least(std::int64_t bytes) {
  if (has(bytes)) return true;
  const CuResult result = grow(bytes);
  if (result != kCuOutOfMemory) check_cuda(driver_, result, "get memory of the GPU");
  return result == 0;
}

PinnedMemory::~PinnedMemory() {
  if (memory_ != nullptr) driver_.release_pinned(memory_);
}

char *PinnedMemory::at_least(std::size_t bytes) {
  if (bytes > bytes_) {
    if (memory_ != nullptr) driver_.release_pinned(std::exchange(memory_, nullptr));
    bytes_ = 0;
    check_cuda(driver_, driver_.allocate_pinned(&memory_, bytes, 0), "get pinned memory");
    bytes_ = bytes;
  }
  return static_cast<char *>(memory_);
}

GpuReports::GpuReports(const GpuCode &code) : model_(code.checked()), memory_(code.driver()) {
  if (model_ == nullptr || model_->report_bytes <= 0) return;
  const auto bytes = static_cast<std::size_t>(model_->report_bytes);
  words_ = reinterpret_cast<std::uint64_t *>(memory_.at_least(bytes));
  count_ = bytes / sizeof(std::uint64_t);
  std::fill_n(words_, count_, std::uint64_t{0});
}

bool GpuReports::is_any() const noexcept {
  const volatile std::uint64_t *words = words_;  // the GPU may be writing
  for (std::size_t i = 0; i < count_; ++i) {
    if (words[i] != 0) return true;
  }
  return false;
}

std::string GpuReports::take() {
  const Host host(false);
  model_->explain(host.interface(), words_);
  std::fill_n(words_, count_, std::uint64_t{0});
  return host.failure();
}

void *GpuBlocks::take(std::int64_t bytes, CuStream stream) {
  Block *best = nullptr;  // the smallest free one that is large enough
  for (Block &block : blocks_) {
    if (block.taken || !block.memory->has(bytes)) continue;
    if (best == nullptr || block.memory->bytes() < best->memory->bytes()) best = &block;
  }
  if (best == nullptr) {
    blocks_.push_back({std::make_unique<GpuMemory>(driver_), false});
    if (!blocks_.back().memory->try_at_least(with_room(bytes))) {  // then what nobody has is given up
      check_cuda(driver_, driver_.stream_synchronize(stream), "run the model");
      const auto is_free = [](const Block &block) { return !block.taken; };
      blocks_.erase(std::remove_if(blocks_.begin(), blocks_.end(), is_free), blocks_.end());
      blocks_.push_back({std::make_unique<GpuMemory>(driver_), false});
      if (!blocks_.back().memory->try_at_least(bytes)) return nullptr;
    }
    best = &blocks_.back();
  }
  best->taken = true;
  return reinterpret_cast<void *>(static_cast<std::uintptr_t>(best->memory->pointer()));
}

void GpuBlocks::give_back(const void *memory) noexcept {
  const auto pointer = static_cast<CuDevicePointer>(reinterpret_cast<std::uintptr_t>(memory));
  for (Block &block : blocks_) {
    if (block.taken && block.memory->pointer() == pointer) block.taken = false;
  }
}

void GpuBlocks::give_back_all() noexcept {
  for (Block &block : blocks_) block.taken = false;
}

}  // namespace dlc_runtime

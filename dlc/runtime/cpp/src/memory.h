// Aligned memory that grows and never copies: arenas, scratch and outputs.
#ifndef DLC_SRC_MEMORY_H
#define DLC_SRC_MEMORY_H

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "dlc/abi.h"

namespace dlc_runtime {

// A quarter of a power of two at a time: what grows in a loop is allocated rarely. Pages that
// nobody writes to take no memory.
inline std::int64_t with_room(std::int64_t bytes) {
  std::int64_t unit = 256;
  while (unit < bytes / 8) unit *= 2;
  return bytes > INT64_MAX - unit ? bytes : (bytes + unit - 1) / unit * unit;
}

class AlignedMemory {
 public:
  // At least `bytes` bytes of unknown content; what was there before is gone. What has grown once
  // gets room to grow on. Throws bad_alloc.
  void *at_least(std::int64_t bytes) {
    if (bytes <= capacity_) return memory_.get();
    if (capacity_ > 0) bytes = with_room(bytes);
    constexpr std::int64_t kHugePage = 2 * 1024 * 1024;
    const std::int64_t unit = bytes >= 2 * kHugePage ? kHugePage : DLC_ALIGNMENT;
    if (bytes > INT64_MAX - unit) throw std::bad_alloc();
    const std::int64_t rounded = (bytes + unit - 1) / unit * unit;
    memory_.reset();
    capacity_ = 0;
    memory_.reset(std::aligned_alloc(static_cast<std::size_t>(unit),
                                     static_cast<std::size_t>(rounded)));
    if (memory_ == nullptr) throw std::bad_alloc();
    // Fewer page faults and fewer misses of the address cache; a kernel without them ignores it.
    if (unit == kHugePage) {
      madvise(memory_.get(), static_cast<std::size_t>(rounded), MADV_HUGEPAGE);
    }
    capacity_ = rounded;
    return memory_.get();
  }
  std::int64_t capacity() const noexcept { return capacity_; }

 private:
  struct Free {
    void operator()(void *memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  std::int64_t capacity_ = 0;
};

}  // namespace dlc_runtime
#endif

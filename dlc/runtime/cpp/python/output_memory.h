// Memory of large outputs: aligned, and given again to a later run once its array is gone, so that
// a run in a loop writes to pages that are there already.
#ifndef DLC_PYTHON_OUTPUT_MEMORY_H
#define DLC_PYTHON_OUTPUT_MEMORY_H

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "c_interface.h"
#include "memory.h"

namespace dlc_python {

namespace py = pybind11;

// Blocks without an owner. Shared by the arrays that were made of them, which may outlive the
// module. The lock is held only while Python's own lock is, and not while memory is asked for.
class SpareBlocks {
 public:
  explicit SpareBlocks(std::size_t most) { blocks_.reserve(most + 1); }

  // Keeps `count` blocks more from now on, what one more run at a time leaves behind, up to `most`.
  void keep_more(std::size_t count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    kept_ = std::min(kept_ + count, blocks_.capacity() - 1);
  }

  // A block of at least `bytes`, and at most twice as large if it is one that was kept. A new one
  // has room for the outputs of later runs, which grow where a model returns its state.
  dlc_runtime::AlignedMemory take(std::int64_t bytes) {
    dlc_runtime::AlignedMemory block;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (auto found = blocks_.begin(); found != blocks_.end(); ++found) {
        if (found->capacity() < bytes || found->capacity() / 2 > bytes) continue;
        block = std::move(*found);
        blocks_.erase(found);
        break;
      }
    }
    if (block.capacity() < bytes) block.at_least(dlc_runtime::with_room(bytes));
    return block;
  }

  void give(dlc_runtime::AlignedMemory block) {
    dlc_runtime::AlignedMemory oldest;  // freed without the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.push_back(std::move(block));
    if (blocks_.size() <= kept_) return;
    oldest = std::move(blocks_.front());
    blocks_.erase(blocks_.begin());
  }

 private:
  std::mutex mutex_;
  std::size_t kept_ = 0;
  std::vector<dlc_runtime::AlignedMemory> blocks_;  // the oldest first
};

constexpr std::int64_t kSmall = 16 * 1024;  // bytes of arrays that may as well be NumPy's own

// Throws for a shape that NumPy refuses: it leaves axes of size 0 out where it multiplies.
inline std::int64_t bytes_of(const py::dtype &dtype, const std::vector<py::ssize_t> &shape) {
  std::int64_t bytes = dtype.itemsize();
  bool is_empty = false;
  for (const py::ssize_t size : shape) {
    is_empty |= size == 0;
    if (size == 0 || !__builtin_mul_overflow(bytes, size, &bytes)) continue;
    std::string text;
    for (const py::ssize_t each : shape) text += (text.empty() ? "" : ", ") + std::to_string(each);
    throw StatusError{DLC_RUN_FAILED, "NumPy cannot hold an output of the shape (" + text + ")"};
  }
  return is_empty ? 0 : bytes;
}

// An array of what a block begins with; the block goes to `spare` with it.
inline py::array array_of(const std::shared_ptr<SpareBlocks> &spare,
                          dlc_runtime::AlignedMemory block, const py::dtype &dtype,
                          const std::vector<py::ssize_t> &shape) {
  struct Lease {
    std::shared_ptr<SpareBlocks> home;
    dlc_runtime::AlignedMemory block;
    ~Lease() { home->give(std::move(block)); }
  };
  std::unique_ptr<Lease> lease(new Lease{spare, std::move(block)});
  void *data = lease->block.at_least(bytes_of(dtype, shape));
  const py::capsule owner(lease.get(), [](void *owned) { delete static_cast<Lease *>(owned); });
  static_cast<void>(lease.release());
  return {dtype, shape, {}, data, owner};
}

// An array of unknown content.
inline py::array make_output(const std::shared_ptr<SpareBlocks> &spare, const py::dtype &dtype,
                             const std::vector<py::ssize_t> &shape) {
  const std::int64_t bytes = bytes_of(dtype, shape);
  if (bytes < kSmall) return {dtype, shape};
  return array_of(spare, spare->take(bytes), dtype, shape);
}

// An array of what a run has written to a block. A small one would keep what is not its own.
inline py::array keep_output(const std::shared_ptr<SpareBlocks> &spare,
                             dlc_runtime::AlignedMemory block, const py::dtype &dtype,
                             const std::vector<py::ssize_t> &shape) {
  const std::int64_t bytes = bytes_of(dtype, shape);
  if (bytes >= kSmall && block.capacity() / 2 <= bytes) {
    return array_of(spare, std::move(block), dtype, shape);
  }
  py::array array = make_output(spare, dtype, shape);
  std::memcpy(array.mutable_data(), block.at_least(bytes), static_cast<std::size_t>(bytes));
  spare->give(std::move(block));
  return array;
}

}  // namespace dlc_python

#endif

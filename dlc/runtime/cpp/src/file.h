// Files: a descriptor that closes itself, and reads that are whole or fail.
#ifndef DLC_SRC_FILE_H
#define DLC_SRC_FILE_H

#include <cstddef>
#include <cstdint>
#include <utility>

namespace dlc_runtime {

class File {
 public:
  explicit File(int descriptor) noexcept : descriptor_(descriptor) {}
  File(File &&other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  File &operator=(File &&) = delete;
  ~File();

  int descriptor() const noexcept { return descriptor_; }
  std::uint64_t size() const;

  // Opens a regular file for reading; anything else (a folder, a pipe) is refused at once.
  static File open(const char *path);
  // A nameless file in memory with a copy of the bytes.
  static File of_bytes(const void *data, std::size_t size);

 private:
  int descriptor_;
};

// Fills `out` with the bytes at `offset`, or throws Failure.
void read_exactly(int descriptor, std::uint64_t offset, void *out, std::size_t size);

}  // namespace dlc_runtime
#endif

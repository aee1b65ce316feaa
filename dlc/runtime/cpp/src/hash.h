// XXH64, the hash that tells whether an artefact is whole. It finds damage, not attacks.
#ifndef DLC_SRC_HASH_H
#define DLC_SRC_HASH_H

#include <array>
#include <cstddef>
#include <cstdint>

namespace dlc_runtime {

// Hashes bytes given in any number of pieces; seed 0.
class Hash64 {
 public:
  Hash64() noexcept;
  void update(const void *data, std::size_t size) noexcept;
  std::uint64_t digest() const noexcept;

 private:
  void stripes(const unsigned char *data, std::size_t count) noexcept;

  std::array<std::uint64_t, 4> lanes_;
  std::array<unsigned char, 32> pending_{};
  std::size_t pending_size_ = 0;
  std::uint64_t total_ = 0;
};

// The hash of the first `size` bytes of a file: of the hashes of each MiB, where it has more than
// one. So several threads share the work, which waits for memory; they end before this returns.
std::uint64_t hash_descriptor(int descriptor, std::uint64_t size);

}  // namespace dlc_runtime
#endif

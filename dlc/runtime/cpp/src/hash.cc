// Source: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, section XXH64.
#include "hash.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <system_error>
#include <vector>

#include "file.h"
#include "thread_pool.h"

namespace dlc_runtime {
namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87U;
constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4FU;
constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9U;
constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63U;
constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5U;
constexpr std::size_t kStripe = 32;
constexpr std::size_t kAhead = 2048;  // bytes asked for early: the way from memory is long

std::uint64_t rotate(std::uint64_t value, unsigned bits) {
  return value << bits | value >> (64U - bits);
}

// Both architectures we run on are little endian, as the hash is defined.
template <typename T>
std::uint64_t load(const unsigned char *data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

std::uint64_t mix(std::uint64_t lane, std::uint64_t word) {
  return rotate(lane + word * kPrime2, 31) * kPrime1;
}

}  // namespace

Hash64::Hash64() noexcept : lanes_{kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1} {}

void Hash64::stripes(const unsigned char *data, std::size_t count) noexcept {
  auto [a, b, c, d] = lanes_;
  for (std::size_t i = 0; i < count; ++i, data += kStripe) {
    __builtin_prefetch(data + kAhead);
    a = mix(a, load<std::uint64_t>(data));
    b = mix(b, load<std::uint64_t>(data + 8));
    c = mix(c, load<std::uint64_t>(data + 16));
    d = mix(d, load<std::uint64_t>(data + 24));
  }
  lanes_ = {a, b, c, d};
}

void Hash64::update(const void *data, std::size_t size) noexcept {
  const auto *bytes = static_cast<const unsigned char *>(data);
  total_ += size;
  if (pending_size_ > 0) {
    const std::size_t taken = std::min(size, kStripe - pending_size_);
    std::copy_n(bytes, taken, pending_.data() + pending_size_);
    pending_size_ += taken;
    bytes += taken;
    size -= taken;
    if (pending_size_ < kStripe) return;
    stripes(pending_.data(), 1);
  }
  stripes(bytes, size / kStripe);
  pending_size_ = size % kStripe;
  std::copy_n(bytes + (size - pending_size_), pending_size_, pending_.data());
}

std::uint64_t Hash64::digest() const noexcept {
  std::uint64_t value = kPrime5;
  if (total_ >= kStripe) {
    const auto &[a, b, c, d] = lanes_;
    value = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
    for (const std::uint64_t lane : lanes_) value = (value ^ mix(0, lane)) * kPrime1 + kPrime4;
  }
  value += total_;
  const unsigned char *tail = pending_.data();
  std::size_t left = pending_size_;
  for (; left >= 8; left -= 8, tail += 8) {
    value = rotate(value ^ mix(0, load<std::uint64_t>(tail)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    value = rotate(value ^ load<std::uint32_t>(tail) * kPrime1, 23) * kPrime2 + kPrime3;
    left -= 4;
    tail += 4;
  }
  for (; left > 0; --left, ++tail) value = rotate(value ^ *tail * kPrime5, 11) * kPrime1;
  value = (value ^ value >> 33) * kPrime2;
  value = (value ^ value >> 29) * kPrime3;
  return value ^ value >> 32;
}

namespace {

constexpr std::uint64_t kPiece = std::uint64_t{1} << 20U;  // hashed by itself; whole pages
constexpr std::size_t kPiecesOfThread = 32;  // fewer do not pay for the start of a thread

// Reads parts that stay in the cache, for where the file cannot be mapped.
std::uint64_t hash_copies(int descriptor, std::uint64_t at, std::uint64_t bytes) {
  constexpr std::size_t kPart = 256 * 1024;
  const std::unique_ptr<unsigned char[]> part(new unsigned char[kPart]);
  Hash64 hash;
  for (const std::uint64_t end = at + bytes; at < end;) {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(kPart, end - at));
    read_exactly(descriptor, at, part.get(), size);
    hash.update(part.get(), size);
    at += size;
  }
  return hash.digest();
}

// A file in memory; no data where it cannot be mapped.
class Mapping {
 public:
  Mapping(int descriptor, std::uint64_t size) noexcept
      : size_(size),
        data_(size == 0 ? MAP_FAILED
                        : mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0)) {}
  Mapping(const Mapping &) = delete;
  Mapping &operator=(const Mapping &) = delete;
  ~Mapping() {
    if (data_ != MAP_FAILED) munmap(data_, size_);
  }

  // The bytes from `at` on, brought into memory; null where the system cannot promise that they
  // are there, as beyond the end of a file that became shorter, or on a disk with an error.
  const unsigned char *bring(std::uint64_t at, std::size_t bytes) const noexcept {
    if (data_ == MAP_FAILED) return nullptr;
    auto *begin = static_cast<unsigned char *>(data_) + at;
    return madvise(begin, bytes, kPopulateRead) == 0 ? begin : nullptr;
  }

 private:
  static constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ of Linux 5.14
  std::uint64_t size_;
  void *data_;
};

// Reading copies every byte, which takes twice as long as hashing it. What a mapping risks, that
// a file which shrinks kills the process with SIGBUS, the model risks for as long as it is loaded:
// the dynamic linker maps the same file. A piece that is not there is an error here all the same.
std::uint64_t hash_piece(int descriptor, const Mapping &mapping, std::uint64_t at,
                         std::uint64_t bytes) {
  const unsigned char *piece = mapping.bring(at, bytes);
  if (piece == nullptr) return hash_copies(descriptor, at, bytes);
  Hash64 hash;
  hash.update(piece, bytes);
  return hash.digest();
}

// Runs `work` here and on `helpers` threads that end with it, fewer where the system has none left.
template <typename Work>
void run_with_helpers(std::size_t helpers, const Work &work) {
  std::vector<std::future<void>> started;
  try {
    while (started.size() < helpers) started.push_back(std::async(std::launch::async, work));
  } catch (const std::system_error &) {
  }
  work();
  for (std::future<void> &helper : started) helper.get();  // or what it threw
}

}  // namespace

std::uint64_t hash_descriptor(int descriptor, std::uint64_t size) {
  const Mapping mapping(descriptor, size);
  if (size <= kPiece) return hash_piece(descriptor, mapping, 0, size);
  std::vector<std::uint64_t> hashes((size + kPiece - 1) / kPiece);
  std::atomic<std::size_t> next{0};
  const std::size_t threads = thread_pool().size();
  run_with_helpers(std::min(threads - 1, hashes.size() / kPiecesOfThread), [&] {
    for (std::size_t i = next.fetch_add(1); i < hashes.size(); i = next.fetch_add(1)) {
      const std::uint64_t at = i * kPiece;
      hashes[i] = hash_piece(descriptor, mapping, at, std::min(kPiece, size - at));
    }
  });
  Hash64 hash;
  hash.update(hashes.data(), hashes.size() * sizeof hashes[0]);
  return hash.digest();
}

}  // namespace dlc_runtime

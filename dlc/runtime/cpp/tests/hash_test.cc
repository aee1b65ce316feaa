// Published values of XXH64, and any cutting into pieces gives the same hash.
#include "hash.h"

#include <cstring>
#include <string>

#include "check.h"
#include "failure.h"
#include "file.h"

using dlc_runtime::Failure;
using dlc_runtime::File;
using dlc_runtime::hash_descriptor;
using dlc_runtime::Hash64;

namespace {

std::uint64_t hash(const std::string &text) {
  Hash64 hash;
  hash.update(text.data(), text.size());
  return hash.digest();
}

// Source: the test vectors of https://github.com/Cyan4973/xxHash and of python-xxhash, seed 0.
void test_published_values() {
  CHECK(hash("") == 0xEF46DB3751D8E999U);
  CHECK(hash("abc") == 0x44BC2CF5AD770999U);
  CHECK(hash("Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1U);
}

void test_pieces() {
  std::string text;
  for (int i = 0; i < 331; ++i) text += static_cast<char>(i * 7);
  for (std::size_t piece = 1; piece < text.size(); piece += 3) {
    Hash64 pieces;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      const std::string part = text.substr(at, piece);
      pieces.update(part.data(), part.size());
    }
    CHECK(pieces.digest() == hash(text));
  }
}

// What is not there is an error, whichever thread misses it.
void test_a_file_that_became_shorter() {
  const std::string bytes(std::size_t{70} << 20U, 'x');
  const File file = File::of_bytes(bytes.data(), bytes.size());
  CHECK(hash_descriptor(file.descriptor(), bytes.size()) != 0);
  for (const std::uint64_t size : {bytes.size() + 1, bytes.size() + (std::size_t{64} << 20U)}) {
    std::string message;
    try {
      hash_descriptor(file.descriptor(), size);
    } catch (const Failure &failure) {
      message = failure.message;
    }
    CHECK_HAS(message, "ends too early");
  }
}

}  // namespace

int main() {
  test_a_file_that_became_shorter();
  test_published_values();
  test_pieces();
  return check::result();
}

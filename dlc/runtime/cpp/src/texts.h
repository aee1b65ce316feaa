// The texts of one run. A model computes with their numbers: equal texts have equal numbers, and
// the empty text is number 0.
#ifndef DLC_SRC_TEXTS_H
#define DLC_SRC_TEXTS_H

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dlc/abi.h"
#include "dlc/runtime.h"

namespace dlc_runtime {

class Texts {
 public:
  Texts() { clear(); }
  Texts(const Texts &) = delete;
  Texts &operator=(const Texts &) = delete;

  // Forgets all texts but the empty one, and the constants that a run begins with, as the next run
  // begins with the same; what was written out is gone.
  void clear();

  // Runs one function of dlc_text_host. Throws Failure, bad_alloc.
  void call(std::uint32_t function, const std::int64_t *sizes, void *const *buffers);

 private:
  static constexpr std::size_t kMostKeys = 1 << 20;  // that are remembered, of all lists
  using Numbers = std::vector<std::int64_t>;

  // Constant texts, as they were given, and their numbers.
  struct Constants {
    std::string bytes;
    Numbers ends, numbers;
  };

  // Keys, and where each is first.
  struct Places {
    Numbers keys;
    std::unordered_map<std::int64_t, std::int64_t> first;
  };

  std::int64_t number(std::string_view text);
  std::string_view text(std::int64_t number) const;
  void constants(std::int64_t count, const char *bytes, const std::int64_t *ends,
                 std::int64_t *numbers);
  const Places &places(std::int64_t count, const std::int64_t *keys);

  std::deque<std::string> texts_;  // never moved: the views point into them
  std::unordered_map<std::string_view, std::int64_t> numbers_;
  std::vector<Constants> constants_;  // that runs began with
  std::size_t kept_ = 0;              // texts that are theirs, and the empty one
  std::size_t begun_ = 0;             // constants that this run began with
  std::deque<Places> places_;         // the last that were made
  std::size_t keys_ = 0;              // of all of them
};

}  // namespace dlc_runtime
#endif

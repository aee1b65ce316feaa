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

#include "dlc/abi.h"
#include "dlc/runtime.h"

namespace dlc_runtime {

class Texts {
 public:
  Texts() { clear(); }
  Texts(const Texts &) = delete;
  Texts &operator=(const Texts &) = delete;

  // Forgets all texts but the empty one; what was written out is gone.
  void clear();

  // Runs one function of dlc_text_host. Throws Failure, bad_alloc.
  void call(std::uint32_t function, const std::int64_t *sizes, void *const *buffers);

 private:
  std::int64_t number(std::string_view text);
  std::string_view text(std::int64_t number) const;

  std::deque<std::string> texts_;  // never moved: the views point into them
  std::unordered_map<std::string_view, std::int64_t> numbers_;
};

}  // namespace dlc_runtime
#endif

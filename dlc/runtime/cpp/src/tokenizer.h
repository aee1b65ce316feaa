// The tokens of texts, which automata find: matches, or what lies between them.
#ifndef DLC_SRC_TOKENIZER_H
#define DLC_SRC_TOKENIZER_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace dlc_runtime {

inline bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || c == '_' || (c >= 'a' && c <= 'z');
}

// Whether a byte is inside of a character.
inline bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

inline std::int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !continues(c); });
}

// The tokens of DLC_TEXT_TOKENS.
class Tokenizer {
 public:
  Tokenizer(const std::int64_t *sizes, void *const *buffers)
      : automata_(sizes[1]),
        least_(sizes[2]),
        between_(sizes[3] != 0),
        next_(static_cast<const std::uint16_t *>(buffers[1])),
        ends_(static_cast<const std::uint8_t *>(buffers[2])),
        begins_(static_cast<const std::uint16_t *>(buffers[3])) {}

  // Valid until the next call, and as long as `text` is.
  const std::vector<std::string_view> &of(std::string_view text) {
    tokens_.assign(1, text);
    for (std::int64_t i = 0; i < automata_; ++i) {
      pieces_.swap(tokens_);
      tokens_.clear();
      for (const std::string_view piece : pieces_) cut(piece, begins_ + 3 * i);
    }
    return tokens_;
  }

 private:
  bool take(std::string_view token) {
    if (characters(token) < least_) return false;
    tokens_.push_back(token);
    return true;
  }

  void cut(std::string_view text, const std::uint16_t *begins) {
    std::size_t start = 0;
    for (std::size_t first = 0, last = 0; find(text, start, begins, &first, &last);) {
      if (between_) {
        take(text.substr(start, first - start));
        start = last > first ? last : next(text, first);
      } else {
        start = take(text.substr(first, last - first)) ? last : next(text, first);
      }
    }
    if (between_ && start < text.size()) take(text.substr(start));
  }

  // Where the first match begins, and where the longest one there ends.
  bool find(std::string_view text, std::size_t start, const std::uint16_t *begins,
            std::size_t *first, std::size_t *last) const {
    for (; start <= text.size(); start = next(text, start)) {
      bool found = false;
      std::uint32_t state = begins[start == 0 ? 0 : is_word(text[start - 1]) ? 2 : 1];
      for (std::size_t at = start; state != 0; ++at) {
        const bool is_end = at == text.size();
        if ((ends_[state] & (is_end ? 1U : is_word(text[at]) ? 4U : 2U)) != 0) {
          found = true;
          *last = at;
        }
        if (is_end) break;
        state = next_[256U * state + static_cast<unsigned char>(text[at])];
      }
      if (found) {
        *first = start;
        return true;
      }
    }
    return false;
  }

  // Where the next character begins.
  static std::size_t next(std::string_view text, std::size_t at) {
    ++at;
    while (at < text.size() && continues(text[at])) ++at;
    return at;
  }

  std::int64_t automata_, least_;
  bool between_;
  const std::uint16_t *next_;
  const std::uint8_t *ends_;
  const std::uint16_t *begins_;
  std::vector<std::string_view> tokens_, pieces_;
};

}  // namespace dlc_runtime
#endif

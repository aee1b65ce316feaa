#include "texts.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <vector>

#include "failure.h"
#include "tokenizer.h"

namespace dlc_runtime {

void Texts::clear() {
  for (; texts_.size() > kept_; texts_.pop_back()) numbers_.erase(texts_.back());
  begun_ = 0;
  number({});
  kept_ = std::max<std::size_t>(kept_, 1);
}

std::int64_t Texts::number(std::string_view text) {
  const auto found = numbers_.find(text);
  if (found != numbers_.end()) return found->second;
  const std::string &kept = texts_.emplace_back(text);
  const auto next = static_cast<std::int64_t>(texts_.size()) - 1;
  numbers_.emplace(kept, next);
  return next;
}

void Texts::constants(std::int64_t count, const char *bytes, const std::int64_t *ends,
                      std::int64_t *numbers) {
  const auto length = static_cast<std::size_t>(count == 0 ? 0 : ends[count - 1]);
  if (begun_ < constants_.size()) {
    const Constants &known = constants_[begun_];
    if (std::string_view(bytes, length) == known.bytes &&
        std::equal(ends, ends + count, known.ends.begin(), known.ends.end())) {
      ++begun_;
      std::copy(known.numbers.begin(), known.numbers.end(), numbers);
      return;
    }
  }
  const bool begins = texts_.size() == kept_ && begun_ == constants_.size();
  for (std::int64_t i = 0, begin = 0; i < count; begin = ends[i++]) {
    numbers[i] = number({bytes + begin, static_cast<std::size_t>(ends[i] - begin)});
  }
  if (!begins || texts_.size() == kept_) return;  // none, or none that is new
  constants_.push_back({{bytes, length}, {ends, ends + count}, {numbers, numbers + count}});
  kept_ = texts_.size();
  ++begun_;
}

const Texts::Places &Texts::places(std::int64_t count, const std::int64_t *keys) {
  const auto same = [&](const Places &known) {
    return std::equal(keys, keys + count, known.keys.begin(), known.keys.end());
  };
  const auto found = std::find_if(places_.begin(), places_.end(), same);
  if (found != places_.end()) return *found;
  Places made;
  made.keys.assign(keys, keys + count);
  for (std::int64_t i = 0; i < count; ++i) made.first.emplace(keys[i], i);
  for (keys_ += made.keys.size(); keys_ > kMostKeys && !places_.empty(); places_.pop_front()) {
    keys_ -= places_.front().keys.size();
  }
  return places_.emplace_back(std::move(made));
}

std::string_view Texts::text(std::int64_t number) const {
  if (number < 0 || static_cast<std::size_t>(number) >= texts_.size()) {
    fail(DLC_INTERNAL, "there is no text of this number");
  }
  return texts_[static_cast<std::size_t>(number)];
}

namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// ---- characters ------------------------------------------------------------

// How many bytes the character takes that begins here; 0 where the bytes are no character.
std::size_t character(std::string_view text, std::uint32_t *code) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t count = first < 0x80 ? 1 : first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if ((first >= 0x80 && first < 0xC2) || first > 0xF4 || text.size() < count) return 0;
  std::uint32_t value = count == 1 ? first : first & (0xFFU >> (count + 1));
  for (std::size_t i = 1; i < count; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0U) != 0x80U) return 0;
    value = (value << 6U) | (next & 0x3FU);
  }
  *code = value;
  return count;
}

void append(std::string &out, std::uint32_t code) {
  const auto byte = [&](std::uint32_t value) { out += static_cast<char>(value); };
  if (code < 0x80) return byte(code);
  if (code >= 0x10000) {
    byte(0xF0U | (code >> 18U));
    byte(0x80U | ((code >> 12U) & 0x3FU));
  } else if (code >= 0x800) {
    byte(0xE0U | (code >> 12U));
  }
  byte(code < 0x800 ? 0xC0U | (code >> 6U) : 0x80U | ((code >> 6U) & 0x3FU));
  byte(0x80U | (code & 0x3FU));
}

// `table` holds `rows` pairs, in the order of the first of each.
std::string mapped(std::string_view text, const std::int32_t *table, std::int64_t rows) {
  std::string out;
  while (!text.empty()) {
    std::uint32_t code = 0;
    const std::size_t taken = character(text, &code);
    if (taken == 0) {  // what is no character stays
      out += text[0];
      text.remove_prefix(1);
      continue;
    }
    const auto wanted = static_cast<std::int32_t>(code);
    std::int64_t low = 0, high = rows;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (table[2 * middle] < wanted) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    const bool found = low < rows && table[2 * low] == wanted;
    append(out, found ? static_cast<std::uint32_t>(table[2 * low + 1]) : code);
    text.remove_prefix(taken);
  }
  return out;
}

// ---- fields ----------------------------------------------------------------

std::string_view without_front_space(std::string_view text) {
  while (!text.empty() && is_space(text[0])) text.remove_prefix(1);
  return text;
}

// The parts between delimiters, or between runs of white space; at most `most` cuts (-1: any).
template <typename Take>
void split(std::string_view text, std::string_view delimiter, std::int64_t most, Take take) {
  if (!delimiter.empty()) {
    for (std::size_t at; most != 0 && (at = text.find(delimiter)) != text.npos; --most) {
      take(text.substr(0, at));
      text.remove_prefix(at + delimiter.size());
    }
    return take(text);
  }
  text = without_front_space(text);
  for (; most != 0 && !text.empty(); --most) {
    const auto end = std::find_if(text.begin(), text.end(), is_space);
    const auto length = static_cast<std::size_t>(end - text.begin());
    take(text.substr(0, length));
    text = without_front_space(text.substr(length));
  }
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  if (!text.empty()) take(text);
}

// ---- numbers ---------------------------------------------------------------

std::string lower(std::string_view text) {
  std::string out(text);
  for (char &c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

[[noreturn]] void no_number(std::string_view text) {
  const std::string shown(text.substr(0, 40));
  fail(DLC_RUN_FAILED, "a text is to be read as a number and is none: '" + shown + "'");
}

std::string_view trimmed(std::string_view text) {
  text = without_front_space(text);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  return text;
}

template <typename Number>
Number read(std::string_view whole) {
  const std::string text = lower(trimmed(whole));
  Number number{};
  const char *end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  if constexpr (std::is_floating_point_v<Number>) {
    if (result.ec == std::errc::result_out_of_range && result.ptr == end) {
      const bool tiny = text.find("e-") != text.npos;
      const Number size = tiny ? 0 : std::numeric_limits<Number>::infinity();
      return text[0] == '-' ? -size : size;
    }
  }
  if (result.ec != std::errc{} || result.ptr != end) no_number(whole);
  return number;
}

std::string write(std::int64_t number) { return std::to_string(number); }

// The shortest digits that are read back as the same number; an exponent from 1e16 on and below
// 1e-4, as Python writes floats.
template <typename Float>
std::string write(Float number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[64];
  const double size = std::fabs(static_cast<double>(number));
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto style = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, number, style);
  std::string text(buffer, result.ptr);
  if (plain && text.find('.') == text.npos) text += ".0";
  return text;
}

template <typename T>
T *as(void *buffer) {
  return static_cast<T *>(buffer);
}

}  // namespace

void Texts::call(std::uint32_t function, const std::int64_t *sizes, void *const *buffers) {
  const std::int64_t count = sizes[0];
  auto *const in = as<const std::int64_t>(buffers[0]);
  auto *const other = as<const std::int64_t>(buffers[1]);  // of those that read two
  switch (function) {
    case DLC_TEXT_NUMBER: {
      auto *const given = as<const dlc_text>(buffers[0]);
      for (std::int64_t i = 0; i < count; ++i) {
        as<std::int64_t>(buffers[1])[i] = number({given[i].data, given[i].bytes});
      }
      return;
    }
    case DLC_TEXT_TEXT:
      for (std::int64_t i = 0; i < count; ++i) {
        const std::string_view found = text(in[i]);
        as<dlc_text>(buffers[1])[i] = {found.data(), found.size()};
      }
      return;
    case DLC_TEXT_CONSTANT:
      return constants(count, as<const char>(buffers[0]), other, as<std::int64_t>(buffers[2]));
    case DLC_TEXT_CONCAT:
      for (std::int64_t i = 0; i < count; ++i) {
        as<std::int64_t>(buffers[2])[i] = number(std::string(text(in[i])).append(text(other[i])));
      }
      return;
    case DLC_TEXT_MAP:
      for (std::int64_t i = 0; i < count; ++i) {
        const auto *const table = as<const std::int32_t>(buffers[1]);
        as<std::int64_t>(buffers[2])[i] = number(mapped(text(in[i]), table, sizes[1]));
      }
      return;
    case DLC_TEXT_MATCH:
      for (std::int64_t i = 0; i < count; ++i) {
        std::uint32_t state = 1;
        for (const char c : text(in[i])) {
          state = as<const std::uint16_t>(buffers[1])[256U * state + static_cast<unsigned char>(c)];
        }
        as<bool>(buffers[3])[i] = as<const std::uint8_t>(buffers[2])[state] != 0;
      }
      return;
    case DLC_TEXT_COUNT_FIELDS:
      for (std::int64_t i = 0; i < count; ++i) {
        std::int64_t parts = 0;
        split(text(in[i]), text(other[0]), sizes[1], [&](std::string_view) { ++parts; });
        as<std::int64_t>(buffers[2])[i] = parts;
      }
      return;
    case DLC_TEXT_FIELDS:
      for (std::int64_t i = 0; i < count; ++i) {
        std::int64_t *const row = as<std::int64_t>(buffers[2]) + i * sizes[2];
        std::int64_t at = 0;
        split(text(in[i]), text(other[0]), sizes[1], [&](std::string_view part) {
          if (at < sizes[2]) row[at++] = number(part);
        });
        std::fill(row + at, row + sizes[2], 0);
      }
      return;
    case DLC_TEXT_COUNT_TOKENS: {
      Tokenizer tokenizer(sizes, buffers);
      for (std::int64_t i = 0; i < count; ++i) {
        as<std::int64_t>(buffers[4])[i] = static_cast<std::int64_t>(tokenizer.of(text(in[i])).size());
      }
      return;
    }
    case DLC_TEXT_TOKENS: {
      Tokenizer tokenizer(sizes, buffers);
      const bool marked = sizes[4] != 0;
      for (std::int64_t i = 0; i < count; ++i) {
        std::int64_t *const row = as<std::int64_t>(buffers[4]) + i * sizes[5];
        std::int64_t at = 0;
        const auto put = [&](std::string_view token) {
          if (at < sizes[5]) row[at++] = number(token);
        };
        if (marked) put("\x02");
        for (const std::string_view token : tokenizer.of(text(in[i]))) put(token);
        if (marked) put("\x03");
        std::fill(row + at, row + sizes[5], 0);
      }
      return;
    }
    case DLC_TEXT_PLACES: {
      const auto &first = places(sizes[1], other).first;
      for (std::int64_t i = 0; i < count; ++i) {
        const auto found = first.find(in[i]);
        as<std::int64_t>(buffers[2])[i] = found == first.end() ? -1 : found->second;
      }
      return;
    }
    case DLC_TEXT_READ_F64:
      for (std::int64_t i = 0; i < count; ++i) {
        as<double>(buffers[1])[i] = read<double>(text(in[i]));
      }
      return;
    case DLC_TEXT_READ_I64:
      for (std::int64_t i = 0; i < count; ++i) {
        as<std::int64_t>(buffers[1])[i] = read<std::int64_t>(text(in[i]));
      }
      return;
    case DLC_TEXT_WRITE_F32:
      for (std::int64_t i = 0; i < count; ++i) {
        as<std::int64_t>(buffers[1])[i] = number(write(as<const float>(buffers[0])[i]));
      }
      return;
    case DLC_TEXT_WRITE_F64:
      for (std::int64_t i = 0; i < count; ++i) {
        as<std::int64_t>(buffers[1])[i] = number(write(as<const double>(buffers[0])[i]));
      }
      return;
    case DLC_TEXT_WRITE_I64:
      for (std::int64_t i = 0; i < count; ++i) {
        as<std::int64_t>(buffers[1])[i] = number(write(in[i]));
      }
      return;
    default:
      fail(DLC_INTERNAL, "this runtime is older than the model: it lacks a function of texts");
  }
}

}  // namespace dlc_runtime

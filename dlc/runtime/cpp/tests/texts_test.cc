// Texts by number: equal texts are one number, and no number leads outside of the list.
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "failure.h"
#include "texts.h"

namespace {

using dlc_runtime::Failure;
using dlc_runtime::Texts;
using Numbers = std::vector<std::int64_t>;

Numbers numbers_of(Texts &texts, const std::vector<std::string> &given) {
  std::vector<dlc_text> pointers;
  for (const std::string &text : given) pointers.push_back({text.data(), text.size()});
  Numbers found(given.size());
  const std::int64_t sizes[] = {static_cast<std::int64_t>(given.size())};
  void *const buffers[] = {pointers.data(), found.data()};
  texts.call(DLC_TEXT_NUMBER, sizes, buffers);
  return found;
}

std::vector<std::string> texts_of(Texts &texts, Numbers numbers) {
  std::vector<dlc_text> pointers(numbers.size());
  const std::int64_t sizes[] = {static_cast<std::int64_t>(numbers.size())};
  void *const buffers[] = {numbers.data(), pointers.data()};
  texts.call(DLC_TEXT_TEXT, sizes, buffers);
  std::vector<std::string> found;
  for (const dlc_text &text : pointers) found.emplace_back(text.data, text.bytes);
  return found;
}

template <typename Body>
bool fails(Body body) {
  try {
    body();
  } catch (const Failure &) {
    return true;
  }
  return false;
}

void test_numbers() {
  Texts texts;
  const std::string with_nul("a\0b", 3);
  CHECK((numbers_of(texts, {"", "x", with_nul, "x", "a"}) == Numbers{0, 1, 2, 1, 3}));
  CHECK((texts_of(texts, {2, 0, 1}) == std::vector<std::string>{with_nul, "", "x"}));
  for (const std::int64_t wrong : {-1L, 4L, 1L << 62}) {
    CHECK(fails([&] { texts_of(texts, {wrong}); }));
  }
  texts.clear();
  CHECK(fails([&] { texts_of(texts, {1}); }));
  CHECK((numbers_of(texts, {"new"}) == Numbers{1}));
}

void test_an_empty_text_may_be_null() {
  Texts texts;
  dlc_text nothing{nullptr, 0};
  std::int64_t number = 9;
  const std::int64_t sizes[] = {1};
  void *const buffers[] = {&nothing, &number};
  texts.call(DLC_TEXT_NUMBER, sizes, buffers);
  CHECK(number == 0);
}

void test_constants() {
  Texts texts;
  char bytes[] = "abcab";
  Numbers ends{2, 2, 3, 5}, found(4);
  const std::int64_t sizes[] = {4};
  void *const buffers[] = {bytes, ends.data(), found.data()};
  texts.call(DLC_TEXT_CONSTANT, sizes, buffers);
  CHECK((found == Numbers{1, 0, 2, 1}));
}

// The number of each of some texts that are constants of a model.
Numbers constants_of(Texts &texts, std::string bytes, Numbers ends) {
  Numbers found(ends.size());
  const std::int64_t sizes[] = {static_cast<std::int64_t>(ends.size())};
  void *const buffers[] = {bytes.data(), ends.data(), found.data()};
  texts.call(DLC_TEXT_CONSTANT, sizes, buffers);
  return found;
}

void test_constants_that_a_run_begins_with_keep_their_numbers() {
  Texts texts;
  for (int run = 0; run < 3; ++run) {
    texts.clear();
    CHECK((constants_of(texts, "abc", {1, 3}) == Numbers{1, 2}));
    CHECK((constants_of(texts, "bcd", {2, 3}) == Numbers{2, 3}));
    CHECK((numbers_of(texts, {"new", "bc", "d"}) == Numbers{4, 2, 3}));
    CHECK((constants_of(texts, "new", {3}) == Numbers{4}));  // after others: not kept
  }
  texts.clear();
  CHECK(fails([&] { texts_of(texts, {4}); }));
  CHECK((texts_of(texts, {2}) == std::vector<std::string>{"bc"}));
  CHECK((constants_of(texts, "xbc", {1, 3}) == Numbers{4, 2}));  // another program's
  CHECK((constants_of(texts, "bcd", {2, 3}) == Numbers{2, 3}));
  texts.clear();
  CHECK((constants_of(texts, "abc", {1, 3}) == Numbers{1, 2}));
}

void test_places_are_those_of_the_keys_given() {
  Texts texts;
  for (std::int64_t shift = 0; shift < 40; ++shift) {  // more lists than are remembered
    for (const std::int64_t other : {shift, shift - 1}) {
      Numbers in{7 + other, 9, 5 + other}, keys{5 + other, 6 + other, 5 + other}, found(3);
      const std::int64_t sizes[] = {3, 3};
      void *const buffers[] = {in.data(), keys.data(), found.data()};
      texts.call(DLC_TEXT_PLACES, sizes, buffers);
      CHECK((found == Numbers{-1, other == 4 ? 0 : other == 3 ? 1 : -1, 0}));
    }
  }
}

void test_fields_beyond_the_width_are_left_out() {
  Texts texts;
  Numbers in = numbers_of(texts, {"a,b,c"}), cut = numbers_of(texts, {","}), found(2);
  const std::int64_t sizes[] = {1, -1, 2};
  void *const buffers[] = {in.data(), cut.data(), found.data()};
  texts.call(DLC_TEXT_FIELDS, sizes, buffers);
  CHECK((texts_of(texts, found) == std::vector<std::string>{"a", "b"}));
}

void test_tokens_beyond_the_width_are_left_out_and_no_byte_beyond_a_text_is_read() {
  Texts texts;
  // State 2 is behind an 'a', and in 3, behind "ab", a match may end before a byte of no word.
  std::vector<std::uint16_t> next(4 * 256), begins{1, 1, 1};
  next[256 + 'a'] = 2;
  next[512 + 'b'] = 3;
  std::uint8_t ends[] = {0, 0, 0, 2};
  const std::string bytes = "ab abb ab- ab";
  Numbers in = numbers_of(texts, {bytes, "a"}), found(2), tokens(6);
  for (const bool between : {false, true}) {
    const std::int64_t sizes[] = {2, 1, 1, between, 1, 3};
    void *buffers[] = {in.data(), next.data(), ends, begins.data(), found.data()};
    texts.call(DLC_TEXT_COUNT_TOKENS, sizes, buffers);
    CHECK((found == (between ? Numbers{2, 1} : Numbers{2, 0})));
    buffers[4] = tokens.data();
    texts.call(DLC_TEXT_TOKENS, sizes, buffers);
    const std::string second = between ? " abb " : "ab", only = between ? "a" : "\x03";
    const std::vector<std::string> wanted{"\x02", second, between ? "- ab" : "ab", "\x02", only, between ? "\x03" : ""};
    CHECK(texts_of(texts, tokens) == wanted);
  }
}

void test_broken_characters_stay() {
  Texts texts;
  std::int32_t table[] = {'a', 0x1F600};  // to one of four bytes
  Numbers in = numbers_of(texts, {"a\xFF" "a\xE2\x82", "\xF4\x90\x80\x80z"}), found(2);
  const std::int64_t sizes[] = {2, 1};
  void *const buffers[] = {in.data(), table, found.data()};
  texts.call(DLC_TEXT_MAP, sizes, buffers);
  const std::string face = "\xF0\x9F\x98\x80";
  CHECK(texts_of(texts, found)[0] == face + "\xFF" + face + "\xE2\x82");
  CHECK(texts_of(texts, found)[1].back() == 'z');
}

void test_an_unknown_function_fails() {
  Texts texts;
  const std::int64_t sizes[] = {0, 0, 0};
  void *const buffers[] = {nullptr, nullptr, nullptr, nullptr};
  CHECK(fails([&] { texts.call(99, sizes, buffers); }));
}

}  // namespace

int main() {
  test_numbers();
  test_an_empty_text_may_be_null();
  test_constants();
  test_constants_that_a_run_begins_with_keep_their_numbers();
  test_places_are_those_of_the_keys_given();
  test_fields_beyond_the_width_are_left_out();
  test_tokens_beyond_the_width_are_left_out_and_no_byte_beyond_a_text_is_read();
  test_broken_characters_stay();
  test_an_unknown_function_fails();
  return check::result();
}

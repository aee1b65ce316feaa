// Each way a manifest can contradict itself is refused; whatever the bytes, nothing crashes.
#include "manifest.h"

#include <cstring>
#include <random>

#include "check.h"
#include "failure.h"

using dlc_runtime::decode_manifest;
using dlc_runtime::Failure;
using dlc_runtime::Manifest;

namespace {

// Writes the layout that dlc/core/manifest.py describes.
class Writer {
 public:
  template <typename T>
  Writer &number(T value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes.append(raw, sizeof value);
    return *this;
  }
  Writer &u32(std::uint32_t value) { return number(value); }
  Writer &i64(std::int64_t value) { return number(value); }
  Writer &u8(std::uint8_t value) { return number(value); }
  Writer &text(const std::string &value) {
    u32(static_cast<std::uint32_t>(value.size()));
    bytes += value;
    return *this;
  }
  std::string bytes;
};

struct Choices {
  std::int64_t size_min = 1, size_max = -1, constant = 3;
  std::uint32_t size_index = 0;
  std::uint8_t code = kDLFloat, bits = 32, input_kind = 1;
  const char *second_output = "z";
  const char *metadata = "{}";
};

std::string encode(const Choices &choices) {
  Writer out;
  out.u32(1).text("0.1.0").text("x86_64").u32(1).text("avx2");
  out.u32(1).text("batch").i64(choices.size_min).i64(choices.size_max);
  out.u32(1).text("x").u8(choices.code).u8(choices.bits).u32(2).u8(choices.input_kind);
  if (choices.input_kind == 0) out.i64(4);
  if (choices.input_kind == 1) out.u32(choices.size_index);
  if (choices.input_kind == 2) out.text("batch + 1");
  out.u8(0).i64(choices.constant);
  out.u32(2).text("y").u8(kDLInt).u8(64).u32(1).u8(2).text("batch // 2");
  out.text(choices.second_output).u8(kDLBool).u8(8).u32(0);
  return out.text(choices.metadata).bytes;
}

void test_a_whole_manifest() {
  const Manifest manifest = decode_manifest(encode({}));
  CHECK(manifest.abi_version == 1 && manifest.architecture == "x86_64");
  CHECK(manifest.cpu_features.size() == 1 && manifest.cpu_features[0] == "avx2");
  CHECK(manifest.sizes.size() == 1 && manifest.sizes[0].max == -1);
  CHECK(manifest.inputs[0].dims[0].size == 0 && manifest.inputs[0].dims[1].constant == 3);
  CHECK(manifest.outputs[0].dims[0].text == "batch // 2");
  CHECK(manifest.outputs[1].dims.empty());
  CHECK(dlc_runtime::print_dtype(manifest.outputs[0].dtype) == "i64");
}

void test_small_elements_take_a_byte() {
  const struct {
    DLDataType dtype;
    const char *name;
    unsigned bytes;
  } cases[] = {
      {{kDLUInt, 2, 1}, "u2", 1},
      {{kDLInt, 4, 1}, "i4", 1},
      {{kDLFloat4_e2m1fn, 4, 1}, "f4e2m1", 1},
      {{kDLFloat6_e3m2fn, 6, 1}, "f6e3m2", 1},
      {{kDLFloat8_e4m3fn, 8, 1}, "f8e4m3fn", 1},
      {{kDLBfloat, 16, 1}, "bf16", 2},
      {{kDLFloat, 64, 1}, "f64", 8},
  };
  for (const auto &each : cases) {
    Choices choices;
    choices.code = each.dtype.code;
    choices.bits = each.dtype.bits;
    const DLDataType found = decode_manifest(encode(choices)).inputs[0].dtype;
    CHECK(dlc_runtime::print_dtype(found) == each.name);
    CHECK(dlc_runtime::element_bytes(found) == each.bytes);
  }
}

void expect(const std::string &bytes, const char *reason) {
  try {
    decode_manifest(bytes);
    CHECK(reason == nullptr);
  } catch (const Failure &failure) {
    CHECK(failure.status == DLC_BAD_ARTIFACT);
    CHECK_HAS(failure.message, reason);
  }
}

template <typename Change>
void expect_change(Change change, const char *reason) {
  Choices choices;
  change(choices);
  expect(encode(choices), reason);
}

void test_contradictions() {
  expect_change([](Choices &c) { c.size_min = -1; }, "bounds of size 'batch'");
  expect_change([](Choices &c) { c.size_max = -2; }, "bounds of size 'batch'");
  expect_change([](Choices &c) { c.size_max = 0; }, "bounds of size 'batch'");
  expect_change([](Choices &c) { c.constant = -3; }, "negative dimension");
  expect_change([](Choices &c) { c.size_index = 1; }, "no such size variable");
  expect_change([](Choices &c) { c.bits = 7; }, "unknown element type");
  expect_change([](Choices &c) { c.code = 9; }, "unknown element type");
  expect_change([](Choices &c) { c.input_kind = 0; }, "no input has size 'batch'");
  expect_change([](Choices &c) { c.input_kind = 2; }, "expression in the shape of an input");
  expect_change([](Choices &c) { c.input_kind = 3; }, "unknown kind of dimension 3");
  expect_change([](Choices &c) { c.second_output = "y"; }, "two tensors named 'y'");
  expect(encode({}) + "x", "does not end where it should");
  expect(Writer().u32(1).text("0.1").text("x86_64").u32(4000000000U).bytes, "does not fit");
  std::string nul = encode({});
  nul[nul.find("avx2")] = '\0';
  expect(nul, "a NUL");
}

void test_every_truncation_is_refused() {
  const std::string whole = encode({});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    expect(whole.substr(0, size), "damaged manifest");
  }
}

void test_random_changes_do_not_crash() {
  std::mt19937 random(7);
  const std::string whole = encode({});
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = whole;
    for (unsigned n = 0; n <= random() % 3; ++n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    try {
      decode_manifest(bytes);
    } catch (const Failure &failure) {
      ++refused;
      CHECK(failure.status == DLC_BAD_ARTIFACT);
    }
  }
  CHECK(refused > 5000);
}

}  // namespace

int main() {
  test_a_whole_manifest();
  test_small_elements_take_a_byte();
  test_contradictions();
  test_every_truncation_is_refused();
  test_random_changes_do_not_crash();
  return check::result();
}

#include "manifest.h"

#include <cstring>
#include <set>

#include "failure.h"

namespace dlc_runtime {
namespace {

constexpr std::size_t kMaxRank = 64;  // NumPy's limit

[[noreturn]] void damaged(const std::string &why) {
  fail(DLC_BAD_ARTIFACT, "damaged manifest: " + why);
}

// Reads from bytes and never past their end.
class Reader {
 public:
  explicit Reader(const std::string &bytes) : bytes_(bytes) {}

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }

  std::string text() {
    const auto size = number<std::uint32_t>();
    const char *start = take(size);
    if (std::memchr(start, 0, size) != nullptr) damaged("a NUL in a text");
    return std::string(start, size);
  }

  // Reads a count and that many items; each takes at least one byte, which bounds the count.
  template <typename Item>
  auto list(Item item) -> std::vector<decltype(item())> {
    const auto count = number<std::uint32_t>();
    if (count > left()) damaged("a list of " + std::to_string(count) + " items does not fit");
    std::vector<decltype(item())> items;
    for (std::uint32_t i = 0; i < count; ++i) items.push_back(item());
    return items;
  }

  std::size_t left() const { return bytes_.size() - at_; }

 private:
  const char *take(std::size_t size) {
    if (size > left()) damaged("it ends too early");
    const char *start = bytes_.data() + at_;
    at_ += size;
    return start;
  }

  const std::string &bytes_;
  std::size_t at_ = 0;
};

SizeVariable read_size(Reader &reader) {
  SizeVariable size{reader.text(), reader.number<std::int64_t>(), reader.number<std::int64_t>()};
  if (size.min < 0 || size.max < -1 || (size.max != -1 && size.max < size.min)) {
    damaged("the bounds of size '" + size.name + "' contradict each other");
  }
  return size;
}

Dim read_dim(Reader &reader, const std::vector<SizeVariable> &sizes) {
  Dim dim;
  switch (const auto kind = reader.number<std::uint8_t>(); kind) {
    case 0:
      dim.constant = reader.number<std::int64_t>();
      dim.text = std::to_string(dim.constant);
      if (dim.constant < 0) damaged("a negative dimension");
      return dim;
    case 1:
      dim.size = reader.number<std::uint32_t>();
      if (static_cast<std::size_t>(dim.size) >= sizes.size()) damaged("no such size variable");
      dim.text = sizes[static_cast<std::size_t>(dim.size)].name;
      return dim;
    case 2:
      dim.text = reader.text();
      return dim;
    default:
      damaged("unknown kind of dimension " + std::to_string(kind));
  }
}

bool is_known(DLDataType dtype) {
  const unsigned bits = dtype.bits;
  switch (dtype.code) {
    case kDLInt:
    case kDLUInt:
      return bits == 2 || bits == 4 || bits == 8 || bits == 16 || bits == 32 || bits == 64;
    case kDLFloat:
      return bits == 16 || bits == 32 || bits == 64;
    case kDLBfloat:
      return bits == 16;
    case kDLOpaqueHandle:
      return bits == 128;
    case kDLBool:
    case kDLFloat8_e4m3fn:
    case kDLFloat8_e4m3fnuz:
    case kDLFloat8_e5m2:
    case kDLFloat8_e5m2fnuz:
    case kDLFloat8_e8m0fnu:
      return bits == 8;
    case kDLFloat6_e2m3fn:
    case kDLFloat6_e3m2fn:
      return bits == 6;
    case kDLFloat4_e2m1fn:
      return bits == 4;
    default:
      return false;
  }
}

TensorSpec read_tensor(Reader &reader, const std::vector<SizeVariable> &sizes) {
  TensorSpec tensor;
  tensor.name = reader.text();
  const auto code = reader.number<std::uint8_t>();
  tensor.dtype = DLDataType{code, reader.number<std::uint8_t>(), 1};
  if (!is_known(tensor.dtype)) damaged("unknown element type of '" + tensor.name + "'");
  tensor.dims = reader.list([&] { return read_dim(reader, sizes); });
  if (tensor.dims.size() > kMaxRank) damaged("too many dimensions of '" + tensor.name + "'");
  return tensor;
}

void check_names(const std::vector<TensorSpec> &tensors) {
  std::set<std::string> names;
  for (const TensorSpec &tensor : tensors) {
    if (!names.insert(tensor.name).second) damaged("two tensors named '" + tensor.name + "'");
  }
}

// Each size is read off the shape of an input: one that no input has would stay unknown.
void check_sizes_are_bound(const Manifest &manifest) {
  std::set<std::int64_t> bound;
  for (const TensorSpec &input : manifest.inputs) {
    for (const Dim &dim : input.dims) {
      if (dim.constant < 0 && dim.size < 0) damaged("an expression in the shape of an input");
      bound.insert(dim.size);
    }
  }
  for (std::size_t i = 0; i < manifest.sizes.size(); ++i) {
    if (bound.count(static_cast<std::int64_t>(i)) == 0) {
      damaged("no input has size '" + manifest.sizes[i].name + "'");
    }
  }
}

}  // namespace

Manifest decode_manifest(const std::string &bytes) {
  Reader reader(bytes);
  Manifest manifest;
  manifest.abi_version = reader.number<std::uint32_t>();
  manifest.dlc_version = reader.text();
  manifest.architecture = reader.text();
  manifest.cpu_features = reader.list([&] { return reader.text(); });
  manifest.sizes = reader.list([&] { return read_size(reader); });
  manifest.inputs = reader.list([&] { return read_tensor(reader, manifest.sizes); });
  manifest.outputs = reader.list([&] { return read_tensor(reader, manifest.sizes); });
  manifest.metadata = reader.text();
  if (reader.left() != 0) damaged("it does not end where it should");
  check_names(manifest.inputs);
  check_names(manifest.outputs);
  check_sizes_are_bound(manifest);
  return manifest;
}

std::string print_dtype(DLDataType dtype) {
  const std::string bits = std::to_string(dtype.bits);
  switch (dtype.code) {
    case kDLBool:
      return dtype.bits == 8 ? "bool" : "?" + bits;
    case kDLInt:
      return "i" + bits;
    case kDLUInt:
      return "u" + bits;
    case kDLFloat:
      return "f" + bits;
    case kDLBfloat:
      return "bf" + bits;
    case kDLOpaqueHandle:
      return dtype.bits == 128 ? "str" : "?" + bits;
    case kDLFloat8_e4m3fn:
      return "f8e4m3fn";
    case kDLFloat8_e4m3fnuz:
      return "f8e4m3fnuz";
    case kDLFloat8_e5m2:
      return "f8e5m2";
    case kDLFloat8_e5m2fnuz:
      return "f8e5m2fnuz";
    case kDLFloat8_e8m0fnu:
      return "f8e8m0";
    case kDLFloat6_e2m3fn:
      return "f6e2m3";
    case kDLFloat6_e3m2fn:
      return "f6e3m2";
    case kDLFloat4_e2m1fn:
      return "f4e2m1";
    default:
      return "?" + bits;
  }
}

unsigned element_bytes(DLDataType dtype) { return dtype.bits < 8U ? 1U : dtype.bits / 8U; }

}  // namespace dlc_runtime

#include "tensor_check.h"

#include <algorithm>
#include <string>

#include "failure.h"

namespace dlc_runtime {
namespace {

// The slow parts, which make texts, stand apart: the checks themselves run on every call.
template <typename Dims>
std::string print_shape(std::size_t rank, Dims dim) {
  std::string text = "(";
  for (std::size_t i = 0; i < rank; ++i) text += (i == 0 ? "" : ", ") + dim(i);
  return text + (rank == 1 ? ",)" : ")");
}

std::string print_declared(const TensorSpec &spec) {
  return print_shape(spec.dims.size(), [&](std::size_t i) { return spec.dims[i].text; });
}

std::string print_dims(std::size_t rank, const std::int64_t *dims) {
  return print_shape(rank, [&](std::size_t i) { return std::to_string(dims[i]); });
}

[[noreturn]] void bad(const char *role, const TensorSpec &spec, const std::string &why) {
  fail(DLC_BAD_TENSOR, std::string(role) + " '" + spec.name + "': " + why);
}

[[noreturn]] void wrong_shape(const char *role, const TensorSpec &spec, const DLTensor &tensor,
                              const std::string &expected) {
  bad(role, spec,
      "expected shape " + expected + ", got " +
          print_dims(static_cast<std::size_t>(tensor.ndim), tensor.shape));
}

void check_dtype(const char *role, const TensorSpec &spec, const DLTensor &tensor) {
  const DLDataType got = tensor.dtype;
  if (got.code != spec.dtype.code || got.bits != spec.dtype.bits || got.lanes != 1) {
    bad(role, spec, "expected " + print_dtype(spec.dtype) + ", got " + print_dtype(got));
  }
  if (tensor.ndim < 0 || (tensor.ndim > 0 && tensor.shape == nullptr)) {
    bad(role, spec, "it has no shape");
  }
}

bool is_dense(const DLTensor &tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t expected = 1;
  for (std::int32_t i = tensor.ndim; i-- > 0;) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

void check_memory(const char *role, const TensorSpec &spec, const DLTensor &tensor, bool for_gpu) {
  if (for_gpu && is_on_gpu(tensor)) {
    if (tensor.device.device_id != 0) bad(role, spec, "it is not on the first GPU");
  } else if (tensor.device.device_type != kDLCPU) {
    bad(role, spec, for_gpu ? "it is neither in CPU memory nor on the GPU" : "it is not in CPU memory");
  }
  if (!is_dense(tensor)) bad(role, spec, "it is not dense and row-major; make a copy of it");
  const auto address = reinterpret_cast<std::uintptr_t>(tensor_data(tensor));
  if (address % std::min(element_bytes(spec.dtype), 8U) != 0) bad(role, spec, "its data is not aligned");
  if (tensor.data != nullptr) return;
  for (std::int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] == 0) return;
  }
  bad(role, spec, "its data is NULL");
}

void check_bounds(const SizeVariable &size, std::int64_t value, const TensorSpec &spec) {
  if (value >= size.min && (size.max == -1 || value <= size.max)) return;
  bad("input", spec,
      "size '" + size.name + "' is " + std::to_string(value) + ", the model was built for " +
          std::to_string(size.min) + " to " +
          (size.max == -1 ? std::string("any") : std::to_string(size.max)));
}

void bind_input(const Manifest &manifest, const TensorSpec &spec, const DLTensor &tensor,
                std::vector<std::int64_t> &sizes) {
  check_dtype("input", spec, tensor);
  const std::size_t rank = spec.dims.size();
  if (static_cast<std::size_t>(tensor.ndim) != rank) {
    wrong_shape("input", spec, tensor, print_declared(spec));
  }
  for (std::size_t i = 0; i < rank; ++i) {
    const Dim &dim = spec.dims[i];
    const std::int64_t got = tensor.shape[i];
    if (dim.constant >= 0) {
      if (got != dim.constant) wrong_shape("input", spec, tensor, print_declared(spec));
      continue;
    }
    const auto index = static_cast<std::size_t>(dim.size);
    if (sizes[index] == kUnknownSize) {
      check_bounds(manifest.sizes[index], got, spec);
      sizes[index] = got;
    } else if (sizes[index] != got) {
      wrong_shape("input", spec, tensor,
                  print_declared(spec) + " with " + dim.text + " = " +
                      std::to_string(sizes[index]));
    }
  }
}

}  // namespace

void bind_inputs(const Manifest &manifest, const DLTensor *inputs,
                 std::vector<std::int64_t> &sizes) {
  sizes.assign(manifest.sizes.size(), kUnknownSize);
  for (std::size_t i = 0; i < manifest.inputs.size(); ++i) {
    bind_input(manifest, manifest.inputs[i], inputs[i], sizes);
  }
}

void check_input_memory(const TensorSpec &spec, const DLTensor &tensor, bool for_gpu) {
  check_memory("input", spec, tensor, for_gpu);
}

void check_output(const TensorSpec &spec, const DLTensor &tensor, const std::int64_t *dims,
                  bool for_gpu) {
  check_dtype("output", spec, tensor);
  const std::size_t rank = spec.dims.size();
  bool fits = static_cast<std::size_t>(tensor.ndim) == rank;
  for (std::size_t i = 0; fits && i < rank; ++i) fits = tensor.shape[i] == dims[i];
  if (!fits) wrong_shape("output", spec, tensor, print_dims(rank, dims));
  check_memory("output", spec, tensor, for_gpu);
}

std::int64_t tensor_bytes(const TensorSpec &spec, const std::int64_t *dims) {
  const std::size_t rank = spec.dims.size();
  std::int64_t bytes = element_bytes(spec.dtype);
  bool fits = true;
  bool empty = false;
  for (std::size_t i = 0; i < rank; ++i) {
    empty = empty || dims[i] == 0;
    if (dims[i] < 0) bad("output", spec, "impossible shape " + print_dims(rank, dims));
    if (__builtin_mul_overflow(bytes, dims[i], &bytes)) fits = empty;
  }
  if (!fits) {
    fail(DLC_NO_MEMORY, "output '" + spec.name + "' of the shape " + print_dims(rank, dims));
  }
  return empty ? 0 : bytes;
}

}  // namespace dlc_runtime

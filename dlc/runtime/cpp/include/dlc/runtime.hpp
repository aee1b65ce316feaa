// dlc runtime for C++17: a header over the C interface (runtime.h), with ownership and exceptions.
//
//   const dlc::Model model = dlc::Model::load("model.so");   // shared by all threads
//   dlc::Context context = model.context();                  // one for each thread
//   std::vector<float> image(3 * 224 * 224), scores(1000);
//   context.run({dlc::view(image, {1, 3, 224, 224})}, {dlc::view(scores, {1, 1000})});
#ifndef DLC_RUNTIME_HPP
#define DLC_RUNTIME_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dlc/runtime.h"

namespace dlc {

// What a call of the C interface reported.
class Error : public std::runtime_error {
 public:
  Error(dlc_status status, const std::string &message)
      : std::runtime_error(message), status_(status) {}
  dlc_status status() const noexcept { return status_; }

 private:
  dlc_status status_;
};

inline void check(dlc_status status) {
  if (status != DLC_OK) throw Error(status, dlc_last_error());
}

// The DLPack type of a C++ type. float16 and bfloat16 have none: use Tensor's constructor.
template <typename T>
constexpr DLDataType dtype_of() {
  static_assert(std::is_arithmetic_v<T>, "an element is a number or a bool");
  constexpr auto bits = static_cast<std::uint8_t>(8 * sizeof(T));
  if constexpr (std::is_same_v<T, bool>) return {kDLBool, bits, 1};
  if constexpr (std::is_floating_point_v<T>) return {kDLFloat, bits, 1};
  if constexpr (std::is_signed_v<T>) return {kDLInt, bits, 1};
  return {kDLUInt, bits, 1};
}

// A shape and a type over memory that somebody else owns and keeps alive.
class Tensor {
 public:
  Tensor(void *data, DLDataType dtype, std::vector<std::int64_t> shape)
      : data_(data), dtype_(dtype), shape_(std::move(shape)) {}

  void *data() const noexcept { return data_; }
  DLDataType dtype() const noexcept { return dtype_; }
  const std::vector<std::int64_t> &shape() const noexcept { return shape_; }
  std::size_t size() const noexcept {
    std::size_t elements = 1;
    for (const std::int64_t dim : shape_) elements *= static_cast<std::size_t>(dim);
    return elements;
  }
  // The elements; throws Error where they are of another type.
  template <typename T>
  T *as() const {
    constexpr DLDataType wanted = dtype_of<std::remove_const_t<T>>();
    if (wanted.code != dtype_.code || wanted.bits != dtype_.bits) {
      throw Error(DLC_BAD_TENSOR, "the tensor has another element type");
    }
    return static_cast<T *>(data_);
  }
  // Valid while this tensor is.
  DLTensor dlpack() const noexcept {
    return {data_, {kDLCPU, 0}, static_cast<std::int32_t>(shape_.size()), dtype_,
            const_cast<std::int64_t *>(shape_.data()), nullptr, 0};
  }

 private:
  void *data_;
  DLDataType dtype_;
  std::vector<std::int64_t> shape_;
};

// A tensor over a container such as std::vector<float>. Throws Error where the sizes differ.
template <typename Container>
Tensor view(Container &container, std::vector<std::int64_t> shape) {
  using Element = std::remove_const_t<std::remove_pointer_t<decltype(std::data(container))>>;
  // A model never writes to its inputs, so a const container may be one.
  Tensor tensor(const_cast<Element *>(std::data(container)), dtype_of<Element>(),
                std::move(shape));
  if (tensor.size() != std::size(container)) {
    throw Error(DLC_BAD_TENSOR, "the shape has " + std::to_string(tensor.size()) +
                                    " elements, the container " +
                                    std::to_string(std::size(container)));
  }
  return tensor;
}

// An input or output as the model declares it.
struct TensorSpec {
  std::string name;
  DLDataType dtype;
  std::vector<std::string> shape;       // "3", "batch", "(h + 1) // 2"
  std::vector<std::int64_t> constants;  // -1 where the size is not constant
};

// The memory of a run. Movable; for one thread at a time.
class Context {
 public:
  explicit Context(const dlc_module *module)
      : outputs_(dlc_module_output_count(module)), inputs_(dlc_module_input_count(module)) {
    dlc_context *context = nullptr;
    check(dlc_context_create(module, &context));
    handle_.reset(context);
  }

  // Runs the model into memory of the caller. Tensors are in the model's order.
  void run(const std::vector<Tensor> &inputs, const std::vector<Tensor> &outputs) {
    set(inputs_, inputs, "inputs");
    set(outputs_, outputs, "outputs");
    check(dlc_run(handle_.get(), inputs_.data(), outputs_.data()));
  }

  // Runs the model into memory of the context, valid until its next run or its end.
  std::vector<Tensor> run(const std::vector<Tensor> &inputs) {
    set(inputs_, inputs, "inputs");
    for (DLTensor &output : outputs_) output = DLTensor{};
    check(dlc_run(handle_.get(), inputs_.data(), outputs_.data()));
    std::vector<Tensor> results;
    for (const DLTensor &output : outputs_) {
      results.emplace_back(output.data, output.dtype,
                           std::vector<std::int64_t>(output.shape, output.shape + output.ndim));
    }
    return results;
  }

  // Shapes of the outputs for inputs of these shapes.
  std::vector<std::vector<std::int64_t>> output_shapes(const std::vector<Tensor> &inputs) {
    set(inputs_, inputs, "inputs");
    check(dlc_context_plan(handle_.get(), inputs_.data()));
    std::vector<std::vector<std::int64_t>> shapes;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      std::int32_t rank = 0;
      const std::int64_t *dims = nullptr;
      check(dlc_context_output_shape(handle_.get(), i, &rank, &dims));
      shapes.emplace_back(dims, dims + rank);
    }
    return shapes;
  }

 private:
  static void set(std::vector<DLTensor> &to, const std::vector<Tensor> &from, const char *what) {
    if (to.size() != from.size()) {
      throw Error(DLC_INVALID_ARGUMENT, "the model has " + std::to_string(to.size()) + " " + what +
                                            ", got " + std::to_string(from.size()));
    }
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = from[i].dlpack();
  }

  struct Free {
    void operator()(dlc_context *context) const noexcept { dlc_context_free(context); }
  };
  std::unique_ptr<dlc_context, Free> handle_;
  std::vector<DLTensor> outputs_, inputs_;
};

// A loaded model. Immutable; copies share it; for any number of threads.
class Model {
 public:
  static Model load(const std::string &path, std::uint32_t flags = DLC_VERIFY_FULL) {
    dlc_module *module = nullptr;
    check(dlc_module_load(path.c_str(), flags, &module));
    return Model(module);
  }
  static Model load(const void *data, std::size_t size, std::uint32_t flags = DLC_VERIFY_FULL) {
    dlc_module *module = nullptr;
    check(dlc_module_load_bytes(data, size, flags, &module));
    return Model(module);
  }

  Context context() const { return Context(handle_.get()); }
  std::vector<TensorSpec> inputs() const {
    return specs(dlc_module_input_count(handle_.get()), dlc_module_input);
  }
  std::vector<TensorSpec> outputs() const {
    return specs(dlc_module_output_count(handle_.get()), dlc_module_output);
  }
  // JSON text.
  std::string metadata() const { return dlc_module_metadata(handle_.get()); }
  const dlc_module *handle() const noexcept { return handle_.get(); }

 private:
  explicit Model(dlc_module *module) : handle_(module, dlc_module_free) {}

  template <typename Get>
  std::vector<TensorSpec> specs(std::size_t count, Get get) const {
    std::vector<TensorSpec> result;
    for (std::size_t i = 0; i < count; ++i) {
      dlc_tensor_info info{};
      check(get(handle_.get(), i, &info));
      TensorSpec spec{info.name, info.dtype, {}, {}};
      for (std::int32_t d = 0; d < info.ndim; ++d) {
        spec.shape.emplace_back(info.dims[d].text);
        spec.constants.push_back(info.dims[d].value);
      }
      result.push_back(std::move(spec));
    }
    return result;
  }

  std::shared_ptr<dlc_module> handle_;
};

}  // namespace dlc
#endif  // DLC_RUNTIME_HPP

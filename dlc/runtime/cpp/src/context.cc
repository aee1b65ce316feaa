#include "context.h"

#include <algorithm>
#include <new>
#include <utility>

#include "failure.h"
#include "float_environment.h"
#include "host.h"
#include "tensor_check.h"

namespace dlc_runtime {

Context::Context(std::shared_ptr<const Module> module)
    : module_(std::move(module)),
      input_data_(module_->inputs().size()),
      output_data_(module_->outputs().size()),
      own_outputs_(module_->outputs().size()) {
  std::size_t dims = 0;
  for (const TensorSpec &output : module_->manifest().outputs) {
    first_dim_.push_back(dims);
    dims += output.dims.size();
  }
  output_dims_.resize(dims);
  if (module_->has_texts()) texts_ = std::make_unique<Texts>();
  late_outputs_.resize(output_data_.size());
}

void Context::plan(const DLTensor *inputs) {
  bind_inputs(module_->manifest(), inputs, sizes_);
  if (planned_ && sizes_ == planned_sizes_) {
    for (const std::size_t at : late_dims_) output_dims_[at] = kUnknownSize;
    return;
  }
  planned_ = false;
  const DefaultFloatEnvironment environment;
  const Host host(false);
  const std::int32_t status =
      module_->code().plan(host.interface(), sizes_.data(), output_dims_.data(), &arena_bytes_);
  if (status != 0) {
    const bool is_limit = host.cause(status) == DLC_NO_MEMORY;
    fail(is_limit ? DLC_NO_MEMORY : DLC_BAD_TENSOR, host.failure());
  }
  const auto &outputs = module_->manifest().outputs;
  late_dims_.clear();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::size_t before = late_dims_.size();
    for (std::size_t axis = 0; axis < outputs[i].dims.size(); ++axis) {
      const std::size_t at = first_dim_[i] + axis;
      if (output_dims_[at] == kUnknownSize) late_dims_.push_back(at);
    }
    late_outputs_[i] = late_dims_.size() > before;
    if (!late_outputs_[i]) tensor_bytes(outputs[i], output_dims(i));
  }
  if (arena_bytes_ < 0) fail(DLC_INTERNAL, "the model asks for an arena of negative size");
  planned_sizes_ = sizes_;
  planned_ = true;
}

void Context::place_output(std::size_t index, DLTensor &tensor) {
  const TensorSpec &spec = module_->manifest().outputs[index];
  std::int64_t *dims = output_dims_.data() + first_dim_[index];
  if (tensor.data != nullptr) {
    check_output(spec, tensor, dims, module_->is_for_gpu());
  } else {
    const std::int64_t bytes = tensor_bytes(spec, dims);
    tensor = DLTensor{output_memory(index, bytes > 0 ? bytes : 1),
                      DLDevice{kDLCPU, 0},
                      static_cast<std::int32_t>(spec.dims.size()),
                      spec.dtype,
                      dims,
                      nullptr,
                      0};
    if (output_memory_ != nullptr) check_output(spec, tensor, dims, module_->is_for_gpu());
  }
  output_data_[index] = tensor_data(tensor);
}

void *Context::output_memory(std::size_t index, std::int64_t bytes) {
  if (output_memory_ == nullptr) return own_outputs_[index].at_least(bytes);
  void *memory = output_memory_(output_user_, index, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void *Context::place(std::size_t index, const std::int64_t *dims) {
  const std::size_t rank = module_->manifest().outputs[index].dims.size();
  std::copy_n(dims, rank, output_dims_.begin() + static_cast<std::ptrdiff_t>(first_dim_[index]));
  place_output(index, outputs_[index]);
  return output_data_[index];
}

void Context::run(const DLTensor *inputs, DLTensor *outputs) {
  run_code(module_->code(), inputs, outputs, nullptr);
}

const std::vector<dlc_step> &Context::profile(const DLTensor *inputs, DLTensor *outputs) {
  const dlc_model *code = module_->profiling_code();
  if (code == nullptr) fail(DLC_INCOMPATIBLE, "the model was built without a report of its steps");
  steps_.clear();
  run_code(*code, inputs, outputs, &steps_);
  return steps_;
}

void Context::run_code(const dlc_model &code, const DLTensor *inputs, DLTensor *outputs,
                       std::vector<dlc_step> *steps) {
  plan(inputs);
  const auto &specs = module_->manifest().inputs;
  if (module_->is_for_gpu()) {
    if (steps != nullptr) fail(DLC_INCOMPATIBLE, "steps on a GPU are not timed yet");
    run_on_gpu(inputs, outputs, nullptr);
    return;
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    check_input_memory(specs[i], inputs[i]);
    input_data_[i] = tensor_data(inputs[i]);
  }
  outputs_ = outputs;
  for (std::size_t i = 0; i < output_data_.size(); ++i) {
    output_data_[i] = nullptr;
    if (!late_outputs_[i]) place_output(i, outputs[i]);
  }
  void *arena = arena_.at_least(arena_bytes_ > 0 ? arena_bytes_ : 1);
  const DefaultFloatEnvironment environment;
  if (texts_ != nullptr) texts_->clear();
  const Host host(expects_loops_, &blocks_, this, steps, texts_.get());
  const std::int32_t status = code.run(host.interface(), sizes_.data(), input_data_.data(),
                                       output_data_.data(), arena);
  expects_loops_ = host.used_loops();
  if (status != 0 || host.failed()) fail(host.cause(status), host.failure());
}

void Context::run_in_stream(const DLTensor *inputs, DLTensor *outputs, void *stream) {
  if (!module_->is_for_gpu()) {
    fail(DLC_INVALID_ARGUMENT, "the model runs on the CPU, which has no streams");
  }
  plan(inputs);
  run_on_gpu(inputs, outputs, &stream);
}

// An output that has a place, for a run on a GPU.
GpuTensor Context::on_gpu(std::size_t index, const DLTensor &tensor) const {
  const TensorSpec &spec = module_->manifest().outputs[index];
  return {output_data_[index], tensor_bytes(spec, output_dims(index)), is_on_gpu(tensor)};
}

void Context::run_on_gpu(const DLTensor *inputs, DLTensor *outputs, void *const *stream) {
  if (gpu_ == nullptr) gpu_ = std::make_unique<GpuRun>(module_->gpu());
  std::vector<GpuTensor> in, out;
  const auto &specs = module_->manifest().inputs;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    check_input_memory(specs[i], inputs[i], true);
    in.push_back({const_cast<void *>(tensor_data(inputs[i])),
                  tensor_bytes(specs[i], inputs[i].shape), is_on_gpu(inputs[i])});
  }
  for (std::size_t i = 0; i < output_data_.size(); ++i) {
    if (late_outputs_[i]) {
      out.push_back({nullptr, -1, false});
    } else {
      place_output(i, outputs[i]);
      out.push_back(on_gpu(i, outputs[i]));
    }
  }
  outputs_ = outputs;
  const LatePlace late = [this](std::size_t index, const std::int64_t *dims) {
    place(index, dims);
    return on_gpu(index, outputs_[index]);
  };
  const CuStream given = stream != nullptr ? static_cast<CuStream>(*stream) : gpu_->own_stream();
  gpu_->run(sizes_, arena_bytes_, in, out, late, given, stream == nullptr);
}

namespace {

// Claims a context for one call; a second thread in the same context would corrupt it silently.
class Claim {
 public:
  explicit Claim(dlc_context *context) : context_(context) {
    if (context_->in_use.exchange(true, std::memory_order_acquire)) {
      fail(DLC_INVALID_ARGUMENT, "another thread is using this context; make one for each thread");
    }
  }
  ~Claim() { context_->in_use.store(false, std::memory_order_release); }
  Claim(const Claim &) = delete;
  Claim &operator=(const Claim &) = delete;

 private:
  dlc_context *context_;
};

void check_inputs(const dlc_context *context, const DLTensor *inputs) {
  if (context == nullptr) fail(DLC_INVALID_ARGUMENT, "context is NULL");
  if (inputs == nullptr && !context->context.module().inputs().empty()) {
    fail(DLC_INVALID_ARGUMENT, "inputs is NULL");
  }
}

void check_arrays(const dlc_context *context, const DLTensor *inputs, const DLTensor *outputs) {
  check_inputs(context, inputs);
  if (outputs == nullptr && !context->context.module().outputs().empty()) {
    fail(DLC_INVALID_ARGUMENT, "outputs is NULL");
  }
}

}  // namespace
}  // namespace dlc_runtime

using dlc_runtime::fail;
using dlc_runtime::guarded;

dlc_status dlc_context_create(const dlc_module *module, dlc_context **out) {
  return guarded([&] {
    if (module == nullptr || out == nullptr) fail(DLC_INVALID_ARGUMENT, "an argument is NULL");
    *out = new dlc_context(module->shared);
  });
}

void dlc_context_free(dlc_context *context) { delete context; }

dlc_status dlc_context_plan(dlc_context *context, const DLTensor *inputs) {
  return guarded([&] {
    dlc_runtime::check_inputs(context, inputs);
    const dlc_runtime::Claim claim(context);
    context->context.plan(inputs);
  });
}

dlc_status dlc_context_output_shape(const dlc_context *context, size_t index, int32_t *ndim,
                                    const int64_t **dims) {
  return guarded([&] {
    if (context == nullptr || ndim == nullptr || dims == nullptr) {
      fail(DLC_INVALID_ARGUMENT, "an argument is NULL");
    }
    const dlc_runtime::Context &inner = context->context;
    if (!inner.planned()) fail(DLC_INVALID_ARGUMENT, "plan or run the context first");
    if (index >= inner.module().outputs().size()) fail(DLC_INVALID_ARGUMENT, "no such output");
    *ndim = inner.module().outputs()[index].info.ndim;
    *dims = inner.output_dims(index);
  });
}

dlc_status dlc_run(dlc_context *context, const DLTensor *inputs, DLTensor *outputs) {
  return guarded([&] {
    dlc_runtime::check_arrays(context, inputs, outputs);
    const dlc_runtime::Claim claim(context);
    context->context.run(inputs, outputs);
  });
}

dlc_status dlc_context_set_output_memory(dlc_context *context, dlc_output_memory memory,
                                         void *user) {
  return guarded([&] {
    if (context == nullptr) fail(DLC_INVALID_ARGUMENT, "context is NULL");
    const dlc_runtime::Claim claim(context);
    context->context.set_output_memory(memory, user);
  });
}

dlc_status dlc_run_in_stream(dlc_context *context, const DLTensor *inputs, DLTensor *outputs,
                             void *stream) {
  return guarded([&] {
    dlc_runtime::check_arrays(context, inputs, outputs);
    const dlc_runtime::Claim claim(context);
    context->context.run_in_stream(inputs, outputs, stream);
  });
}

dlc_status dlc_gpu_memory_create(const dlc_module *module, size_t bytes, dlc_gpu_memory **out) {
  return guarded([&] {
    if (module == nullptr || out == nullptr) fail(DLC_INVALID_ARGUMENT, "an argument is NULL");
    auto code = module->shared->gpu();
    if (code == nullptr) fail(DLC_INVALID_ARGUMENT, "the model runs on the CPU");
    auto block = std::make_unique<dlc_runtime::GpuBlock>(std::move(code),
                                                         static_cast<std::int64_t>(bytes));
    *out = new dlc_gpu_memory{std::move(block)};
  });
}

void dlc_gpu_memory_free(dlc_gpu_memory *memory) { delete memory; }

void *dlc_gpu_memory_data(const dlc_gpu_memory *memory) { return memory->block->data(); }

dlc_status dlc_gpu_memory_read(const dlc_gpu_memory *memory, void *to, size_t bytes, void *stream) {
  return guarded([&] {
    if (memory == nullptr || to == nullptr) fail(DLC_INVALID_ARGUMENT, "an argument is NULL");
    memory->block->read(to, static_cast<std::int64_t>(bytes),
                        static_cast<dlc_runtime::CuStream>(stream));
  });
}

dlc_status dlc_profile(dlc_context *context, const DLTensor *inputs, DLTensor *outputs,
                       const dlc_step **steps, size_t *count) {
  return guarded([&] {
    dlc_runtime::check_arrays(context, inputs, outputs);
    if (steps == nullptr || count == nullptr) fail(DLC_INVALID_ARGUMENT, "an argument is NULL");
    const dlc_runtime::Claim claim(context);
    const auto &found = context->context.profile(inputs, outputs);
    *steps = found.data();
    *count = found.size();
  });
}

// The Python extension `dlc.runtime._runtime`: thin, and over the C interface only.
//
// Arrays come in ready: C-contiguous, aligned, with the very dtype objects given to `Runner`. For
// any other value `run` returns None, and the Python face converts it or says what is wrong.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "dlc/runtime.h"
#include "gpu_array.h"
#include "output_memory.h"

namespace py = pybind11;

namespace {

using dlc_python::check;
using dlc_python::GpuArray;
using dlc_python::keep_output;
using dlc_python::make_output;
using dlc_python::ManagedTensor;
using dlc_python::SpareBlocks;
using dlc_python::StatusError;

struct FreeModule {
  void operator()(dlc_module *module) const noexcept { dlc_module_free(module); }
};
struct FreeContext {
  void operator()(dlc_context *context) const noexcept { dlc_context_free(context); }
};
using ModuleHandle = std::unique_ptr<dlc_module, FreeModule>;
using ContextHandle = std::unique_ptr<dlc_context, FreeContext>;

struct Module {
  ModuleHandle handle;
};

Module load_path(const std::string &path, std::uint32_t flags) {
  dlc_module *module = nullptr;
  const py::gil_scoped_release released;
  check(dlc_module_load(path.c_str(), flags, &module));
  return {ModuleHandle(module)};
}

Module load_bytes(const py::bytes &data, std::uint32_t flags) {
  const std::string_view view = data;
  dlc_module *module = nullptr;
  const py::gil_scoped_release released;
  check(dlc_module_load_bytes(view.data(), view.size(), flags, &module));
  return {ModuleHandle(module)};
}

py::bytes manifest_of(const Module &module) {
  std::size_t size = 0;
  const void *data = dlc_module_manifest(module.handle.get(), &size);
  return py::bytes(static_cast<const char *>(data), size);
}

std::uint64_t hash_file(const std::string &path) {
  std::uint64_t hash = 0;
  const py::gil_scoped_release released;
  check(dlc_hash_file(path.c_str(), &hash));
  return hash;
}

using Get = dlc_status (*)(const dlc_module *, std::size_t, dlc_tensor_info *);

// The inputs or the outputs of a model: their element types, for DLPack and for NumPy.
struct Signature {
  std::vector<DLDataType> types;
  std::vector<py::dtype> dtypes;

  Signature(const dlc_module *module, Get get, const py::list &given) {
    for (std::size_t i = 0; i < given.size(); ++i) {
      dlc_tensor_info info{};
      check(get(module, i, &info));
      types.push_back(info.dtype);
      dtypes.push_back(py::reinterpret_borrow<py::dtype>(given[i]));
    }
  }

  std::size_t size() const { return types.size(); }
  bool is_text(std::size_t i) const { return types[i].code == kDLOpaqueHandle; }

  // A view of a ready array; false for any other object.
  bool view(std::size_t i, py::handle object, DLTensor *out) const {
    constexpr int kReady = py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ |
                           py::detail::npy_api::NPY_ARRAY_ALIGNED_;
    if (PyCapsule_IsValid(object.ptr(), "dltensor") != 0) {  // borrowed: the capsule keeps it
      *out = static_cast<ManagedTensor *>(PyCapsule_GetPointer(object.ptr(), "dltensor"))->tensor;
      return true;
    }
    if (!py::isinstance<py::array>(object)) return false;
    const auto *array = py::detail::array_proxy(object.ptr());
    if (array->descr != dtypes[i].ptr() || (array->flags & kReady) != kReady) return false;
    // NumPy's sizes are Py_ssize_t, which is int64_t here; the runtime does not write to them.
    static_assert(sizeof(py::ssize_t) == sizeof(std::int64_t));
    *out = DLTensor{array->data, {kDLCPU, 0}, array->nd, types[i],
                    reinterpret_cast<std::int64_t *>(array->dimensions), nullptr, 0};
    return true;
  }
};

bool is_writeable(py::handle array) {
  return (py::detail::array_proxy(array.ptr())->flags &
          py::detail::npy_api::NPY_ARRAY_WRITEABLE_) != 0;
}

// Inputs and outputs that stay the same from run to run.
class Bound {
 public:
  Bound(ContextHandle context, py::tuple inputs, py::tuple outputs, std::vector<DLTensor> in,
        std::vector<DLTensor> out)
      : context_(std::move(context)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        in_(std::move(in)),
        out_(std::move(out)) {}

  void run() {
    const py::gil_scoped_release released;
    check(dlc_run(context_.get(), in_.data(), out_.data()));
  }
  // (step, nanoseconds, operations, bytes) of each step of one run.
  std::vector<std::array<std::int64_t, 4>> profile() {
    const dlc_step *steps = nullptr;
    std::size_t count = 0;
    {
      const py::gil_scoped_release released;
      check(dlc_profile(context_.get(), in_.data(), out_.data(), &steps, &count));
    }
    std::vector<std::array<std::int64_t, 4>> found;
    for (std::size_t i = 0; i < count; ++i) {
      found.push_back({steps[i].step, steps[i].time_ns, steps[i].operations, steps[i].bytes});
    }
    return found;
  }
  py::tuple inputs() const { return inputs_; }
  py::tuple outputs() const { return outputs_; }

 private:
  ContextHandle context_;
  py::tuple inputs_, outputs_;  // keep the memory alive
  std::vector<DLTensor> in_, out_;
};

// Memory of the outputs whose shape only a run can tell, which grows as the run asks for it.
struct LateOutputs {
  std::vector<dlc_runtime::AlignedMemory> blocks;  // one for each output, or none at all

  // While this lives, the context asks for it.
  class Asked {
   public:
    Asked(LateOutputs &late, dlc_context *context)
        : context_(late.blocks.empty() ? nullptr : context) {
      if (context_ != nullptr) check(dlc_context_set_output_memory(context_, memory, &late));
    }
    ~Asked() {
      if (context_ != nullptr) dlc_context_set_output_memory(context_, nullptr, nullptr);
    }
    Asked(const Asked &) = delete;
    Asked &operator=(const Asked &) = delete;

   private:
    static void *memory(void *user, std::size_t index, std::int64_t bytes) {
      try {
        return static_cast<LateOutputs *>(user)->blocks[index].at_least(bytes);
      } catch (const std::bad_alloc &) {
        return nullptr;
      }
    }
    dlc_context *context_;
  };
};

// Runs a module from any number of threads: each call borrows a context.
class Runner {
 public:
  Runner(const Module &module, const py::list &input_dtypes, const py::list &output_dtypes)
      : module_(module.handle.get()),
        inputs_(module_, dlc_module_input, input_dtypes),
        outputs_(module_, dlc_module_output, output_dtypes),
        late_bytes_(outputs_.size()) {}

  py::object run(const py::tuple &arrays) {
    std::vector<DLTensor> in(inputs_.size());
    if (!view_inputs(arrays, in)) return py::none();
    ContextHandle context = borrow();
    py::tuple results;
    try {
      results = allocate(*context, in);
      std::vector<DLTensor> out(outputs_.size());
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (!results[i].is_none()) outputs_.view(i, results[i], &out[i]);
      }
      LateOutputs late = expect_late(results);
      {
        const py::gil_scoped_release released;
        const LateOutputs::Asked asked(late, context.get());
        check(dlc_run(context.get(), in.data(), out.data()));
      }
      take_late(results, out, late);
      take_texts(results, out);
    } catch (...) {
      give_back(std::move(context));
      throw;
    }
    give_back(std::move(context));
    return std::move(results);
  }

  // Runs in a stream of the GPU; outputs that are None are made there. Returns None where an array
  // is not ready.
  py::object run_in_stream(const py::tuple &arrays, const py::tuple &targets,
                           std::uintptr_t stream) {
    std::vector<DLTensor> in(inputs_.size()), out(outputs_.size());
    if (!view_inputs(arrays, in) || targets.size() != out.size()) return py::none();
    ContextHandle context = borrow();
    py::tuple results(out.size());
    check(dlc_context_plan(context.get(), in.data()));
    const auto shapes = shapes_of(*context);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (!targets[i].is_none()) {
        if (!outputs_.view(i, targets[i], &out[i])) return py::none();
        results[i] = targets[i];
        continue;
      }
      if (std::count(shapes[i].begin(), shapes[i].end(), -1) != 0) {
        throw StatusError{DLC_INVALID_ARGUMENT,
                          "the shape of an output depends on the data; it is not made on the GPU"};
      }
      GpuArray made(module_, outputs_.types[i], outputs_.dtypes[i],
                    {shapes[i].begin(), shapes[i].end()}, stream);
      out[i] = made.tensor();
      results[i] = py::cast(std::move(made));
    }
    {
      const py::gil_scoped_release released;
      check(dlc_run_in_stream(context.get(), in.data(), out.data(),
                              reinterpret_cast<void *>(stream)));
    }
    give_back(std::move(context));
    return std::move(results);
  }

  // `outputs` may be None: they are allocated. Returns None where an array is not ready.
  std::unique_ptr<Bound> bind(const py::tuple &inputs, const py::object &outputs) {
    std::vector<DLTensor> in(inputs_.size()), out(outputs_.size());
    if (!view_inputs(inputs, in)) return nullptr;
    ContextHandle context = make_context();
    const py::tuple results = outputs.is_none() ? allocate(*context, in) : py::tuple(outputs);
    if (results.size() != outputs_.size()) return nullptr;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_.is_text(i)) {
        throw StatusError{DLC_INVALID_ARGUMENT, "an output is a text; outputs cannot be bound"};
      }
      if (results[i].is_none()) {
        throw StatusError{DLC_INVALID_ARGUMENT,
                          "the shape of an output depends on the data; outputs cannot be bound"};
      }
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (!outputs_.view(i, results[i], &out[i]) || !is_writeable(results[i])) return nullptr;
    }
    return std::make_unique<Bound>(std::move(context), inputs, results, std::move(in),
                                   std::move(out));
  }

  // Shapes of the outputs; None where an input is not ready.
  py::object output_shapes(const py::tuple &arrays) {
    std::vector<DLTensor> in(inputs_.size());
    if (!view_inputs(arrays, in)) return py::none();
    const ContextHandle context = make_context();
    check(dlc_context_plan(context.get(), in.data()));
    return py::cast(shapes_of(*context));
  }

 private:
  bool view_inputs(const py::tuple &arrays, std::vector<DLTensor> &in) const {
    if (arrays.size() != in.size()) return false;
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (!inputs_.view(i, PyTuple_GET_ITEM(arrays.ptr(), static_cast<py::ssize_t>(i)), &in[i])) {
        return false;
      }
    }
    return true;
  }

  std::vector<std::vector<py::ssize_t>> shapes_of(const dlc_context &context) const {
    std::vector<std::vector<py::ssize_t>> shapes;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      std::int32_t rank = 0;
      const std::int64_t *dims = nullptr;
      check(dlc_context_output_shape(&context, i, &rank, &dims));
      shapes.emplace_back(dims, dims + rank);
    }
    return shapes;
  }

  // None stands for an output whose shape only the run can tell.
  py::tuple allocate(dlc_context &context, const std::vector<DLTensor> &in) const {
    check(dlc_context_plan(&context, in.data()));
    const auto shapes = shapes_of(context);
    py::tuple results(shapes.size());
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const bool late = std::count(shapes[i].begin(), shapes[i].end(), -1) != 0;
      if (late) {
        results[i] = py::none();
      } else {
        results[i] = make_output(spare_, outputs_.dtypes[i], shapes[i]);
      }
    }
    return results;
  }

  // Memory for the outputs whose shape only the run can tell: enough for the largest of late.
  LateOutputs expect_late(const py::tuple &results) {
    LateOutputs late;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!results[i].is_none()) continue;
      std::int64_t bytes = 0;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        bytes = late_bytes_[i];
      }
      late.blocks.resize(results.size());
      late.blocks[i] = spare_->take(bytes);
    }
    return late;
  }

  void take_late(py::tuple &results, const std::vector<DLTensor> &out, LateOutputs &late) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (!results[i].is_none()) continue;
      const std::vector<py::ssize_t> shape(out[i].shape, out[i].shape + out[i].ndim);
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        std::int64_t &most = late_bytes_[i];
        most = std::max(most - most / 8, dlc_python::bytes_of(outputs_.dtypes[i], shape));
      }
      results[i] = keep_output(spare_, std::move(late.blocks[i]), outputs_.dtypes[i], shape);
    }
  }

  // Texts as Python's own: what they point to is the context's.
  void take_texts(py::tuple &results, const std::vector<DLTensor> &out) const {
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (!outputs_.is_text(i)) continue;
      const std::vector<py::ssize_t> shape(out[i].shape, out[i].shape + out[i].ndim);
      const py::array pointers = results[i];
      const auto *texts = static_cast<const dlc_text *>(pointers.data());
      py::array array(py::dtype("O"), shape);
      auto *objects = static_cast<PyObject **>(array.mutable_data());
      for (py::ssize_t k = 0; k < array.size(); ++k) {
        PyObject *text = PyUnicode_DecodeUTF8(texts[k].data,
                                              static_cast<py::ssize_t>(texts[k].bytes),
                                              "surrogateescape");
        if (text == nullptr) throw py::error_already_set();
        Py_XSETREF(objects[k], text);
      }
      results[i] = std::move(array);
    }
  }

  ContextHandle make_context() const {
    dlc_context *context = nullptr;
    check(dlc_context_create(module_, &context));
    return ContextHandle(context);
  }

  // The lock is held only while Python's own lock is: os.fork, which needs that one, cannot find
  // it taken.
  ContextHandle borrow() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        ContextHandle context = std::move(free_.back());
        free_.pop_back();
        return context;
      }
    }
    spare_->keep_more(outputs_.size());
    return make_context();
  }

  void give_back(ContextHandle context) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.size() < kKept) free_.push_back(std::move(context));
  }

  static constexpr std::size_t kKept = 64;  // idle contexts; each keeps its arena

  const dlc_module *module_;
  const Signature inputs_, outputs_;
  std::mutex mutex_;
  // What outputs whose shape only a run can tell needed at most, of late.
  std::vector<std::int64_t> late_bytes_;
  std::vector<ContextHandle> free_;
  const std::shared_ptr<SpareBlocks> spare_ =
      std::make_shared<SpareBlocks>(kKept * outputs_.size());
};

}  // namespace

PYBIND11_MODULE(_runtime, m, py::mod_gil_not_used()) {
  m.doc() = "The C interface of the runtime. Use `dlc.runtime`.";

  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> failure;
  failure.call_once_and_store_result([&m]() -> py::object {
    return py::exception<StatusError>(m, "StatusError");
  });
  m.attr("StatusError") = failure.get_stored();
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const StatusError &error) {
      const py::tuple args = py::make_tuple(dlc_status_name(error.status),
                                            py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
                                                error.message.data(),
                                                static_cast<py::ssize_t>(error.message.size()),
                                                "replace")));
      PyErr_SetObject(failure.get_stored().ptr(), args.ptr());
    }
  });

  py::class_<Module>(m, "Module")
      .def("manifest", &manifest_of)
      .def("file", [](const Module &self) { return dlc_module_file(self.handle.get()); });
  py::class_<Runner>(m, "Runner")
      .def(py::init<const Module &, const py::list &, const py::list &>(),
           py::keep_alive<1, 2>())
      .def("run", &Runner::run)
      .def("run_in_stream", &Runner::run_in_stream)
      .def("bind", &Runner::bind)
      .def("output_shapes", &Runner::output_shapes);
  py::class_<GpuArray>(m, "GpuArray")
      .def_property_readonly("shape", &GpuArray::shape)
      .def_property_readonly("dtype", &GpuArray::dtype)
      .def("numpy", &GpuArray::numpy)
      .def("__dlpack__", &GpuArray::dlpack, py::kw_only(), py::arg("stream") = py::none())
      .def("__dlpack_device__",
           [](const GpuArray &) { return py::make_tuple(static_cast<int>(kDLCUDA), 0); });
  py::class_<Bound>(m, "Bound")
      .def("run", &Bound::run)
      .def("profile", &Bound::profile)
      .def_property_readonly("inputs", &Bound::inputs)
      .def_property_readonly("outputs", &Bound::outputs);

  m.attr("VERIFY_FULL") = py::int_(static_cast<int>(DLC_VERIFY_FULL));
  m.attr("VERIFY_SKIP_HASH") = py::int_(static_cast<int>(DLC_VERIFY_SKIP_HASH));
  m.def("load_path", &load_path);
  m.def("load_bytes", &load_bytes);
  m.def("hash_file", &hash_file);
  m.def("find_gpu", [] { check(dlc_find_gpu()); });
  m.def("num_threads", &dlc_num_threads);
  m.def("set_num_threads", [](std::uint32_t count) {
    const py::gil_scoped_release released;
    check(dlc_set_num_threads(count));
  });
  m.def("runtime_version", &dlc_runtime_version);
}

// Runs a module from any number of threads: each call borrows a context.
#ifndef DLC_PYTHON_RUNNER_H
#define DLC_PYTHON_RUNNER_H

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "bound.h"
#include "c_interface.h"
#include "gpu_array.h"
#include "late_outputs.h"
#include "output_memory.h"
#include "signature.h"

namespace dlc_python {

namespace py = pybind11;

class Runner {
 public:
  Runner(const Module &module, const py::list &input_dtypes, const py::list &output_dtypes)
      : module_(module.handle.get()),
        inputs_(module_, dlc_module_input, input_dtypes),
        outputs_(module_, dlc_module_output, output_dtypes),
        late_bytes_(outputs_.size()) {
    free_.reserve(kKept);
  }

  py::object run(const py::tuple &arrays) {
    std::vector<DLTensor> in(inputs_.size());
    if (!view_inputs(arrays, in)) return py::none();
    const Borrowed context = borrow();
    py::tuple results = allocate(*context, in);
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
    return std::move(results);
  }

  // Runs in a stream of the GPU; outputs that are None are made there. Returns None where an array
  // is not ready.
  py::object run_in_stream(const py::tuple &arrays, const py::tuple &targets,
                           std::uintptr_t stream) {
    std::vector<DLTensor> in(inputs_.size()), out(outputs_.size());
    if (!view_inputs(arrays, in) || targets.size() != out.size()) return py::none();
    const Borrowed context = borrow();
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
        most = std::max(most - most / 8, bytes_of(outputs_.dtypes[i], shape));
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

  // A context for one call, given back however that ends. The lock is held only while Python's own
  // lock is: os.fork, which needs that one, cannot find it taken.
  struct GiveBack {
    Runner *runner;
    void operator()(dlc_context *context) const noexcept { runner->keep(ContextHandle(context)); }
  };
  using Borrowed = std::unique_ptr<dlc_context, GiveBack>;

  Borrowed borrow() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        Borrowed context(free_.back().release(), {this});
        free_.pop_back();
        return context;
      }
    }
    spare_->keep_more(outputs_.size());
    return Borrowed(make_context().release(), {this});
  }

  void keep(ContextHandle context) {
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

}  // namespace dlc_python

#endif

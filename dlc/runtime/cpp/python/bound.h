// Inputs and outputs that stay the same from run to run.
#ifndef DLC_PYTHON_BOUND_H
#define DLC_PYTHON_BOUND_H

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "c_interface.h"

namespace dlc_python {

namespace py = pybind11;

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

}  // namespace dlc_python

#endif

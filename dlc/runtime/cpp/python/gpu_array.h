// Tensors in the memory of the GPU for Python.
#ifndef DLC_PYTHON_GPU_ARRAY_H
#define DLC_PYTHON_GPU_ARRAY_H

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>
#include <vector>

#include "c_interface.h"
#include "dlc/runtime.h"

namespace dlc_python {

namespace py = pybind11;

// A tensor of another library. Source: DLPack 1.x, DLManagedTensor, and its Python protocol.
struct ManagedTensor {
  DLTensor tensor;
  void *context;
  void (*deleter)(ManagedTensor *);
};

struct FreeGpuMemory {
  void operator()(dlc_gpu_memory *memory) const noexcept { dlc_gpu_memory_free(memory); }
};

// A tensor in the memory of the GPU, made by a run in a stream.
class GpuArray {
 public:
  GpuArray(const dlc_module *module, DLDataType type, py::dtype dtype,
           std::vector<std::int64_t> shape, std::uintptr_t stream)
      : shared_(std::make_shared<Shared>()), dtype_(std::move(dtype)), stream_(stream) {
    bytes_ = static_cast<std::size_t>(dtype_.itemsize());
    for (const std::int64_t n : shape) bytes_ *= static_cast<std::size_t>(n);
    dlc_gpu_memory *memory = nullptr;
    check(dlc_gpu_memory_create(module, bytes_, &memory));
    shared_->memory.reset(memory);
    shared_->shape = std::move(shape);
    shared_->type = type;
  }

  DLTensor tensor() const {
    return {dlc_gpu_memory_data(shared_->memory.get()), {kDLCUDA, 0},
            static_cast<std::int32_t>(shared_->shape.size()), shared_->type, shared_->shape.data(),
            nullptr, 0};
  }
  py::tuple shape() const { return py::tuple(py::cast(shared_->shape)); }
  py::dtype dtype() const { return dtype_; }

  py::array numpy() const {
    py::array array(dtype_, shared_->shape);
    void *to = array.mutable_data();
    const py::gil_scoped_release released;
    read(to, bytes_);
    return array;
  }

  // The consumer's stream sees the data: it is the one of the run, or waits for that here.
  py::capsule dlpack(const py::object &stream, const py::kwargs &) const {
    const bool same = !stream.is_none() && stream.cast<std::intptr_t>() ==
                                               static_cast<std::intptr_t>(stream_);
    if (!same && !(!stream.is_none() && stream.cast<std::intptr_t>() == -1)) {
      char nothing = 0;
      const py::gil_scoped_release released;
      read(&nothing, 0);
    }
    auto *owner = new std::shared_ptr<Shared>(shared_);
    auto *managed = new ManagedTensor{tensor(), owner, [](ManagedTensor *self) {
                                        delete static_cast<std::shared_ptr<Shared> *>(self->context);
                                        delete self;
                                      }};
    return py::capsule(managed, "dltensor", [](PyObject *capsule) {  // unless somebody has taken it
      if (PyCapsule_IsValid(capsule, "dltensor") == 0) return;
      auto *left = static_cast<ManagedTensor *>(PyCapsule_GetPointer(capsule, "dltensor"));
      left->deleter(left);
    });
  }

 private:
  struct Shared {
    std::unique_ptr<dlc_gpu_memory, FreeGpuMemory> memory;
    std::vector<std::int64_t> shape;
    DLDataType type;
  };

  void read(void *to, std::size_t bytes) const {
    check(dlc_gpu_memory_read(shared_->memory.get(), to, bytes, reinterpret_cast<void *>(stream_)));
  }

  std::shared_ptr<Shared> shared_;
  py::dtype dtype_;
  std::uintptr_t stream_;
  std::size_t bytes_ = 0;
};

}  // namespace dlc_python
#endif

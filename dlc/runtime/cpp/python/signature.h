// The element types of a model's inputs or outputs, and which arrays are ready to be them.
#ifndef DLC_PYTHON_SIGNATURE_H
#define DLC_PYTHON_SIGNATURE_H

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "c_interface.h"
#include "gpu_array.h"

namespace dlc_python {

namespace py = pybind11;

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

inline bool is_writeable(py::handle array) {
  return (py::detail::array_proxy(array.ptr())->flags &
          py::detail::npy_api::NPY_ARRAY_WRITEABLE_) != 0;
}

}  // namespace dlc_python

#endif

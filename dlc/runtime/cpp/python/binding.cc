// The Python extension `dlc.runtime._runtime`: thin, and over the C interface only.
//
// Arrays come in ready: C-contiguous, aligned, with the very dtype objects given to `Runner`. For
// any other value `run` returns None, and the Python face converts it or says what is wrong.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "bound.h"
#include "c_interface.h"
#include "gpu_array.h"
#include "runner.h"

namespace py = pybind11;

namespace {

using dlc_python::Bound;
using dlc_python::check;
using dlc_python::GpuArray;
using dlc_python::Module;
using dlc_python::ModuleHandle;
using dlc_python::Runner;
using dlc_python::StatusError;

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

void check_file(const std::string &path) {
  const py::gil_scoped_release released;
  check(dlc_check_file(path.c_str()));
}

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
  m.def("check_file", &check_file);
  m.def("hash_file", &hash_file);
  m.def("find_gpu", [] { check(dlc_find_gpu()); });
  m.def("num_threads", &dlc_num_threads);
  m.def("set_num_threads", [](std::uint32_t count) {
    const py::gil_scoped_release released;
    check(dlc_set_num_threads(count));
  });
  m.def("runtime_version", &dlc_runtime_version);
}

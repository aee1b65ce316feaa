#include "cuda_driver.h"

#include <dlfcn.h>

#include <mutex>
#include <string>

#include "failure.h"

namespace dlc_runtime {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";

// Null where the driver has none of that name.
template <typename Function>
void look_for(void *library, const char *name, Function &function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

template <typename Function>
void find(void *library, const char *name, Function &function) {
  look_for(library, name, function);
  if (function == nullptr) {
    fail(DLC_INCOMPATIBLE,
         std::string("the NVIDIA driver is too old: ") + kLibrary + " has no " + name);
  }
}

CudaDriver open_driver() {
  void *library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fail(DLC_INCOMPATIBLE,
         std::string("this model runs on an NVIDIA GPU, and no NVIDIA driver is installed (") +
             kLibrary + " cannot be opened); build it with --target native for this CPU");
  }
  CudaDriver driver{};
  find(library, "cuInit", driver.init);
  find(library, "cuDeviceGetCount", driver.device_count);
  find(library, "cuDeviceGet", driver.device_get);
  find(library, "cuDeviceGetAttribute", driver.device_attribute);
  find(library, "cuDevicePrimaryCtxRetain", driver.context_retain);
  find(library, "cuDevicePrimaryCtxRelease_v2", driver.context_release);
  find(library, "cuCtxPushCurrent_v2", driver.context_push);
  find(library, "cuCtxPopCurrent_v2", driver.context_pop);
  find(library, "cuModuleLoadData", driver.module_load);
  find(library, "cuModuleUnload", driver.module_unload);
  find(library, "cuModuleGetFunction", driver.module_function);
  find(library, "cuLaunchKernel", driver.launch);
  look_for(library, "cuLaunchKernelEx", driver.launch_with);
  find(library, "cuFuncSetAttribute", driver.function_attribute);
  find(library, "cuMemAlloc_v2", driver.allocate);
  find(library, "cuMemFree_v2", driver.release);
  find(library, "cuMemcpyHtoDAsync_v2", driver.copy_to_device);
  find(library, "cuMemcpyDtoHAsync_v2", driver.copy_to_host);
  find(library, "cuMemcpyDtoDAsync_v2", driver.copy_on_device);
  find(library, "cuMemHostAlloc", driver.allocate_pinned);
  find(library, "cuMemFreeHost", driver.release_pinned);
  find(library, "cuMemsetD8Async", driver.fill);
  find(library, "cuStreamCreate", driver.stream_create);
  find(library, "cuStreamDestroy_v2", driver.stream_destroy);
  find(library, "cuStreamSynchronize", driver.stream_synchronize);
  find(library, "cuGraphCreate", driver.graph_create);
  look_for(library, "cuGraphAddKernelNode_v2", driver.graph_add_kernel);
  if (driver.graph_add_kernel == nullptr) {
    find(library, "cuGraphAddKernelNode", driver.graph_add_kernel);
  }
  find(library, "cuGraphAddDependencies", driver.graph_add_edges);
  look_for(library, "cuGraphAddDependencies_v2", driver.graph_add_edges_with);
  find(library, "cuGraphInstantiateWithFlags", driver.graph_instantiate);
  find(library, "cuGraphDestroy", driver.graph_destroy);
  find(library, "cuGraphExecDestroy", driver.graph_exec_destroy);
  find(library, "cuGraphLaunch", driver.graph_launch);
  find(library, "cuGetErrorString", driver.error_string);
  const CuResult result = driver.init(0);
  int count = 0;
  if (result != kCuNoDevice) {
    check_cuda(driver, result, "start the driver");
    check_cuda(driver, driver.device_count(&count), "count the GPUs");
  }
  if (count == 0) {
    fail(DLC_INCOMPATIBLE, "this model runs on an NVIDIA GPU, and this machine has none");
  }
  return driver;
}

}  // namespace

const CudaDriver &cuda_driver() {
  static std::mutex mutex;
  static CudaDriver driver;
  static bool opened = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!opened) {
    driver = open_driver();
    opened = true;
  }
  return driver;
}

void check_cuda(const CudaDriver &driver, CuResult result, const char *what) {
  if (result == 0) return;
  const char *text = nullptr;
  if (driver.error_string(result, &text) != 0 || text == nullptr) text = "unknown error";
  fail(result == kCuOutOfMemory ? DLC_NO_MEMORY : DLC_RUN_FAILED,
       std::string("cannot ") + what + ": " + text + " (CUDA error " + std::to_string(result) +
           ")");
}

}  // namespace dlc_runtime

dlc_status dlc_find_gpu(void) {
  return dlc_runtime::guarded([] { dlc_runtime::cuda_driver(); });
}

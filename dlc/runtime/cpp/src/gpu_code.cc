#include <algorithm>

#include "failure.h"
#include "gpu.h"

namespace dlc_runtime {
namespace {

constexpr std::uint32_t kCubin = 0, kPtx = 1;
constexpr std::uint32_t kOverlapping = 90;  // code for this architecture on begins with a wait
constexpr std::uint32_t kFreeSharedBytes = 48 * 1024;  // of a block; for more, the driver is asked

}  // namespace

GpuScope::GpuScope(const GpuCode &code) : driver_(code.driver()) {
  check_cuda(driver_, driver_.context_push(code.context()), "use the GPU");
}

GpuScope::~GpuScope() {
  CuContext context = nullptr;
  driver_.context_pop(&context);
}

GpuCode::GpuCode(const dlc_gpu_model &model, const dlc_gpu_checked_model *checked)
    : model_(model), checked_(checked), driver_(cuda_driver()) {
  check_cuda(driver_, driver_.device_get(&device_, 0), "find the GPU");
  check_cuda(driver_, driver_.context_retain(&context_, device_), "use the GPU");
  try {
    const GpuScope scope(*this);
    load();
  } catch (...) {
    driver_.context_release(device_);
    throw;
  }
}

GpuCode::~GpuCode() {
  if (driver_.context_push(context_) == 0) {
    for (CuModule module : modules_) driver_.module_unload(module);
    if (weights_ != 0) driver_.release(weights_);
    CuContext context = nullptr;
    driver_.context_pop(&context);
  }
  driver_.context_release(device_);
}

void GpuCode::load() {
  int major = 0, minor = 0;
  check_cuda(driver_, driver_.device_attribute(&major, kCuMajor, device_), "ask for the GPU's kind");
  check_cuda(driver_, driver_.device_attribute(&minor, kCuMinor, device_), "ask for the GPU's kind");
  std::uint32_t units = 0;
  for (std::uint32_t i = 0; i < model_.image_count; ++i) {
    units = std::max(units, model_.images[i].unit + 1);
  }
  for (std::uint32_t unit = 0; unit < units; ++unit) load_unit(unit, major * 10 + minor);
  for (std::uint32_t i = 0; i < model_.kernel_count; ++i) {
    const dlc_gpu_kernel &kernel = model_.kernels[i];
    CuFunction function = nullptr;
    check_cuda(driver_, driver_.module_function(&function, modules_[kernel.unit], kernel.name),
               "find a kernel of the model");
    if (kernel.shared_bytes > kFreeSharedBytes) {
      check_cuda(driver_,
                 driver_.function_attribute(function, kCuMaxSharedBytes,
                                            static_cast<int>(kernel.shared_bytes)),
                 "get shared memory for a kernel of the model");
    }
    functions_.push_back(function);
  }
  if (model_.weight_bytes > 0) {
    const auto bytes = static_cast<std::size_t>(model_.weight_bytes);
    check_cuda(driver_, driver_.allocate(&weights_, bytes), "get memory of the GPU for the weights");
    check_cuda(driver_, driver_.copy_to_device(weights_, model_.weights, bytes, nullptr),
               "copy the weights to the GPU");
    check_cuda(driver_, driver_.stream_synchronize(nullptr), "copy the weights to the GPU");
  }
}

// Code for a GPU of the same generation that has no more than this one, else PTX, which the driver
// compiles. Source: CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
void GpuCode::load_unit(std::uint32_t unit, int capability) {
  const dlc_gpu_image *best = nullptr;
  for (std::uint32_t i = 0; i < model_.image_count; ++i) {
    const dlc_gpu_image &image = model_.images[i];
    const auto arch = static_cast<int>(image.arch);
    const bool fits = arch <= capability && (image.kind != kCubin || arch / 10 == capability / 10);
    if (image.unit != unit || !fits) continue;
    const bool better = best == nullptr || (best->kind == kPtx && image.kind != kPtx) ||
                        (best->kind == image.kind && best->arch < image.arch);
    if (better) best = &image;
  }
  if (best == nullptr) {
    fail(DLC_INCOMPATIBLE, "the model has no code for this GPU (sm_" + std::to_string(capability) +
                               "); build it with --target \"cuda -arch=sm_" +
                               std::to_string(capability) + "\"");
  }
  CuModule module = nullptr;
  const CuResult result = driver_.module_load(&module, best->data);
  if (result == kCuUnsupportedPtx || result == kCuNoBinaryForGpu) {
    fail(DLC_INCOMPATIBLE, "the NVIDIA driver is older than the compiler of the model");
  }
  check_cuda(driver_, result, "load the model's code");
  modules_.push_back(module);
  early_.push_back(best->arch >= kOverlapping);
}

// A kernel that waits by itself for the launch before it may be put on the GPU early. Source: CUDA
// C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
void GpuCode::launch(std::uint32_t kernel, unsigned blocks, void **params, CuStream stream) const {
  const dlc_gpu_kernel &about = model_.kernels[kernel];
  CuResult result = 0;
  if (comes_early(kernel) && driver_.launch_with != nullptr) {
    CuLaunchAttribute early{kCuOverlappingLaunch, 0, {1}};
    const CuLaunchConfig config{blocks, 1,      1, about.threads, 1, 1, about.shared_bytes,
                                stream, &early, 1};
    result = driver_.launch_with(&config, functions_[kernel], params, nullptr);
  } else {
    result = driver_.launch(functions_[kernel], blocks, 1, 1, about.threads, 1, 1,
                            about.shared_bytes, stream, params, nullptr);
  }
  check_cuda(driver_, result, "launch a kernel");
}

}  // namespace dlc_runtime

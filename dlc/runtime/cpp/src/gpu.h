// Models whose kernels run on a GPU: their code and constants there, and the memory of one run.
#ifndef DLC_SRC_GPU_H
#define DLC_SRC_GPU_H

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_driver.h"
#include "dlc/abi.h"
#include "memory.h"

namespace dlc_runtime {

// Memory of the device that grows and is kept.
class GpuMemory {
 public:
  explicit GpuMemory(const CudaDriver &driver) noexcept : driver_(driver) {}
  ~GpuMemory();
  GpuMemory(const GpuMemory &) = delete;
  GpuMemory &operator=(const GpuMemory &) = delete;

  // The context must be current. Throws Failure.
  CuDevicePointer at_least(std::int64_t bytes);
  bool has(std::int64_t bytes) const noexcept { return pointer_ != 0 && bytes_ >= bytes; }

 private:
  const CudaDriver &driver_;
  CuDevicePointer pointer_ = 0;
  std::int64_t bytes_ = 0;
};

// What a model has on the device: made at its first run, then shared by all its contexts.
class GpuCode {
 public:
  // Throws Failure: no driver, no device, no code for it, no memory.
  explicit GpuCode(const dlc_gpu_model &model);
  ~GpuCode();
  GpuCode(const GpuCode &) = delete;
  GpuCode &operator=(const GpuCode &) = delete;

  const dlc_gpu_model &model() const noexcept { return model_; }
  const CudaDriver &driver() const noexcept { return driver_; }
  CuContext context() const noexcept { return context_; }
  CuFunction function(std::uint32_t kernel) const { return functions_[kernel]; }
  CuDevicePointer weights() const noexcept { return weights_; }

 private:
  void load();
  void load_unit(std::uint32_t unit, int capability);

  const dlc_gpu_model &model_;
  const CudaDriver &driver_;
  CuDevice device_ = 0;
  CuContext context_ = nullptr;
  std::vector<CuModule> modules_;
  std::vector<CuFunction> functions_;
  CuDevicePointer weights_ = 0;
};

// Makes a context current while it lives.
class GpuScope {
 public:
  explicit GpuScope(const GpuCode &code);
  ~GpuScope();
  GpuScope(const GpuScope &) = delete;
  GpuScope &operator=(const GpuScope &) = delete;

 private:
  const CudaDriver &driver_;
};

// A tensor of the caller's, in the memory of the CPU.
struct HostTensor {
  void *data;
  std::int64_t bytes;
};

// The memory, the stream and the recorded graphs of one context; for one thread at a time.
class GpuRun {
 public:
  explicit GpuRun(std::shared_ptr<const GpuCode> code);
  ~GpuRun();
  GpuRun(const GpuRun &) = delete;
  GpuRun &operator=(const GpuRun &) = delete;

  // Copies the inputs to the device, runs the model and copies its outputs back. A model that never
  // waits in between is recorded once for each set of sizes, and then only launched.
  void run(const std::vector<std::int64_t> &sizes, std::int64_t arena_bytes,
           const std::vector<HostTensor> &inputs, const std::vector<HostTensor> &outputs);

 private:
  struct Host;
  void bind(std::int64_t arena_bytes, const std::vector<HostTensor> &inputs,
            const std::vector<HostTensor> &outputs);
  void call(const std::vector<std::int64_t> &sizes);
  CuGraphExec record(const std::vector<std::int64_t> &sizes);
  void forget_graphs() noexcept;

  std::shared_ptr<const GpuCode> code_;
  CuStream stream_ = nullptr;
  std::unique_ptr<GpuMemory> arena_;
  std::vector<std::unique_ptr<GpuMemory>> tensors_;  // inputs, then outputs
  std::vector<const void *> input_pointers_;         // then those of the constants
  std::vector<void *> output_pointers_;
  CuDevicePointer arena_pointer_ = 0;
  std::map<std::vector<std::int64_t>, CuGraphExec> graphs_;
  AlignedMemory staging_;
};

}  // namespace dlc_runtime
#endif

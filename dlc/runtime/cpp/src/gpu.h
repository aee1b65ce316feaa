// Models whose kernels run on a GPU: their code and constants there, and the memory of one run.
#ifndef DLC_SRC_GPU_H
#define DLC_SRC_GPU_H

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
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
  // The same; false where the device has no memory left.
  bool try_at_least(std::int64_t bytes);
  bool has(std::int64_t bytes) const noexcept { return pointer_ != 0 && bytes_ >= bytes; }
  CuDevicePointer pointer() const noexcept { return pointer_; }
  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  const CudaDriver &driver_;
  CuResult grow(std::int64_t bytes);

  CuDevicePointer pointer_ = 0;
  std::int64_t bytes_ = 0;
};

// Memory of the device for tensors whose sizes depend on the data. It is kept from run to run, and
// handed out again within a run: what uses it then stands behind in the same stream.
class GpuBlocks {
 public:
  explicit GpuBlocks(const CudaDriver &driver) noexcept : driver_(driver) {}
  // Null where the device has no memory left. The context must be current. Throws Failure.
  void *take(std::int64_t bytes, CuStream stream);
  void give_back(const void *memory) noexcept;
  void give_back_all() noexcept;

 private:
  struct Block {
    std::unique_ptr<GpuMemory> memory;
    bool taken;
  };
  const CudaDriver &driver_;
  std::vector<Block> blocks_;
};

// What a model has on the device: made at its first run, then shared by all its contexts.
class GpuCode {
 public:
  // `checked` is the model too, if its launches report. Throws Failure: no driver, no device, no code
  // for it, no memory.
  GpuCode(const dlc_gpu_model &model, const dlc_gpu_checked_model *checked);
  ~GpuCode();
  GpuCode(const GpuCode &) = delete;
  GpuCode &operator=(const GpuCode &) = delete;

  const dlc_gpu_model &model() const noexcept { return model_; }
  const dlc_gpu_checked_model *checked() const noexcept { return checked_; }
  const CudaDriver &driver() const noexcept { return driver_; }
  CuContext context() const noexcept { return context_; }
  CuDevicePointer weights() const noexcept { return weights_; }
  CuFunction function(std::uint32_t kernel) const { return functions_[kernel]; }
  // Whether the code of a kernel waits for the launch before it, and may be put on the GPU early.
  bool comes_early(std::uint32_t kernel) const { return early_[model_.kernels[kernel].unit]; }
  // Launches a kernel into `stream`. Throws Failure.
  void launch(std::uint32_t kernel, unsigned blocks, void **params, CuStream stream) const;

 private:
  void load();
  void load_unit(std::uint32_t unit, int capability);

  const dlc_gpu_model &model_;
  const dlc_gpu_checked_model *checked_;
  const CudaDriver &driver_;
  CuDevice device_ = 0;
  CuContext context_ = nullptr;
  std::vector<CuModule> modules_;
  std::vector<bool> early_;  // of each module
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

// Memory of the CPU that the device reads and writes by itself. It grows and is kept.
class PinnedMemory {
 public:
  explicit PinnedMemory(const CudaDriver &driver) noexcept : driver_(driver) {}
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory &) = delete;
  PinnedMemory &operator=(const PinnedMemory &) = delete;

  // The context must be current. Throws Failure.
  char *at_least(std::size_t bytes);

 private:
  const CudaDriver &driver_;
  void *memory_ = nullptr;
  std::size_t bytes_ = 0;
};

// A tensor of the caller's, in the memory of the CPU or of the device. An output that the model tells
// the shape of during the run has -1 bytes until then.
struct GpuTensor {
  void *data;
  std::int64_t bytes;
  bool on_device;
};

// Where the output of a number goes, now that its dimensions are known. Throws Failure.
using LatePlace = std::function<GpuTensor(std::size_t, const std::int64_t *)>;

// What launches report to the CPU: they write to memory there, and nothing is copied. Nothing in it
// waits for them.
class GpuReports {
 public:
  // The context must be current. Throws Failure.
  explicit GpuReports(const GpuCode &code);
  std::uint64_t *words() const noexcept { return words_; }
  // Whether a launch has reported something by now.
  bool is_any() const noexcept;
  // What the first report says, once all launches are done; all are forgotten.
  std::string take();

 private:
  const dlc_gpu_checked_model *model_;
  PinnedMemory memory_;
  std::uint64_t *words_ = nullptr;
  std::size_t count_ = 0;
};

class LaunchGraph;

// The memory, the stream and the recorded graphs of one context; for one thread at a time.
class GpuRun {
 public:
  explicit GpuRun(std::shared_ptr<const GpuCode> code);
  ~GpuRun();
  GpuRun(const GpuRun &) = delete;
  GpuRun &operator=(const GpuRun &) = delete;

  // Copies inputs of the CPU to the device, runs the model and copies outputs of the CPU back. A
  // model that does not wait in between is recorded once for each set of sizes and of tensors, and
  // then only launched. `late` is asked for outputs that have no place yet, which it completes.
  // Tensors of the device are used where they are. Work goes into `stream`; where no tensor is of the
  // CPU, it may be still running when this returns, unless `waits`. What it reports then, a later run
  // throws.
  void run(const std::vector<std::int64_t> &sizes, std::int64_t arena_bytes,
           const std::vector<GpuTensor> &inputs, std::vector<GpuTensor> &outputs,
           const LatePlace &late, CuStream stream, bool waits);
  CuStream own_stream() const noexcept { return stream_; }

 private:
  struct Host;
  using Key = std::vector<std::int64_t>;  // sizes, then the addresses of everything
  CuDevicePointer place(std::size_t number, const GpuTensor &tensor);
  Key bind(const std::vector<std::int64_t> &sizes, std::int64_t arena_bytes,
           const std::vector<GpuTensor> &inputs, const std::vector<GpuTensor> &outputs);
  void bring(const std::vector<GpuTensor> &inputs);
  bool fetch(const std::vector<GpuTensor> &inputs, const std::vector<GpuTensor> &outputs);
  void enter(CuStream stream);
  void call(const std::vector<std::int64_t> &sizes, LaunchGraph *graph);
  CuGraphExec record(const std::vector<std::int64_t> &sizes, const Key &key);
  void forget_graphs() noexcept;
  void heed();

  std::shared_ptr<const GpuCode> code_;
  CuStream stream_ = nullptr;   // its own
  CuStream current_ = nullptr;  // what the last run was in
  LaunchGraph *graph_ = nullptr;  // where the program launches now; null: into the stream
  bool is_recordable_ = true;     // whether it has asked for nothing that a graph cannot hold
  std::unique_ptr<GpuMemory> arena_;
  std::vector<std::unique_ptr<GpuMemory>> tensors_;  // inputs, then outputs
  std::vector<const void *> input_pointers_;         // then those of the constants
  std::vector<void *> output_pointers_;
  CuDevicePointer arena_pointer_ = 0;
  std::map<Key, CuGraphExec> graphs_;
  std::set<std::vector<std::int64_t>> eager_;  // sizes for which there can be no graph
  std::unique_ptr<GpuBlocks> blocks_;     // for sizes that the run finds out
  std::function<void *(std::size_t, const std::int64_t *)> provide_;  // an output of such a size
  AlignedMemory staging_;                 // for kernels that run on the CPU
  std::unique_ptr<PinnedMemory> seen_;    // for data that the program looks at
  std::unique_ptr<PinnedMemory> pinned_;  // for small tensors of the CPU, on their way
  std::unique_ptr<GpuReports> reports_;
};

// Memory of the device for a tensor of the caller's.
class GpuBlock {
 public:
  GpuBlock(std::shared_ptr<const GpuCode> code, std::int64_t bytes);
  ~GpuBlock();
  GpuBlock(const GpuBlock &) = delete;
  GpuBlock &operator=(const GpuBlock &) = delete;

  void *data() const noexcept;
  // Copies it to the CPU behind what is in the stream.
  void read(void *to, std::int64_t bytes, CuStream stream) const;

 private:
  std::shared_ptr<const GpuCode> code_;
  std::unique_ptr<GpuMemory> memory_;
};

}  // namespace dlc_runtime

struct dlc_gpu_memory {
  std::unique_ptr<dlc_runtime::GpuBlock> block;
};
#endif

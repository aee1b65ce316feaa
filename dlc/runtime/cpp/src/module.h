// A loaded model: its checked file, its code and its manifest. Immutable.
#ifndef DLC_SRC_MODULE_H
#define DLC_SRC_MODULE_H

#include <memory>
#include <mutex>
#include <vector>

#include "artifact.h"
#include "dlc/abi.h"
#include "gpu.h"

namespace dlc_runtime {

// One input or output as the C interface shows it; points into the manifest.
struct TensorView {
  dlc_tensor_info info;
  std::vector<dlc_dim> dims;
};

class Module {
 public:
  explicit Module(Artifact artifact);
  Module(const Module &) = delete;
  Module &operator=(const Module &) = delete;

  const Manifest &manifest() const noexcept { return artifact_.manifest; }
  const Artifact &artifact() const noexcept { return artifact_; }
  const dlc_model &code() const noexcept { return *model_; }
  // The code that reports its steps, or nullptr.
  const dlc_model *profiling_code() const noexcept { return profiling_; }
  // What a model for a GPU has there; nullptr for one that runs on the CPU. Throws Failure where
  // there is no GPU that can run it.
  std::shared_ptr<const GpuCode> gpu() const;
  bool is_for_gpu() const noexcept { return gpu_model_ != nullptr; }
  // Whether it computes with texts.
  bool has_texts() const noexcept { return has_texts_; }
  const std::vector<TensorView> &inputs() const noexcept { return inputs_; }
  const std::vector<TensorView> &outputs() const noexcept { return outputs_; }

 private:
  struct Closer {
    void operator()(void *handle) const noexcept;
  };

  Artifact artifact_;
  std::unique_ptr<void, Closer> library_;
  const dlc_gpu_checked_model *checked_model_;
  const dlc_gpu_model *gpu_model_;
  const dlc_model *model_;
  const dlc_model *profiling_;
  bool has_texts_;
  std::vector<TensorView> inputs_, outputs_;
  mutable std::mutex gpu_mutex_;
  mutable std::weak_ptr<const GpuCode> gpu_;  // kept by the contexts, and gone with the last
};

}  // namespace dlc_runtime

struct dlc_module {
  std::shared_ptr<const dlc_runtime::Module> shared;
};
#endif

// The memory of one run. Everything is kept from call to call: a run that has the sizes of the
// run before allocates nothing and plans nothing.
#ifndef DLC_SRC_CONTEXT_H
#define DLC_SRC_CONTEXT_H

#include <atomic>
#include <memory>
#include <vector>

#include "gpu.h"
#include "host.h"
#include "memory.h"
#include "module.h"

namespace dlc_runtime {

class Context final : public OutputPlaces {
 public:
  explicit Context(std::shared_ptr<const Module> module);

  void plan(const DLTensor *inputs);
  void run(const DLTensor *inputs, DLTensor *outputs);
  // The same in a stream of the caller's, on a GPU; see dlc_run_in_stream.
  void run_in_stream(const DLTensor *inputs, DLTensor *outputs, void *stream);
  // The same, and the times of all steps.
  const std::vector<dlc_step> &profile(const DLTensor *inputs, DLTensor *outputs);

  const Module &module() const noexcept { return *module_; }
  void set_output_memory(dlc_output_memory memory, void *user) noexcept {
    output_memory_ = memory;
    output_user_ = user;
  }
  // An output the model tells the shape of, during a run.
  void *place(std::size_t index, const std::int64_t *dims) override;

  bool planned() const noexcept { return planned_; }
  const std::int64_t *output_dims(std::size_t index) const {
    return output_dims_.data() + first_dim_[index];
  }

 private:
  void place_output(std::size_t index, DLTensor &tensor);
  void *output_memory(std::size_t index, std::int64_t bytes);
  GpuTensor on_gpu(std::size_t index, const DLTensor &tensor) const;
  void run_on_gpu(const DLTensor *inputs, DLTensor *outputs, void *const *stream);
  void run_code(const dlc_model &code, const DLTensor *inputs, DLTensor *outputs,
                std::vector<dlc_step> *steps);

  std::shared_ptr<const Module> module_;
  std::unique_ptr<GpuRun> gpu_;
  std::vector<std::int64_t> sizes_, planned_sizes_;
  bool planned_ = false;
  std::vector<std::size_t> first_dim_;  // of each output, in output_dims_
  std::vector<std::int64_t> output_dims_;
  std::vector<std::size_t> late_dims_;  // positions in output_dims_ that only a run can tell
  std::vector<bool> late_outputs_;      // outputs that have one
  std::vector<const void *> input_data_;
  std::vector<void *> output_data_;
  std::vector<AlignedMemory> own_outputs_;
  dlc_output_memory output_memory_ = nullptr;  // asked instead of these
  void *output_user_ = nullptr;
  DLTensor *outputs_ = nullptr;  // of the run in progress
  std::int64_t arena_bytes_ = 0;
  AlignedMemory arena_;
  std::vector<dlc_step> steps_;
  Blocks blocks_;
  std::unique_ptr<Texts> texts_;  // of a model that computes with texts
  bool expects_loops_ = false;  // the last run had parallel loops
};

}  // namespace dlc_runtime

struct dlc_context {
  explicit dlc_context(std::shared_ptr<const dlc_runtime::Module> module)
      : context(std::move(module)) {}
  dlc_runtime::Context context;
  std::atomic<bool> in_use{false};
};
#endif

// Checks of the tensors given to a run against what the model declares.
#ifndef DLC_SRC_TENSOR_CHECK_H
#define DLC_SRC_TENSOR_CHECK_H

#include <cstdint>
#include <vector>

#include "manifest.h"

namespace dlc_runtime {

constexpr std::int64_t kUnknownSize = -1;

// Checks type and shape of each input and reads the size variables off them into `sizes`.
void bind_inputs(const Manifest &manifest, const DLTensor *inputs,
                 std::vector<std::int64_t> &sizes);

// Whether a tensor lies in the memory of the GPU.
inline bool is_on_gpu(const DLTensor &tensor) { return tensor.device.device_type == kDLCUDA; }

// Checks that the memory of an input can be read as it is: dense, aligned, on the CPU; or, for a
// model that runs there, on the GPU.
void check_input_memory(const TensorSpec &spec, const DLTensor &tensor, bool for_gpu = false);

// Checks type, shape and memory of an output the caller has allocated.
void check_output(const TensorSpec &spec, const DLTensor &tensor, const std::int64_t *dims,
                  bool for_gpu = false);

// Bytes of a tensor of this shape. Throws Failure where that is more than an int64 holds.
std::int64_t tensor_bytes(const TensorSpec &spec, const std::int64_t *dims);

inline void *tensor_data(const DLTensor &tensor) {
  return static_cast<char *>(tensor.data) + tensor.byte_offset;
}

}  // namespace dlc_runtime
#endif

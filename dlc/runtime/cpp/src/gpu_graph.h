// The launches of one run as a CUDA graph: those that share no memory may run side by side.
#ifndef DLC_SRC_GPU_GRAPH_H
#define DLC_SRC_GPU_GRAPH_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda_driver.h"
#include "gpu.h"

namespace dlc_runtime {

class LaunchGraph {
 public:
  // The context must be current until the end. Throws Failure, as do the functions below.
  explicit LaunchGraph(const GpuCode &code);
  ~LaunchGraph();
  LaunchGraph(const LaunchGraph &) = delete;
  LaunchGraph &operator=(const LaunchGraph &) = delete;

  // A launch behind those before it with which it shares memory that one of both writes; see
  // dlc_gpu_host.
  void add(std::uint32_t kernel, unsigned blocks, void **params, const std::int64_t *bytes);
  // What can be launched. The caller destroys it.
  CuGraphExec instantiate() const;

 private:
  struct Range {
    CuDevicePointer begin, end;
    bool is_written;
  };
  struct Launch {
    CuGraphNode node;
    bool comes_early;  // its code waits for the launch before it
    std::vector<Range> ranges;
    std::vector<bool> behind;  // the launches that are surely done before it begins
    std::vector<std::size_t> waits_for;  // those of them that imply all others
    std::size_t followers;
  };
  static bool conflict(const Launch &a, const Launch &b);
  void order(Launch &launch);
  void connect() const;

  const GpuCode &code_;
  const CudaDriver &driver_;
  CuGraph graph_ = nullptr;
  std::vector<Launch> launches_;
};

}  // namespace dlc_runtime
#endif

#include "gpu_graph.h"

#include <algorithm>
#include <utility>

namespace dlc_runtime {

LaunchGraph::LaunchGraph(const GpuCode &code) : code_(code), driver_(code.driver()) {
  check_cuda(driver_, driver_.graph_create(&graph_, 0), "record the model");
}

LaunchGraph::~LaunchGraph() { driver_.graph_destroy(graph_); }

void LaunchGraph::add(std::uint32_t kernel, unsigned blocks, void **params,
                      const std::int64_t *bytes) {
  const dlc_gpu_kernel &about = code_.model().kernels[kernel];
  Launch launch{nullptr, code_.comes_early(kernel), {}, {}, {}, 0};
  for (std::uint32_t i = 0; i < about.buffer_count; ++i) {
    const auto begin = *static_cast<const CuDevicePointer *>(params[i]);
    if (bytes[i] <= 0) continue;
    launch.ranges.push_back(
        {begin, begin + static_cast<CuDevicePointer>(bytes[i]), i >= about.input_count});
  }
  const CuKernelNode node{code_.function(kernel), blocks,  1,       1, about.threads, 1, 1,
                          about.shared_bytes,     params, nullptr, nullptr,          nullptr};
  check_cuda(driver_, driver_.graph_add_kernel(&launch.node, graph_, nullptr, 0, &node),
             "record a kernel");
  order(launch);
  launches_.push_back(std::move(launch));
}

bool LaunchGraph::conflict(const Launch &a, const Launch &b) {
  for (const Range &x : a.ranges) {
    for (const Range &y : b.ranges) {
      if ((x.is_written || y.is_written) && x.begin < y.end && y.begin < x.end) return true;
    }
  }
  return false;
}

// Latest first: what one launch waits for, those behind it need not wait for again.
void LaunchGraph::order(Launch &launch) {
  launch.behind.assign(launches_.size(), false);
  for (std::size_t i = launches_.size(); i-- > 0;) {
    Launch &before = launches_[i];
    if (launch.behind[i] || !conflict(before, launch)) continue;
    launch.waits_for.push_back(i);
    ++before.followers;
    launch.behind[i] = true;
    for (std::size_t j = 0; j < i; ++j) {
      if (before.behind[j]) launch.behind[j] = true;
    }
  }
}

// A launch that follows one launch alone, and alone, may be put on the GPU early: it waits by itself
// then. Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
void LaunchGraph::connect() const {
  for (const Launch &launch : launches_) {
    for (const std::size_t at : launch.waits_for) {
      const Launch &before = launches_[at];
      const CuGraphEdge early{kCuPortOfTrigger, 0, kCuEarlyEdge, {}};
      CuResult result = 1;
      if (launch.comes_early && launch.waits_for.size() == 1 && before.followers == 1 &&
          driver_.graph_add_edges_with != nullptr) {
        result = driver_.graph_add_edges_with(graph_, &before.node, &launch.node, &early, 1);
      }
      if (result != 0) result = driver_.graph_add_edges(graph_, &before.node, &launch.node, 1);
      check_cuda(driver_, result, "order the kernels of the model");
    }
  }
}

CuGraphExec LaunchGraph::instantiate() const {
  connect();
  CuGraphExec exec = nullptr;
  check_cuda(driver_, driver_.graph_instantiate(&exec, graph_, 0), "make a graph of the model");
  return exec;
}

}  // namespace dlc_runtime

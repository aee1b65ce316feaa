// The driver API of CUDA, opened when the first model for a GPU runs: nothing of CUDA is needed to
// build, to install or to load. Declared here is only what is used.
#ifndef DLC_SRC_CUDA_DRIVER_H
#define DLC_SRC_CUDA_DRIVER_H

#include <cstddef>
#include <cstdint>

namespace dlc_runtime {

// Source: cuda.h of CUDA 13.0; these types and values are part of its binary interface.
using CuResult = int;
using CuDevice = int;
using CuDevicePointer = unsigned long long;
using CuContext = struct CuContextTag *;
using CuModule = struct CuModuleTag *;
using CuFunction = struct CuFunctionTag *;
using CuStream = struct CuStreamTag *;
using CuGraph = struct CuGraphTag *;
using CuGraphNode = struct CuGraphNodeTag *;
using CuGraphExec = struct CuGraphExecTag *;

constexpr CuResult kCuOutOfMemory = 2;
constexpr CuResult kCuNoDevice = 100;
constexpr CuResult kCuNoBinaryForGpu = 209;
constexpr CuResult kCuUnsupportedPtx = 222;
constexpr int kCuMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kCuMinor = 76;
constexpr int kCuMaxSharedBytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kCuOverlappingLaunch = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
constexpr unsigned kCuStreamNonBlocking = 1;
constexpr unsigned char kCuPortOfTrigger = 1;  // CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
constexpr unsigned char kCuEarlyEdge = 1;      // CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC

// CUlaunchAttribute and CUlaunchConfig.
struct CuLaunchAttribute {
  int id;
  int padding;
  union {
    int enabled;
    char room[64];
  } value;
};
struct CuLaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  CuStream stream;
  CuLaunchAttribute *attributes;
  unsigned attribute_count;
};

// CUDA_KERNEL_NODE_PARAMS_v2, whose last two members older drivers do not read, and CUgraphEdgeData.
struct CuKernelNode {
  CuFunction function;
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void **params;
  void **extra;
  void *kernel;
  CuContext context;
};
struct CuGraphEdge {
  unsigned char from_port, to_port, type, reserved[5];
};

struct CudaDriver {
  CuResult (*init)(unsigned flags);
  CuResult (*device_count)(int *count);
  CuResult (*device_get)(CuDevice *device, int ordinal);
  CuResult (*device_attribute)(int *value, int attribute, CuDevice device);
  CuResult (*context_retain)(CuContext *context, CuDevice device);
  CuResult (*context_release)(CuDevice device);
  CuResult (*context_push)(CuContext context);
  CuResult (*context_pop)(CuContext *context);
  CuResult (*module_load)(CuModule *module, const void *image);
  CuResult (*module_unload)(CuModule module);
  CuResult (*module_function)(CuFunction *function, CuModule module, const char *name);
  CuResult (*launch)(CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                     CuStream stream, void **params, void **extra);
  // Null where the driver is older than CUDA 12.
  CuResult (*launch_with)(const CuLaunchConfig *config, CuFunction function, void **params,
                          void **extra);
  CuResult (*function_attribute)(CuFunction function, int attribute, int value);
  CuResult (*allocate)(CuDevicePointer *pointer, std::size_t bytes);
  CuResult (*release)(CuDevicePointer pointer);
  CuResult (*copy_to_device)(CuDevicePointer to, const void *of, std::size_t bytes,
                             CuStream stream);
  CuResult (*copy_to_host)(void *to, CuDevicePointer of, std::size_t bytes, CuStream stream);
  CuResult (*copy_on_device)(CuDevicePointer to, CuDevicePointer of, std::size_t bytes,
                             CuStream stream);
  CuResult (*allocate_pinned)(void **memory, std::size_t bytes, unsigned flags);
  CuResult (*release_pinned)(void *memory);
  CuResult (*fill)(CuDevicePointer to, unsigned char byte, std::size_t count, CuStream stream);
  CuResult (*stream_create)(CuStream *stream, unsigned flags);
  CuResult (*stream_destroy)(CuStream stream);
  CuResult (*stream_synchronize)(CuStream stream);
  CuResult (*graph_create)(CuGraph *graph, unsigned flags);
  CuResult (*graph_add_kernel)(CuGraphNode *node, CuGraph graph, const CuGraphNode *behind,
                               std::size_t count, const CuKernelNode *about);
  CuResult (*graph_add_edges)(CuGraph graph, const CuGraphNode *from, const CuGraphNode *to,
                              std::size_t count);
  // Null where the driver is older than CUDA 12.3.
  CuResult (*graph_add_edges_with)(CuGraph graph, const CuGraphNode *from, const CuGraphNode *to,
                                   const CuGraphEdge *about, std::size_t count);
  CuResult (*graph_instantiate)(CuGraphExec *exec, CuGraph graph, unsigned long long flags);
  CuResult (*graph_destroy)(CuGraph graph);
  CuResult (*graph_exec_destroy)(CuGraphExec exec);
  CuResult (*graph_launch)(CuGraphExec exec, CuStream stream);
  CuResult (*error_string)(CuResult result, const char **text);
};

// The driver, opened and initialised at the first call. Throws Failure where there is none, or no
// GPU; the next call tries again.
const CudaDriver &cuda_driver();

// Throws Failure unless `result` is success; `what` says what was tried.
void check_cuda(const CudaDriver &driver, CuResult result, const char *what);

}  // namespace dlc_runtime
#endif

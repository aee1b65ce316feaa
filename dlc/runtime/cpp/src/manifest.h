// What an artefact says about itself. The layout of the bytes is in dlc/core/manifest.py.
#ifndef DLC_SRC_MANIFEST_H
#define DLC_SRC_MANIFEST_H

#include <cstdint>
#include <string>
#include <vector>

#include "dlc/runtime.h"

namespace dlc_runtime {

struct SizeVariable {
  std::string name;
  std::int64_t min = 0;
  std::int64_t max = -1;  // -1: not bounded
};

struct Dim {
  std::int64_t constant = -1;  // -1: not constant
  std::int64_t size = -1;      // index of a size variable; -1: none
  std::string text;
};

struct TensorSpec {
  std::string name;
  DLDataType dtype{};
  std::vector<Dim> dims;
};

struct Manifest {
  std::uint32_t abi_version = 0;
  std::string dlc_version;
  std::string architecture;
  std::vector<std::string> cpu_features;
  std::vector<SizeVariable> sizes;
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  std::string metadata;
};

// Throws Failure where the bytes are no manifest, or one that contradicts itself.
Manifest decode_manifest(const std::string &bytes);

// "f32", "i64", "bf16", "f8e5m2", "bool".
std::string print_dtype(DLDataType dtype);

// What an element takes in memory; one of fewer than 8 bits takes a byte.
unsigned element_bytes(DLDataType dtype);

}  // namespace dlc_runtime
#endif

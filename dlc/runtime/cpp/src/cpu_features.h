// Which instructions this machine has, by LLVM's names.
#ifndef DLC_SRC_CPU_FEATURES_H
#define DLC_SRC_CPU_FEATURES_H

#include <string>
#include <vector>

namespace dlc_runtime {

// "x86_64" or "aarch64": what this runtime was built for.
const char *architecture() noexcept;

// Those of `required` that the CPU, the kernel or this runtime does not have or know. Asks the
// kernel for the AMX tile registers where one of them needs those.
std::vector<std::string> missing_features(const std::vector<std::string> &required);

}  // namespace dlc_runtime
#endif

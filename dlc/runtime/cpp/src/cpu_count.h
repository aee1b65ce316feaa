// How many threads this process should use.
#ifndef DLC_SRC_CPU_COUNT_H
#define DLC_SRC_CPU_COUNT_H

#include <string>
#include <vector>

namespace dlc_runtime {

// DLC_NUM_THREADS if it is a whole number from 1 to 1024; else the least of the affinity mask, the
// cgroup CPU quota (rounded down) and the physical cores. At least 1.
unsigned default_num_threads();

// The parts of the answer; `root` is the file system to read, "" for the real one.
std::vector<unsigned> allowed_cpus();
// Cores behind these hardware threads; 0 where the kernel does not tell.
unsigned physical_cores(const std::string &root, const std::vector<unsigned> &cpus);
// CPUs the cgroups of this process may use, versions 1 and 2; 0 without a quota.
unsigned cgroup_quota(const std::string &root);

}  // namespace dlc_runtime
#endif

// How many threads this process should use.
#ifndef DLC_SRC_CPU_COUNT_H
#define DLC_SRC_CPU_COUNT_H

namespace dlc_runtime {

// DLC_NUM_THREADS if it is a whole number of at least 1; else the least of the affinity mask, the
// cgroup CPU quota (rounded down) and the physical cores. At least 1.
unsigned default_num_threads();

}  // namespace dlc_runtime
#endif

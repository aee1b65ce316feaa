#include "cpu_count.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "thread_pool.h"

namespace dlc_runtime {
namespace {

constexpr unsigned kNoLimit = std::numeric_limits<unsigned>::max();

std::string first_line(const std::string &path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

unsigned asked_for() {
  const char *text = std::getenv("DLC_NUM_THREADS");
  if (text == nullptr) return 0;
  char *end = nullptr;
  const long count = std::strtol(text, &end, 10);
  return *end == '\0' && count >= 1 ? static_cast<unsigned>(std::min(count, long{kMaxThreads})) : 0;
}

std::vector<unsigned> allowed_cpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::vector<unsigned> cpus;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return cpus;
  for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
  }
  return cpus;
}

// Two hyper-threads share the units that do the arithmetic; the siblings' list names the core.
unsigned physical_cores(const std::vector<unsigned> &cpus) {
  std::set<std::string> cores;
  for (const unsigned cpu : cpus) {
    const std::string siblings = first_line("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                                            "/topology/thread_siblings_list");
    if (siblings.empty()) return kNoLimit;
    cores.insert(siblings);
  }
  return static_cast<unsigned>(cores.size());
}

// A quota and its period, in microseconds; -1 or "max" is no quota.
unsigned cpus_of_quota(const std::string &quota, const std::string &period) {
  const long long allowed = std::atoll(quota.c_str());
  const long long each = std::atoll(period.c_str());
  if (allowed <= 0 || each <= 0) return kNoLimit;
  return static_cast<unsigned>(std::clamp(allowed / each, 1LL, 1LL << 16U));
}

// A quota of any group above ours binds us too.
// Source: Documentation/admin-guide/cgroup-v2.rst, cpu.max; scheduler/sched-bwc.rst for version 1.
unsigned quota_of_group(const std::string &root, std::string group, bool version_2) {
  unsigned least = kNoLimit;
  for (;;) {
    const std::string folder = root + group;
    if (version_2) {
      const std::string line = first_line(folder + "/cpu.max");
      const std::size_t space = std::min(line.find(' '), line.size());
      least = std::min(least, cpus_of_quota(line.substr(0, space), line.substr(space)));
    } else {
      least = std::min(least, cpus_of_quota(first_line(folder + "/cpu.cfs_quota_us"),
                                            first_line(folder + "/cpu.cfs_period_us")));
    }
    const std::size_t slash = group.rfind('/');
    if (slash == std::string::npos) return least;
    group.resize(slash);
  }
}

bool names_cpu(const std::string &controllers) {
  return (',' + controllers + ',').find(",cpu,") != std::string::npos;
}

// Lines of /proc/self/cgroup are `number:controllers:/group`; version 2 has no controllers.
unsigned cgroup_quota() {
  unsigned least = kNoLimit;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    if (controllers.empty()) {
      least = std::min(least, quota_of_group("/sys/fs/cgroup", group, true));
    } else if (names_cpu(controllers)) {
      least = std::min(least, quota_of_group("/sys/fs/cgroup/cpu", group, false));
    }
  }
  return least;
}

}  // namespace

unsigned default_num_threads() {
  if (const unsigned asked = asked_for(); asked > 0) return asked;
  const std::vector<unsigned> cpus = allowed_cpus();
  unsigned count = cpus.empty() ? 1 : static_cast<unsigned>(cpus.size());
  count = std::min({count, physical_cores(cpus), cgroup_quota(), kMaxThreads});
  return std::max(count, 1U);
}

}  // namespace dlc_runtime

#include "cpu_count.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "thread_pool.h"

namespace dlc_runtime {
namespace {

constexpr unsigned kNoLimit = 0;

unsigned least_of(unsigned a, unsigned b) {
  if (a == kNoLimit || b == kNoLimit) return a + b;
  return std::min(a, b);
}

std::string first_line(const std::string &path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

constexpr const char *kVariable = "DLC_NUM_THREADS";

// The same values as dlc/core/env.py reads; what is no number is said once, and passed over.
unsigned asked_for() {
  const char *given = std::getenv(kVariable);
  std::string_view text = given == nullptr ? "" : given;
  constexpr const char *kBlanks = " \t\n\v\f\r";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  text = text.substr(0, text.find_last_not_of(kBlanks) + 1);
  if (text.empty()) return 0;
  unsigned count = 0;
  for (const char digit : text) {
    const bool fine = digit >= '0' && digit <= '9';
    count = fine ? std::min(count * 10 + static_cast<unsigned>(digit - '0'), kMaxThreads + 1) : 0;
    if (!fine) break;
  }
  if (count > kMaxThreads) count = 0;
  if (count == 0) {
    static std::atomic_flag said = ATOMIC_FLAG_INIT;
    if (!said.test_and_set()) {
      std::fprintf(stderr, "dlc: %s is '%s', not a whole number from 1 to %u: ignored\n",
                   kVariable, given, kMaxThreads);
    }
  }
  return count;
}

}  // namespace

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
unsigned physical_cores(const std::string &root, const std::vector<unsigned> &cpus) {
  std::set<std::string> cores;
  for (const unsigned cpu : cpus) {
    const std::string siblings = first_line(root + "/sys/devices/system/cpu/cpu" +
                                            std::to_string(cpu) +
                                            "/topology/thread_siblings_list");
    if (siblings.empty()) return kNoLimit;
    cores.insert(siblings);
  }
  return static_cast<unsigned>(cores.size());
}

namespace {

// A quota and its period, in microseconds; -1 or "max" is no quota.
unsigned cpus_of_quota(const std::string &quota, const std::string &period) {
  const long long allowed = std::atoll(quota.c_str());
  const long long each = std::atoll(period.c_str());
  if (allowed <= 0 || each <= 0) return kNoLimit;
  return static_cast<unsigned>(std::clamp(allowed / each, 1LL, 1LL << 16U));  // 1.5: one
}

// A quota of any group above ours binds us too.
// Source: Documentation/admin-guide/cgroup-v2.rst, cpu.max; scheduler/sched-bwc.rst for version 1.
unsigned quota_of_group(const std::string &mount, std::string group, bool version_2) {
  unsigned least = kNoLimit;
  for (;;) {
    const std::string folder = mount + group;
    if (version_2) {
      const std::string line = first_line(folder + "/cpu.max");
      const std::size_t space = std::min(line.find(' '), line.size());
      least = least_of(least, cpus_of_quota(line.substr(0, space), line.substr(space)));
    } else {
      least = least_of(least, cpus_of_quota(first_line(folder + "/cpu.cfs_quota_us"),
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

}  // namespace

// Lines of /proc/self/cgroup are `number:controllers:/group`; version 2 has no controllers.
unsigned cgroup_quota(const std::string &root) {
  unsigned least = kNoLimit;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    if (controllers.empty()) {
      least = least_of(least, quota_of_group(root + "/sys/fs/cgroup", group, true));
    } else if (names_cpu(controllers)) {
      least = least_of(least, quota_of_group(root + "/sys/fs/cgroup/cpu", group, false));
    }
  }
  return least;
}

unsigned default_num_threads() {
  if (const unsigned asked = asked_for(); asked > 0) return asked;
  const std::vector<unsigned> cpus = allowed_cpus();
  unsigned count = static_cast<unsigned>(cpus.size());
  count = least_of(count, physical_cores("", cpus));
  count = least_of(count, cgroup_quota(""));
  return std::clamp(count, 1U, kMaxThreads);
}

}  // namespace dlc_runtime

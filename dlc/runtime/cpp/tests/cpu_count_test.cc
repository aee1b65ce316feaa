// Cores and quotas, read from file systems made for the purpose.
#include "cpu_count.h"

#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "check.h"

using dlc_runtime::cgroup_quota;
using dlc_runtime::physical_cores;

namespace {

namespace fs = std::filesystem;

class Root {
 public:
  Root() {
    char name[] = "/tmp/dlc_cpu_count_XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Root() { fs::remove_all(path_); }
  Root(const Root &) = delete;
  Root &operator=(const Root &) = delete;

  void write(const std::string &file, const std::string &text) const {
    const fs::path path = path_ + file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void siblings(unsigned cpu, const std::string &list) const {
    write("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
          list + "\n");
  }
  const std::string &path() const { return path_; }

 private:
  std::string path_;
};

void test_two_hardware_threads_are_one_core() {
  const Root root;
  root.siblings(0, "0,2");
  root.siblings(1, "1,3");
  root.siblings(2, "0,2");
  root.siblings(3, "1,3");
  CHECK(physical_cores(root.path(), {0, 1, 2, 3}) == 2);
  CHECK(physical_cores(root.path(), {0, 2}) == 1);
  CHECK(physical_cores(root.path(), {0, 7}) == 0);  // the kernel does not tell
}

void test_a_quota_of_version_2() {
  const Root root;
  CHECK(cgroup_quota(root.path()) == 0);
  root.write("/proc/self/cgroup", "0::/a/b\n");
  CHECK(cgroup_quota(root.path()) == 0);
  root.write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  CHECK(cgroup_quota(root.path()) == 0);
  root.write("/sys/fs/cgroup/a/b/cpu.max", "350000 100000\n");
  CHECK(cgroup_quota(root.path()) == 3);
  root.write("/sys/fs/cgroup/a/cpu.max", "50000 100000\n");  // the group above allows less
  CHECK(cgroup_quota(root.path()) == 1);
}

void test_a_quota_of_version_1() {
  const Root root;
  root.write("/proc/self/cgroup", "5:cpuset:/x\n4:cpu,cpuacct:/job\n");
  root.write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  root.write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  CHECK(cgroup_quota(root.path()) == 0);
  root.write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "200000\n");
  CHECK(cgroup_quota(root.path()) == 2);
}

// In a container the group is the root of what is mounted.
void test_a_quota_of_the_root_group() {
  const Root root;
  root.write("/proc/self/cgroup", "0::/\n");
  root.write("/sys/fs/cgroup/cpu.max", "400000 100000\n");
  CHECK(cgroup_quota(root.path()) == 4);
}

void test_the_affinity_mask_and_the_variable() {
  unsetenv("DLC_NUM_THREADS");
  cpu_set_t all, one;
  CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
  CPU_ZERO(&one);
  CPU_SET(dlc_runtime::allowed_cpus().at(0), &one);
  CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(dlc_runtime::default_num_threads() == 1);
  setenv("DLC_NUM_THREADS", "3", 1);
  CHECK(dlc_runtime::default_num_threads() == 3);
  setenv("DLC_NUM_THREADS", " 03\t", 1);
  CHECK(dlc_runtime::default_num_threads() == 3);
  setenv("DLC_NUM_THREADS", "1024", 1);
  CHECK(dlc_runtime::default_num_threads() == 1024);
  const Root root;
  const std::string said = root.path() + "/said";
  CHECK(std::freopen(said.c_str(), "w", stderr) != nullptr);
  for (const char *none : {" ", "3x", "x3", "-1", "+1", "0", "1.5", "1 2", "1025",
                           "99999999999999999999"}) {
    setenv("DLC_NUM_THREADS", none, 1);
    CHECK(dlc_runtime::default_num_threads() == 1);
  }
  std::fflush(stderr);
  std::ifstream lines(said);
  std::string line;
  CHECK(std::getline(lines, line) && line.find("is '3x', not a whole number") != line.npos);
  CHECK(!std::getline(lines, line));  // it is said once
  CHECK(sched_setaffinity(0, sizeof all, &all) == 0);
}

}  // namespace

int main() {
  test_two_hardware_threads_are_one_core();
  test_a_quota_of_version_2();
  test_a_quota_of_version_1();
  test_a_quota_of_the_root_group();
  test_the_affinity_mask_and_the_variable();
  return check::result();
}

// A test program: checks that report and count, in functions that main runs one after the other.
#ifndef DLC_TESTS_CHECK_H
#define DLC_TESTS_CHECK_H

#include <atomic>
#include <cstdio>
#include <string>

namespace check {

inline std::atomic<int> failures{0};

inline void that(bool holds, const char *text, const char *file, int line) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "%s:%d: not true: %s\n", file, line, text);
}

inline void has(const std::string &whole, const std::string &part, const char *file, int line) {
  if (whole.find(part) != std::string::npos) return;
  ++failures;
  std::fprintf(stderr, "%s:%d: '%s' does not contain '%s'\n", file, line, whole.c_str(),
               part.c_str());
}

inline int result() {
  if (failures == 0) std::printf("all checks hold\n");
  return failures == 0 ? 0 : 1;
}

}  // namespace check

#define CHECK(condition) check::that(condition, #condition, __FILE__, __LINE__)
#define CHECK_HAS(whole, part) check::has(whole, part, __FILE__, __LINE__)

#endif

#include "cpu_features.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#else
#error "dlc runs on x86-64 and aarch64"
#endif

namespace dlc_runtime {
namespace {

#if defined(__x86_64__)

enum Register : unsigned { kEax, kEbx, kEcx, kEdx };

// Parts of the register state that the kernel must save on a context switch.
// Source: Intel SDM volume 1, section 13.1, state components of XCR0.
constexpr std::uint64_t kSse = 1U << 1U;
constexpr std::uint64_t kAvx = kSse | 1U << 2U;
constexpr std::uint64_t kAvx512 = kAvx | 7U << 5U;
constexpr std::uint64_t kAmx = 3U << 17U;

struct Feature {
  const char *name;
  unsigned leaf, subleaf, reg, bit;
  std::uint64_t state;
};

// Source: Intel SDM volume 2, CPUID; AMD APM volume 3, appendix E, for the leaves from 0x80000000;
// names from LLVM, llvm/lib/TargetParser/Host.cpp.
constexpr Feature kFeatures[] = {
    {"cx8", 1, 0, kEdx, 8, 0},
    {"cmov", 1, 0, kEdx, 15, 0},
    {"mmx", 1, 0, kEdx, 23, 0},
    {"fxsr", 1, 0, kEdx, 24, 0},
    {"sse", 1, 0, kEdx, 25, kSse},
    {"sse2", 1, 0, kEdx, 26, kSse},
    {"sse3", 1, 0, kEcx, 0, kSse},
    {"pclmul", 1, 0, kEcx, 1, kSse},
    {"ssse3", 1, 0, kEcx, 9, kSse},
    {"fma", 1, 0, kEcx, 12, kAvx},
    {"cx16", 1, 0, kEcx, 13, 0},
    {"sse4.1", 1, 0, kEcx, 19, kSse},
    {"sse4.2", 1, 0, kEcx, 20, kSse},
    {"crc32", 1, 0, kEcx, 20, 0},
    {"movbe", 1, 0, kEcx, 22, 0},
    {"popcnt", 1, 0, kEcx, 23, 0},
    {"aes", 1, 0, kEcx, 25, kSse},
    {"xsave", 1, 0, kEcx, 27, 0},
    {"avx", 1, 0, kEcx, 28, kAvx},
    {"f16c", 1, 0, kEcx, 29, kAvx},
    {"rdrnd", 1, 0, kEcx, 30, 0},
    {"fsgsbase", 7, 0, kEbx, 0, 0},
    {"bmi", 7, 0, kEbx, 3, 0},
    {"avx2", 7, 0, kEbx, 5, kAvx},
    {"bmi2", 7, 0, kEbx, 8, 0},
    {"avx512f", 7, 0, kEbx, 16, kAvx512},
    {"avx512dq", 7, 0, kEbx, 17, kAvx512},
    {"rdseed", 7, 0, kEbx, 18, 0},
    {"adx", 7, 0, kEbx, 19, 0},
    {"avx512ifma", 7, 0, kEbx, 21, kAvx512},
    {"clflushopt", 7, 0, kEbx, 23, 0},
    {"clwb", 7, 0, kEbx, 24, 0},
    {"avx512cd", 7, 0, kEbx, 28, kAvx512},
    {"sha", 7, 0, kEbx, 29, kSse},
    {"avx512bw", 7, 0, kEbx, 30, kAvx512},
    {"avx512vl", 7, 0, kEbx, 31, kAvx512},
    {"avx512vbmi", 7, 0, kEcx, 1, kAvx512},
    {"avx512vbmi2", 7, 0, kEcx, 6, kAvx512},
    {"gfni", 7, 0, kEcx, 8, kSse},
    {"vaes", 7, 0, kEcx, 9, kAvx},
    {"vpclmulqdq", 7, 0, kEcx, 10, kAvx},
    {"avx512vnni", 7, 0, kEcx, 11, kAvx512},
    {"avx512bitalg", 7, 0, kEcx, 12, kAvx512},
    {"avx512vpopcntdq", 7, 0, kEcx, 14, kAvx512},
    {"rdpid", 7, 0, kEcx, 22, 0},
    {"movdiri", 7, 0, kEcx, 27, 0},
    {"movdir64b", 7, 0, kEcx, 28, 0},
    {"avx512vp2intersect", 7, 0, kEdx, 8, kAvx512},
    {"serialize", 7, 0, kEdx, 14, 0},
    {"amx-bf16", 7, 0, kEdx, 22, kAmx},
    {"avx512fp16", 7, 0, kEdx, 23, kAvx512},
    {"amx-tile", 7, 0, kEdx, 24, kAmx},
    {"amx-int8", 7, 0, kEdx, 25, kAmx},
    {"avxvnni", 7, 1, kEax, 4, kAvx},
    {"avx512bf16", 7, 1, kEax, 5, kAvx512},
    {"amx-fp16", 7, 1, kEax, 21, kAmx},
    {"avxifma", 7, 1, kEax, 23, kAvx},
    {"avxvnniint8", 7, 1, kEdx, 4, kAvx},
    {"avxneconvert", 7, 1, kEdx, 5, kAvx},
    {"avxvnniint16", 7, 1, kEdx, 10, kAvx},
    {"xsaveopt", 0xD, 1, kEax, 0, 0},
    {"xsavec", 0xD, 1, kEax, 1, 0},
    {"xsaves", 0xD, 1, kEax, 3, 0},
    {"sahf", 0x80000001, 0, kEcx, 0, 0},
    {"lzcnt", 0x80000001, 0, kEcx, 5, 0},
    {"sse4a", 0x80000001, 0, kEcx, 6, kSse},
    {"prfchw", 0x80000001, 0, kEcx, 8, 0},
    {"64bit", 0x80000001, 0, kEdx, 29, 0},
};

std::uint64_t enabled_states() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx >> 27U & 1U) == 0) return 0;
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));  // allowed: OSXSAVE is set
  return static_cast<std::uint64_t>(high) << 32U | low;
}

// Linux hands out the tile registers on request, once for the whole process.
// Source: Documentation/arch/x86/xstate.rst of the Linux kernel.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has(const Feature &feature) {
  unsigned registers[4] = {};
  if (__get_cpuid_count(feature.leaf, feature.subleaf, &registers[kEax], &registers[kEbx],
                        &registers[kEcx], &registers[kEdx]) == 0) {
    return false;
  }
  if ((registers[feature.reg] >> feature.bit & 1U) == 0) return false;
  if (feature.state > kSse && (enabled_states() & feature.state) != feature.state) return false;
  return feature.state != kAmx || may_use_tiles();
}

#else

struct Feature {
  const char *name;
  unsigned long type, bit;
};

// Source: Documentation/arch/arm64/elf_hwcaps.rst and asm/hwcap.h of the Linux kernel; names from
// LLVM, llvm/lib/Target/AArch64/AArch64Features.td.
constexpr Feature kFeatures[] = {
    {"fp-armv8", AT_HWCAP, 0},  {"neon", AT_HWCAP, 1},      {"aes", AT_HWCAP, 3},
    {"sha2", AT_HWCAP, 6},      {"crc", AT_HWCAP, 7},       {"lse", AT_HWCAP, 8},
    {"fullfp16", AT_HWCAP, 10}, {"rdm", AT_HWCAP, 12},      {"jsconv", AT_HWCAP, 13},
    {"complxnum", AT_HWCAP, 14}, {"rcpc", AT_HWCAP, 15},    {"sha3", AT_HWCAP, 17},
    {"sm4", AT_HWCAP, 19},      {"dotprod", AT_HWCAP, 20},  {"sve", AT_HWCAP, 22},
    {"fp16fml", AT_HWCAP, 23},  {"sb", AT_HWCAP, 29},       {"sve2", AT_HWCAP2, 1},
    {"i8mm", AT_HWCAP2, 13},    {"bf16", AT_HWCAP2, 14},    {"sme", AT_HWCAP2, 23},
};

bool has(const Feature &feature) {
  return (getauxval(feature.type) >> feature.bit & 1U) != 0;
}

#endif

bool has_named(const std::string &name) {
  for (const Feature &feature : kFeatures) {
    if (name == feature.name) return has(feature);
  }
  return false;
}

}  // namespace

const char *architecture() noexcept {
#if defined(__x86_64__)
  return "x86_64";
#else
  return "aarch64";
#endif
}

std::vector<std::string> missing_features(const std::vector<std::string> &required) {
  std::vector<std::string> missing;
  for (const std::string &name : required) {
    if (!has_named(name)) missing.push_back(name);
  }
  return missing;
}

}  // namespace dlc_runtime

// The rounding and denormal mode of the calling thread.
//
// The host may have changed it (a library linked with -ffast-math flushes denormals for the whole
// process), and threads inherit it. Results must not depend on that, nor on which thread computes
// what: model code always runs with IEEE defaults, and the host gets its own mode back.
#ifndef DLC_SRC_FLOAT_ENVIRONMENT_H
#define DLC_SRC_FLOAT_ENVIRONMENT_H

#include <cstdint>

namespace dlc_runtime {

#if defined(__x86_64__)
using FloatMode = std::uint32_t;
// Source: Intel SDM volume 1, section 10.2.3: all exceptions masked, round to nearest, no flushing.
constexpr FloatMode kDefaultFloatMode = 0x1F80;
inline FloatMode float_mode() noexcept { return __builtin_ia32_stmxcsr(); }
inline void set_float_mode(FloatMode mode) noexcept { __builtin_ia32_ldmxcsr(mode); }
#else
using FloatMode = std::uint64_t;
// Source: Arm ARM, FPCR: 0 is round to nearest, no flushing, no traps.
constexpr FloatMode kDefaultFloatMode = 0;
inline FloatMode float_mode() noexcept {
  FloatMode mode = 0;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
inline void set_float_mode(FloatMode mode) noexcept { __asm__ volatile("msr fpcr, %0" ::"r"(mode)); }
#endif

inline void set_default_float_environment() noexcept { set_float_mode(kDefaultFloatMode); }

class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() noexcept : before_(float_mode()) { set_default_float_environment(); }
  ~DefaultFloatEnvironment() { set_float_mode(before_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment &) = delete;
  DefaultFloatEnvironment &operator=(const DefaultFloatEnvironment &) = delete;

 private:
  FloatMode before_;
};

}  // namespace dlc_runtime
#endif

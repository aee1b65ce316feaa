// What printed kernels are written in, besides plain C++. This file is for a GPU; with DLC_EMULATE
// the same names come from emulate.h, and the kernels run on a CPU.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#ifdef DLC_EMULATE
#include "emulate.h"
#else

#define DLC_FN __device__ __forceinline__
#define DLC_METHOD __device__ __forceinline__
#define DLC_KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads) name
// A kernel with work that is hardly ever there: for its sake no register is saved to let more blocks
// onto a processor, which the compiler would do by keeping in memory what that work needs.
#define DLC_ROOMY_KERNEL(name, threads) \
  extern "C" __global__ void __launch_bounds__(threads, 1) name
#define DLC_IN(type, name) const type *__restrict__ name
#define DLC_OUT(type, name) type *__restrict__ name
#define DLC_SHARED_IN_PLACE(type, name) const type *name
#define DLC_OUT_IN_PLACE(type, name) type *name
// A part of the block's memory, from some byte on; the launch says how much there is.
#define DLC_SHARED(type, name, count, offset) type *const name = (type *)(dlc_shared + offset)
#define DLC_LOCAL(type, name, count) type name[count]
#define DLC_BLOCK blockIdx.x
#define DLC_THREAD int(threadIdx.x)
#define DLC_BLOCKS gridDim.x
#define DLC_THREADS blockDim.x
// Memory that the host reads behind the run, if anything is there: nothing is, in most runs.
#define DLC_REPORTS u64 *const dlc_reports
#define DLC_UNROLL _Pragma("unroll")

extern __shared__ __align__(16) char dlc_shared[];

DLC_FN void barrier() { __syncthreads(); }

// Before the wait: asks for what no launch writes, all blocks together, 128 bytes at a time.
// Source: PTX ISA 9.0, "Data Movement and Conversion Instructions": prefetch.
template <class T> DLC_FN void fetch_ahead(const T *p, i64 count) {
#if __CUDA_ARCH__ >= 900
  const char *const end = (const char *)(p + count);
  const i64 number = i64(blockIdx.x) * blockDim.x + threadIdx.x, all = i64(gridDim.x) * blockDim.x;
  for (const char *at = (const char *)p + number * 128; at < end; at += all * 128)
    asm volatile("prefetch.global.L2 [%0];" :: "l"(__cvta_generic_to_global(at)));
#endif
}

// Before all that reads or writes: what was launched before is done, and the next launch may come,
// which waits here for this one. So two launches are on the GPU at most. Older ones come one by one.
// Source: PTX ISA 9.0, "Parallel Synchronization and Communication Instructions": griddepcontrol.
DLC_FN void begin_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Whether all blocks of a group but this one have come here: then this one sees what they stored.
// The count begins and ends with 0. One thread speaks for its block: what it has seen behind the
// barrier, others see behind the count.
// Source: PTX ISA 9.0, "Memory Consistency Model", causality order; "atom".
DLC_FN bool last_block(u32 *arrivals, i64 group, u32 count) {
  __syncthreads();
  u32 before = 0;
  if (threadIdx.x == 0)
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(arrivals + group)), "r"(count - 1) : "memory");
  return __syncthreads_or(threadIdx.x == 0 && before == count - 1);
}

// A word of a report is the largest that any thread has, of this GPU.
DLC_FN void report_word(u64 *reports, i64 at, u64 word) { atomicMax(reports + at, word); }

// A product that is rounded before anything is added to it.
DLC_FN float times(float a, float b) { return __fmul_rn(a, b); }

DLC_FN float bits_to_float(u32 x) { return __uint_as_float(x); }
DLC_FN u32 float_to_bits(float x) { return __float_as_uint(x); }
DLC_FN double bits_to_double(u64 x) { return __longlong_as_double(x); }

// 16-bit floats in memory; computed with as float, rounded to nearest even.
struct f16 {
  u16 bits;
  f16() = default;
  DLC_METHOD explicit f16(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  DLC_METHOD explicit f16(double x) { asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(x)); }
  template <class T> DLC_METHOD explicit f16(T x) : f16(float(x)) {}
  DLC_METHOD explicit operator float() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
};

// Warp instructions. Source: PTX ISA 9.0, "Warp Level Matrix Instructions": ldmatrix, mma.
template <class T> DLC_FN u32 shared_address(const T *p) { return u32(__cvta_generic_to_shared(p)); }
// Copies beside what the thread does: 4, 8 or 16 bytes, both places aligned to as many.
// Source: PTX ISA 9.0, "Data Movement and Conversion Instructions": cp.async.
template <int COUNT, class T> DLC_FN void copy_async(T *to, i64 at, const T *from, i64 first) {
  const u32 target = shared_address(to + at);
  const u64 source = u64(__cvta_generic_to_global(from + first));
  if (COUNT * sizeof(T) == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(target), "l"(source) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                 :: "r"(target), "l"(source), "n"(COUNT * sizeof(T) == 8 ? 8 : 4) : "memory");
}
DLC_FN void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int GROUPS> DLC_FN void wait_copies() {
  asm volatile("cp.async.wait_group %0;" :: "n"(GROUPS) : "memory");
}
// What the lane has whose number differs in some bits.
template <class T> DLC_FN T of_lane(T x, int bits) { return __shfl_xor_sync(0xffffffffu, x, bits); }
template <class T> DLC_FN void load_matrices(u32 (&x)[4], const T *p, int at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(p + at)) : "memory");
}
template <class T> DLC_FN void load_turned(u32 (&x)[2], const T *p, int at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(x[0]), "=r"(x[1]) : "r"(shared_address(p + at)) : "memory");
}
// Two columns of tiles at a time: the upper lanes have the addresses of the second one.
template <class T> DLC_FN void load_turned(u32 (&x)[4], const T *p, int at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(p + at)) : "memory");
}
template <class T> DLC_FN void load_lines(u32 (&x)[2], const T *p, int at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(x[0]), "=r"(x[1]) : "r"(shared_address(p + at)) : "memory");
}
#define DLC_MMA(T, name) \
  DLC_FN void multiply_add(float *c, const u32 (&a)[4], const u32 (&b)[2], T) { \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0, %1, %2, %3}, " \
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
  }
struct bf16;
struct is_f16 {};
struct is_tf32 {};
DLC_FN void multiply_add(float *c, const u32 (&a)[4], const u32 (&b)[2], is_tf32) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DLC_FN u32 to_tf32(u32 x) {
  u32 y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(x)));
  return y;
}
// A summand of a column for each lane of a warp, and the one four summands on.
DLC_FN void load_column(u32 (&x)[2], const float *p, int at, int line) {
  x[0] = __float_as_uint(p[at]);
  x[1] = __float_as_uint(p[at + 4 * line]);
}
struct is_bf16 {};
DLC_MMA(is_f16, "f16")
DLC_MMA(is_bf16, "bf16")
#define DLC_MMA_BYTES(A, a_name, B, b_name) \
  DLC_FN void multiply_add(i32 *c, const u32 (&a)[4], const u32 (&b)[2], A, B) { \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." a_name "." b_name ".s32 {%0, %1, %2, %3}, " \
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
  }
struct is_i8 {};
struct is_u8 {};
DLC_MMA_BYTES(is_i8, "s8", is_i8, "s8")
DLC_MMA_BYTES(is_i8, "s8", is_u8, "u8")
DLC_MMA_BYTES(is_u8, "u8", is_i8, "s8")
DLC_MMA_BYTES(is_u8, "u8", is_u8, "u8")
DLC_FN is_i8 kind_of(const i8 *) { return {}; }
DLC_FN is_u8 kind_of(const u8 *) { return {}; }
DLC_FN is_f16 kind_of(const f16 *) { return {}; }
DLC_FN is_bf16 kind_of(const bf16 *) { return {}; }

DLC_FN u16 round_to_bf16(float x) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

// NaN if either operand is, as NumPy has it; min.NaN and max.NaN are instructions.
DLC_FN float min_of(float a, float b) {
  float x;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
  return x;
}
DLC_FN float max_of(float a, float b) {
  float x;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
  return x;
}

#endif

// ---- the same on both sides

struct bf16 {
  u16 bits;
  bf16() = default;
  DLC_METHOD explicit bf16(float x) { bits = round_to_bf16(x); }
  template <class T> DLC_METHOD explicit bf16(T x) : bf16(float(x)) {}
  DLC_METHOD explicit operator float() const { return bits_to_float(u32(bits) << 16); }
};

template <class T> DLC_FN T inf_of();
template <> DLC_METHOD float inf_of<float>() { return bits_to_float(0x7f800000u); }
template <> DLC_METHOD double inf_of<double>() { return bits_to_double(0x7ff0000000000000ull); }
template <class T> DLC_FN T nan_of();
template <> DLC_METHOD float nan_of<float>() { return bits_to_float(0x7fc00000u); }
template <> DLC_METHOD double nan_of<double>() { return bits_to_double(0x7ff8000000000000ull); }

DLC_FN double min_of(double a, double b) { return a != a || a < b ? a : b; }
DLC_FN double max_of(double a, double b) { return a != a || a > b ? a : b; }
template <class T> DLC_FN T min_of(T a, T b) { return a < b ? a : b; }
template <class T> DLC_FN T max_of(T a, T b) { return a > b ? a : b; }

// Integers: sums and products wrap around; `//` and `%` round down; by 0 counts as by 1; the lowest
// number divided by -1 wraps around; a shift by the width or more leaves nothing but the sign.
template <class T> DLC_FN T wrap_add(T a, T b) { return T(u64(a) + u64(b)); }
template <class T> DLC_FN T wrap_sub(T a, T b) { return T(u64(a) - u64(b)); }
template <class T> DLC_FN T wrap_mul(T a, T b) { return T(u64(a) * u64(b)); }
template <class T> DLC_FN T int_div(T a, T b) {
  if (b == T(0)) return a;
  return T(-1) < T(0) && b == T(-1) ? wrap_sub(T(0), a) : T(a / b);
}
template <class T> DLC_FN T int_rem(T a, T b) {
  if (b == T(0)) return T(0);
  return T(-1) < T(0) && b == T(-1) ? T(0) : T(a % b);
}
template <class T> DLC_FN T floor_mod(T a, T b) {
  const T rest = int_rem(a, b);
  return rest != T(0) && (rest < T(0)) != (b < T(0)) ? T(rest + b) : rest;
}
template <class T> DLC_FN T floor_div(T a, T b) {
  const T rest = int_rem(a, b), whole = int_div(a, b);
  return rest != T(0) && (rest < T(0)) != (b < T(0)) ? T(whole - T(1)) : whole;
}
DLC_FN i64 floor_div(int a, i64 b) { return floor_div(i64(a), b); }
DLC_FN i64 floor_mod(int a, i64 b) { return floor_mod(i64(a), b); }
DLC_FN i64 floor_div(i64 a, int b) { return floor_div(a, i64(b)); }
DLC_FN i64 floor_mod(i64 a, int b) { return floor_mod(a, i64(b)); }
DLC_FN i64 min_of(i64 a, int b) { return min_of(a, i64(b)); }
DLC_FN i64 max_of(i64 a, int b) { return max_of(a, i64(b)); }
DLC_FN i64 min_of(int a, i64 b) { return min_of(i64(a), b); }
DLC_FN i64 max_of(int a, i64 b) { return max_of(i64(a), b); }
template <class T> DLC_FN T shift_left(T a, T b) {
  return u64(b) < 8 * sizeof(T) ? T(u64(a) << b) : T(0);
}
template <class T> DLC_FN T shift_right(T a, T b) {
  if (u64(b) < 8 * sizeof(T)) return T(a >> b);
  return T(-1) > T(0) ? T(0) : T(a >> (8 * sizeof(T) - 1));
}
template <class T> DLC_FN T int_pow(T a, T b) {
  T product = T(1);
  if (b < T(0)) return a == T(1) ? a : a == T(-1) ? (b & T(1) ? a : T(1)) : T(0);
  for (; b > T(0); b = T(b >> 1)) {
    if (b & T(1)) product = wrap_mul(product, a);
    a = wrap_mul(a, a);
  }
  return product;
}

// Looks for what is no index below a limit, all threads of all blocks together: at each element from
// the `first` on, `step` apart. Of those that are none the first one is reported, by its place, its
// value and the limit, 24 bits of these two behind the place in each word: see explain.py.
template <bool FROM_END, class X, class R>
DLC_FN void check_indices(X x, i64 count, i64 first, i64 step, i64 limit, R reports, i64 number) {
  if (number < 0) return;
  const i64 threads = i64(DLC_BLOCKS) * DLC_THREADS, own = i64(DLC_BLOCK) * DLC_THREADS + DLC_THREAD;
  for (i64 at = first + own * step; at < count; at += threads * step) {
    const i64 value = x[at];
    if (value < limit && value >= (FROM_END ? -limit : 0)) continue;
    for (int word = 0; word < 6; ++word) {
      const u64 part = u64(word < 3 ? value : limit) >> word % 3 * 24 & 0xffffffu;
      report_word(reports, number * 8 + word, ~(u64(at) << 24 | part));
    }
  }
}

// A float as an integer: toward zero, clamped to the range, NaN as 0.
template <class T, class F> DLC_FN T saturate(F x) {
  const bool is_signed = T(-1) < T(0);
  const int bits = 8 * sizeof(T) - is_signed;
  const F end = F(2) * F(1ull << (bits - 1));
  if (x != x) return T(0);
  if (x >= end) return T(~u64(0) >> (64 - bits));
  if (is_signed ? x <= -end : x <= F(0)) return is_signed ? T(1ull << bits) : T(0);
  return T(x);
}

DLC_FN float math_exp(float x) { return expf(x); }
DLC_FN double math_exp(double x) { return exp(x); }
DLC_FN float math_log(float x) { return logf(x); }
DLC_FN double math_log(double x) { return log(x); }
DLC_FN float math_log1p(float x) { return log1pf(x); }
DLC_FN double math_log1p(double x) { return log1p(x); }
DLC_FN float math_sqrt(float x) { return sqrtf(x); }
DLC_FN double math_sqrt(double x) { return sqrt(x); }
DLC_FN float math_tanh(float x) { return tanhf(x); }
DLC_FN double math_tanh(double x) { return tanh(x); }
DLC_FN double math_erf(double x) { return erf(x); }
DLC_FN double math_normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752); }
DLC_FN float math_sin(float x) { return sinf(x); }
DLC_FN double math_sin(double x) { return sin(x); }
DLC_FN float math_cos(float x) { return cosf(x); }
DLC_FN double math_cos(double x) { return cos(x); }
DLC_FN float math_floor(float x) { return floorf(x); }
DLC_FN double math_floor(double x) { return floor(x); }
DLC_FN float math_ceil(float x) { return ceilf(x); }
DLC_FN double math_ceil(double x) { return ceil(x); }
DLC_FN float math_round(float x) { return rintf(x); }
DLC_FN double math_round(double x) { return rint(x); }
DLC_FN int math_lrint(float x) { return int(rintf(x)); }
DLC_FN float math_pow(float a, float b) { return powf(a, b); }
DLC_FN double math_pow(double a, double b) { return pow(a, b); }
DLC_FN float math_abs(float x) { return fabsf(x); }
DLC_FN double math_abs(double x) { return fabs(x); }
template <class T> DLC_FN T math_abs(T x) { return x < T(0) ? wrap_sub(T(0), x) : x; }

// Functions of float32 as CPUs compute them (codegen/llvm/math.py), by the same polynomials. CUDA's
// are short, as expf is, or less accurate: erff, normcdff, and a sigmoid of expf, which is off by
// 2.5 places where expf is off by one.
DLC_FN float horner(float, float total) { return total; }
template <class... T> DLC_FN float horner(float x, float total, float next, T... rest) {
  return horner(x, fmaf(total, x, next), rest...);
}
DLC_FN float at_most(float x, float high) { return x > high ? high : x; }  // NaN stays
DLC_FN float at_least(float x, float low) { return x < low ? low : x; }
DLC_FN float power_of_two(int n) { return bits_to_float(u32(n + 127) << 23); }
// exp(x - n log 2) - 1, where n is the nearest to x / log 2.
DLC_FN float exp_rest(float x, int &n) {
  const float shifted = fmaf(x, 1.442695f, 12582912.0f), whole = shifted - 12582912.0f;
  n = int(float_to_bits(shifted)) - 0x4b400000;
  const float r = fmaf(-whole, 1.4286068e-6f, fmaf(-whole, 0.69314575f, x));
  const float p = horner(r, 0.001381318f, 0.008369419f, 0.041668456f, 0.16666515f, 0.49999994f);
  return fmaf(times(r, r), p, r);
}
// x * 2**n, rounded once, for n from -250.
DLC_FN float scaled(float x, int n) { return x * power_of_two(n >> 1) * power_of_two(n - (n >> 1)); }
// By way of z = exp(-|x|), which cannot overflow; d - z y is y again, with less of its rounding.
DLC_FN float math_sigmoid(float x) {
  int n;
  const float more = exp_rest(at_least(-fabsf(x), -104.0f), n);
  const float z = scaled(1.0f + more, n), d = x < 0.0f ? z : 1.0f;
  return fmaf(-(d / (1.0f + z)), z, d);
}
// A polynomial up to 1, else 1 - exp(p(|x|)).
DLC_FN float math_erf(float x) {
  int n;
  const float size = fabsf(x), y = at_most(size, 4.0f);
  const float near = horner(times(x, x), 7.853844e-05f, -0.0008010189f, 0.0051883273f, -0.026853811f,
                            0.112835854f, -0.37612626f, 0.12837917f);
  const float power = horner(y, 0.00018797234f, -0.0029640135f, 0.021906508f, -0.10325628f, -0.6379649f,
                             -1.1272024f, -0.00031245576f);
  const float total = 1.0f + exp_rest(power, n);
  const float far = copysignf(fmaf(-total, power_of_two(n), 1.0f), x);
  return size < 1.0f ? fmaf(x, near, x) : far;
}
// Below 0 it is exp(-x**2 / 2) R(-x), with a polynomial R of t = 1 / (1 + 0.3 |x|); what factors lose
// by rounding is made good at the end.
DLC_FN float math_normcdf(float x) {
  int n;
  const float y = at_most(fabsf(x), 14.25f), square = times(y, y), lost = fmaf(y, y, -square);
  const float more = exp_rest(-0.5f * square, n), total = 1.0f + more;
  const float divisor = fmaf(y, 0.296875f, 1.0f), t = 1.0f / divisor;
  const float off = fmaf(-t, fmaf(y, 0.296875f, 1.0f - divisor), fmaf(-t, divisor, 1.0f));
  const float p = horner(t - 0.5f, -0.020504322f, 0.022865137f, 0.032848135f, -0.04172732f,
                         -0.07477884f, 0.039378017f, 0.23146543f, 0.3494772f, 0.32793134f, 0.21995366f);
  const float ratio = times(t, p), product = times(total, ratio);
  float rest = fmaf(total, fmaf(t, p, -ratio), fmaf(total, ratio, -product));
  rest = fmaf(ratio, more - (total - 1.0f), rest);
  rest = fmaf(product, fmaf(off, 2.0f, -0.5f * lost), rest);
  const float below = scaled(product + rest, n);
  return x < 0.0f ? below : 1.0f - below;
}
// Right to 19 bits behind the point, 0 where it is less.
DLC_FN float math_normcdf_short(float x) {
  const float y = at_least(at_most(x, 4.75f), -4.75f), place = fmaf(y * 0.08864266f, y, -1.0f);
  const float p = horner(place, 0.0015905434f, -0.004033247f, 0.0044188295f, -0.0066888276f,
                         0.013791125f, -0.021935223f, 0.030307177f, -0.040507235f, 0.053242844f,
                         -0.073670916f, 0.14874822f);
  return at_least(fmaf(y, p, 0.5f), 0.0f);
}
DLC_FN double math_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
DLC_FN float math_flush(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }
DLC_FN float math_tf32(float x) {
  return x != x ? x : bits_to_float((float_to_bits(x) + 0x1000u) & 0xffffe000u);
}
DLC_FN double math_flush(double x) { return fabs(x) < 2.2250738585072014e-308 ? copysign(0.0, x) : x; }
DLC_FN bool math_isnan(float x) { return x != x; }
DLC_FN bool math_isnan(double x) { return x != x; }

// The remainder has the sign of the divisor.
template <class F> DLC_FN F float_floor_mod(F a, F b) {
  const F rest = F(fmod(a, b));
  return rest != F(0) && (rest < F(0)) != (b < F(0)) ? rest + b : rest;
}
template <class F> DLC_FN F float_floor_div(F a, F b) {
  return math_round((a - float_floor_mod(a, b)) / b);
}

// One value of each lane, all taken in by one element.
#define DLC_WARP_REDUCTION(name, join) \
  template <class Y, class T> DLC_FN void warp_##name(Y y, i64 at, T x) { \
    DLC_UNROLL \
    for (int bits = 16; bits; bits /= 2) x = join(x, of_lane(x, bits)); \
    if (DLC_THREAD % 32 == 0) y[at] = join(T(y[at]), x); \
  }
DLC_FN float sum_of(float a, float b) { return a + b; }
DLC_FN double sum_of(double a, double b) { return a + b; }
template <class T> DLC_FN T sum_of(T a, T b) { return wrap_add(a, b); }
DLC_FN float product_of(float a, float b) { return a * b; }
DLC_FN double product_of(double a, double b) { return a * b; }
template <class T> DLC_FN T product_of(T a, T b) { return wrap_mul(a, b); }
DLC_WARP_REDUCTION(add, sum_of)
DLC_WARP_REDUCTION(mul, product_of)
DLC_WARP_REDUCTION(min, min_of)
DLC_WARP_REDUCTION(max, max_of)

// What a warp computes together: M x N tiles of 16 x 8 sums, each of 16 products. A thread has four
// sums of each tile, two neighbours in each half. The factors are in shared memory, rows of `a` and
// `b` 16 bytes aligned.
template <int M, int N, class C, class A, class B>
DLC_FN void multiply_tiles(C &c, int c0, const A &a, int a0, int lda, const B &b, int b0, int ldb) {
  const int line = DLC_THREAD % 16, half = DLC_THREAD % 32 / 16;
  static_assert(N < 4 || N % 2 == 0, "columns of tiles are loaded two at a time");
  u32 y[N][2];
  DLC_UNROLL
  for (int n = 0; n < N; n += N < 4 ? 1 : 2)
    if (N < 4)  // where a second address would cost more than the load
      load_turned(y[n], b, b0 + line * ldb + n * 8);
    else
      load_turned(reinterpret_cast<u32(&)[4]>(y[n]), b, b0 + line * ldb + (n + half) * 8);
  DLC_UNROLL
  for (int m = 0; m < M; ++m) {
    u32 x[4];
    load_matrices(x, a, a0 + (m * 16 + line) * lda + half * 8);
    DLC_UNROLL
    for (int n = 0; n < N; ++n) multiply_add(&c[c0 + (m * N + n) * 4], x, y[n], kind_of(a));
  }
}

// The same of bytes: each sum is of 32 products. Columns of `b` are lines, as rows of `a` are.
template <int M, int N, class C, class A, class B>
DLC_FN void multiply_bytes(C &c, int c0, const A &a, int a0, int lda, const B &b, int b0, int ldb) {
  const int line = DLC_THREAD % 16, half = DLC_THREAD % 32 / 16;
  u32 y[N][2];
  DLC_UNROLL
  for (int n = 0; n < N; ++n) load_lines(y[n], b, b0 + (n * 8 + line % 8) * ldb + line / 8 * 16);
  DLC_UNROLL
  for (int m = 0; m < M; ++m) {
    u32 x[4];
    load_matrices(x, a, a0 + (m * 16 + line) * lda + half * 16);
    DLC_UNROLL
    for (int n = 0; n < N; ++n)
      multiply_add(&c[c0 + (m * N + n) * 4], x, y[n], kind_of(a), kind_of(b));
  }
}

// The same of float32, rounded to TF32: each sum is of 8 products. Columns of `b` lie apart by lines.
template <int M, int N, class C, class A, class B>
DLC_FN void multiply_tf32(C &c, int c0, const A &a, int a0, int lda, const B &b, int b0, int ldb) {
  const int lane = DLC_THREAD % 32, line = DLC_THREAD % 16, half = lane / 16;
  u32 y[N][2];
  DLC_UNROLL
  for (int n = 0; n < N; ++n) {
    load_column(y[n], b, b0 + lane % 4 * ldb + n * 8 + lane / 4, ldb);
    DLC_UNROLL
    for (int i = 0; i < 2; ++i) y[n][i] = to_tf32(y[n][i]);
  }
  DLC_UNROLL
  for (int m = 0; m < M; ++m) {
    u32 x[4];
    load_matrices(x, a, a0 + (m * 16 + line) * lda + half * 4);
    DLC_UNROLL
    for (int i = 0; i < 4; ++i) x[i] = to_tf32(x[i]);
    DLC_UNROLL
    for (int n = 0; n < N; ++n) multiply_add(&c[c0 + (m * N + n) * 4], x, y[n], is_tf32());
  }
}

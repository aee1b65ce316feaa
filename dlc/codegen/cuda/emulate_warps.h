// Part of emulate.h: warp instructions. 32 lanes meet, then each takes its part of what all have
// brought.
#pragma once

namespace dlc {

struct Brought { i64 at; u32 x[4], y[2]; };
inline Brought brought[2][1024];  // by turns, since a lane may be one instruction ahead
inline i64 loads, conflicts;  // of rows of 16 bytes in shared memory, eight at a time

inline const Brought *meet(const Brought &mine) {
  const int turn = turns[thread]++ % 2;
  brought[turn][thread] = mine;
  pause(AT_WARP);
  return brought[turn] + thread / 32 * 32;
}

// Rows of eight in different banks are loaded at once; a row has so many elements.
inline void count_conflicts(const Brought *lanes, int matrices, int row) {
  for (int m = 0; m < matrices; ++m) {
    int most = 0, rows[8] = {};
    for (int r = 0; r < 8; ++r) {
      int &same = rows[lanes[m * 8 + r].at / row % 8];
      if (++same > most) most = same;
    }
    loads += 1;
    conflicts += most - 1;
  }
}

// Words of 32 lanes are loaded at once where they lie in different banks, or are the same.
inline void count_word_conflicts(const Brought *lanes) {
  int most = 0;
  for (int bank = 0; bank < 32; ++bank) {
    i64 seen[32];
    int words = 0;
    for (int lane = 0; lane < 32; ++lane) {
      bool is_new = lanes[lane].at % 32 == bank;
      for (int i = 0; i < words && is_new; ++i) is_new = seen[i] != lanes[lane].at;
      if (is_new) seen[words++] = lanes[lane].at;
    }
    if (words > most) most = words;
  }
  loads += 1;
  conflicts += most - 1;
}

template <class A> void load(u32 *x, const A &a, i64 at, int matrices, bool turned) {
  if (at % 8) fail("a row is not aligned to 16 bytes:", a.name, at, -1);
  const Brought *lanes = meet({at, {}, {}});
  const int g = thread % 32 / 4, t = thread % 4;
  if (thread % 32 == 0) count_conflicts(lanes, matrices, 8);
  for (int m = 0; m < matrices; ++m) {
    const i64 first = turned ? lanes[m * 8 + 2 * t].at + g : lanes[m * 8 + g].at + 2 * t;
    const i64 second = turned ? lanes[m * 8 + 2 * t + 1].at + g : first + 1;
    x[m] = a[first].value().bits | (u32)a[second].value().bits << 16;
  }
}

template <class T> void load_of_bytes(u32 *x, const Shared<T> &a, i64 at, int matrices) {
  if (at % 16) fail("a row is not aligned to 16 bytes:", a.name, at, -1);
  const Brought *lanes = meet({at, {}, {}});
  if (thread % 32 == 0) count_conflicts(lanes, matrices, 16);
  for (int m = 0; m < matrices; ++m) {
    x[m] = 0;
    for (int i = 0; i < 4; ++i)
      x[m] |= (u32)(u8)a[lanes[m * 8 + thread % 32 / 4].at + thread % 4 * 4 + i].value() << 8 * i;
  }
}

template <class T> float half_of(u32 pair, int which) {
  T x;
  x.bits = u16(pair >> 16 * which);
  return float(x);
}

}  // namespace dlc

template <class T> T of_lane(T x, int bits) {
  dlc::Brought mine = {};
  memcpy(mine.x, &x, sizeof x);
  const dlc::Brought *lanes = dlc::meet(mine);
  memcpy(&x, lanes[dlc::thread % 32 ^ bits].x, sizeof x);
  return x;
}
template <class A> void load_matrices(u32 (&x)[4], const A &a, i64 at) { dlc::load(x, a, at, 4, false); }
// A row has four words; a lane has one of each matrix.
DLC_FN void load_matrices(u32 (&x)[4], const dlc::Shared<float> &a, i64 at) {
  using namespace dlc;
  if (at % 4) fail("a row is not aligned to 16 bytes:", a.name, at, -1);
  const Brought *lanes = meet({at, {}, {}});
  if (thread % 32 == 0) count_conflicts(lanes, 4, 4);
  for (int m = 0; m < 4; ++m)
    x[m] = float_to_bits(a[lanes[m * 8 + thread % 32 / 4].at + thread % 4].value());
}
DLC_FN void load_column(u32 (&x)[2], const dlc::Shared<float> &b, i64 at, int line) {
  using namespace dlc;
  for (int i = 0; i < 2; ++i) {
    const Brought *lanes = meet({at + 4 * i * line, {}, {}});
    if (thread % 32 == 0) count_word_conflicts(lanes);
    x[i] = float_to_bits(b[at + 4 * i * line].value());
  }
}
DLC_FN void load_matrices(u32 (&x)[4], const dlc::Shared<i8> &a, i64 at) {
  dlc::load_of_bytes(x, a, at, 4);
}
DLC_FN void load_matrices(u32 (&x)[4], const dlc::Shared<u8> &a, i64 at) {
  dlc::load_of_bytes(x, a, at, 4);
}
template <class T> void load_lines(u32 (&x)[2], const dlc::Shared<T> &b, i64 at) {
  dlc::load_of_bytes(x, b, at, 2);
}
template <class A> void load_turned(u32 (&x)[2], const A &a, i64 at) { dlc::load(x, a, at, 2, true); }
template <class A> void load_turned(u32 (&x)[4], const A &a, i64 at) { dlc::load(x, a, at, 4, true); }
template <class T> T kind_of(const dlc::Shared<T> &) { return {}; }

// The lanes of mma.m16n8k16: sums of lines g and g + 8, columns 2 t and 2 t + 1.
template <class T> void multiply_add(float *c, const u32 (&a)[4], const u32 (&b)[2], T) {
  dlc::Brought mine = {0, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const dlc::Brought *lanes = dlc::meet(mine);
  const int g = dlc::thread % 32 / 4, t = dlc::thread % 4;
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 16; ++k) {
      const u32 left = lanes[g * 4 + k % 8 / 2].x[i / 2 + k / 8 * 2];
      const u32 right = lanes[(2 * t + i % 2) * 4 + k % 8 / 2].y[k / 8];
      c[i] += dlc::half_of<T>(left, k % 2) * dlc::half_of<T>(right, k % 2);
    }
}

// The lanes of mma.m16n8k32: sums as above, four neighbouring summands from 4 t and from 4 t + 16.
template <class A, class B>
void multiply_add(i32 *c, const u32 (&a)[4], const u32 (&b)[2], A, B) {
  dlc::Brought mine = {0, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const dlc::Brought *lanes = dlc::meet(mine);
  const int g = dlc::thread % 32 / 4, t = dlc::thread % 4;
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 32; ++k) {
      const u32 left = lanes[g * 4 + k % 16 / 4].x[i / 2 + k / 16 * 2];
      const u32 right = lanes[(2 * t + i % 2) * 4 + k % 16 / 4].y[k / 16];
      c[i] += i32(A(left >> k % 4 * 8)) * i32(B(right >> k % 4 * 8));
    }
}

// The lanes of mma.m16n8k8 of TF32: sums as above, summands t and t + 4.
struct is_tf32 {};
DLC_FN u32 to_tf32(u32 x) {
  const float value = bits_to_float(x);
  return value != value ? x : (x + 0x1000u) & 0xffffe000u;
}
DLC_FN void multiply_add(float *c, const u32 (&a)[4], const u32 (&b)[2], is_tf32) {
  dlc::Brought mine = {0, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const dlc::Brought *lanes = dlc::meet(mine);
  const int g = dlc::thread % 32 / 4, t = dlc::thread % 4;
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 8; ++k) {
      const u32 left = lanes[g * 4 + k % 4].x[i / 2 + k / 4 * 2];
      const u32 right = lanes[(2 * t + i % 2) * 4 + k % 4].y[k / 4];
      if (to_tf32(left) != left || to_tf32(right) != right)
        dlc::fail("a factor is not rounded to TF32:", dlc::kernel, k, -1);
      c[i] += bits_to_float(left) * bits_to_float(right);
    }
}

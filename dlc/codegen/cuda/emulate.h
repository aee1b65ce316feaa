// The seam on a CPU: runs printed kernels unmodified, and finds what a GPU would only get wrong now
// and then.
//   threads   fibers of one process, switched by hand where they wait; blocks run one after another
//   order     of blocks and threads: forward, backward or shuffled
//   memory    every access is checked against its buffer; shared memory and registers start as NaN
//   races     each element remembers who touched it since the last barrier; two threads that touch
//             one element, one of them writing, must have a barrier between them, and two blocks
//             must never
//   launches  begin before those before them are done: no access before begin_launch(), which only
//             what nobody writes is asked for ahead of
//   copies    arrive when they are asked for, or as late as they may, or by chance; nobody may touch
//             what is on its way, and no thread ends while it is
// Not modelled: the weak order of memory between blocks, and time.
#pragma once
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DLC_FN static inline
#define DLC_METHOD inline
#define DLC_KERNEL(name, threads) static void name
#define DLC_ROOMY_KERNEL(name, threads) static void name
#define DLC_IN(type, name) dlc::Global<const type> name
#define DLC_OUT(type, name) dlc::Global<type> name
#define DLC_SHARED_IN_PLACE(type, name) dlc::Global<const type> name
#define DLC_OUT_IN_PLACE(type, name) dlc::Global<type> name
#define DLC_SHARED(type, name, count, offset) dlc::Shared<type> name(#name, offset, count)
#define DLC_LOCAL(type, name, count) dlc::Local<type, count> name(#name)
#define DLC_BLOCK (dlc::block)
#define DLC_THREAD (dlc::thread)
#define DLC_BLOCKS (dlc::launched)
#define DLC_THREADS (dlc::threads)
#define DLC_REPORTS const dlc::Reports dlc_reports
#define DLC_UNROLL

DLC_FN float times(float a, float b) { return a * b; }
DLC_FN float bits_to_float(u32 x) { float y; memcpy(&y, &x, 4); return y; }
DLC_FN u32 float_to_bits(float x) { u32 y; memcpy(&y, &x, 4); return y; }
DLC_FN double bits_to_double(u64 x) { double y; memcpy(&y, &x, 8); return y; }

struct f16 {
  u16 bits;
  f16() = default;
  template <class T> explicit f16(T x) { const _Float16 y = (_Float16)x; memcpy(&bits, &y, 2); }
  explicit operator float() const { _Float16 y; memcpy(&y, &bits, 2); return (float)y; }
};

DLC_FN u16 round_to_bf16(float x) {
  const u32 raw = float_to_bits(x), even = raw + 0x7fffu + ((raw >> 16) & 1u);
  return u16((x != x ? raw | 0x400000u : even) >> 16);
}

DLC_FN float min_of(float a, float b) { return a != a || a < b ? a : b; }
DLC_FN float max_of(float a, float b) { return a != a || a > b ? a : b; }

namespace dlc {

enum Order { FORWARD, BACKWARD, SHUFFLED };

inline int block, thread, threads, launched;  // who runs now, of how many threads and blocks
inline int order;                    // of blocks, threads and copies
inline u32 epoch;                    // barriers passed in this launch, over all blocks
inline const char *kernel;
inline char failure[512];            // the first thing that went wrong, or ""
inline bool begun[1024];             // of each thread: it has waited for the launches before
inline u32 turns[1024];              // warp instructions that a thread has run

[[noreturn]] void give_up();
[[noreturn]] inline void fail(const char *what, const char *name, long long index, int other) {
  char and_other[32] = "";
  if (other >= 0) snprintf(and_other, sizeof and_other, " and thread %d", other);
  if (!failure[0])
    snprintf(failure, sizeof failure, "%s: %s '%s'[%lld], block %d thread %d%s", kernel, what, name,
             index, block, thread, and_other);
  give_up();
}

// A block that arrived at a count, and the block that came last there: it sees what the first did.
inline i64 *arrived_at;  // the place of the count, or -1
inline int *leader;      // or -1
inline bool is_last;
inline bool saw(int other) {
  while (other != block && other >= 0) other = leader[other];
  return other == block;
}

// Who touched an element last: the epoch, and the thread, or SEVERAL.
const int SEVERAL = -1, COPIED = -2;  // COPIED: a copy that nobody has waited for will write it
struct Touch { u32 write_epoch, read_epoch; int writer, reader, write_block, read_block; };

inline void on_read(Touch &t, const char *name, long long at) {
  if (t.writer == COPIED) fail("read of what is being copied:", name, at, -1);
  if (t.write_epoch && !saw(t.write_block)) fail("race of blocks: read of", name, at, -1);
  if (t.write_epoch == epoch && t.writer != thread) fail("race: read of", name, at, t.writer);
  t.reader = t.read_epoch == epoch && t.reader != thread ? SEVERAL : thread;
  t.read_block = t.read_epoch && !saw(t.read_block) ? SEVERAL : block;
  t.read_epoch = epoch;
}
inline void on_write(Touch &t, const char *name, long long at) {
  if (t.writer == COPIED) fail("write to what is being copied:", name, at, -1);
  if ((t.write_epoch && !saw(t.write_block)) || (t.read_epoch && !saw(t.read_block)))
    fail("race of blocks: write to", name, at, -1);
  if (t.write_epoch == epoch && t.writer != thread) fail("race: write to", name, at, t.writer);
  if (t.read_epoch == epoch && t.reader != thread) fail("race: write to", name, at, t.reader);
  t.write_epoch = epoch;
  t.writer = thread;
  t.write_block = block;
}

// An element that knows whether it is read or written. `touch` is null where nobody writes, `owner`
// outside of shared memory: there it is the buffer that wrote last, of those that lie there in turn.
template <class T> struct Element {
  T *at; Touch *touch; const char *name; long long index; const char **owner;
  T value() const {
    if (owner && *owner && *owner != name)
      fail("read of what another buffer has left:", name, index, -1);
    if (touch) on_read(*touch, name, index);
    return *at;
  }
  operator T() const { return value(); }
  template <class U> explicit operator U() const { return U(value()); }
  T operator=(T x) const {
    if (touch) on_write(*touch, name, index);
    if (owner) *owner = name;
    return *at = x;
  }
  T operator=(const Element &x) const { return *this = x.value(); }
  T operator+=(T x) const { return *this = value() + x; }
};

struct Buffer { char *data; long long bytes; Touch *touches; };
inline Buffer *arguments;
struct Span { long long begin, end; };  // in bytes; nothing where begin is not below end
inline Span touched[64];                // of each buffer, by the last launch
inline Span fetched[64];                // what it asked for ahead
inline void touch(int number, long long begin, long long end) {
  Span &span = touched[number];
  if (begin < span.begin) span.begin = begin;
  if (end > span.end) span.end = end;
}

struct Reports { u64 *words; i64 count; };
inline Reports reports;

template <class T> struct Plain { typedef T type; };
template <class T> struct Plain<const T> { typedef T type; };

template <class T> struct Global {
  typedef typename Plain<T>::type Value;
  const char *name; int number; Buffer buffer;
  Global(const char *name, int number) : name(name), number(number), buffer(arguments[number]) {}
  Element<Value> operator[](long long i) const {
    if (!begun[thread]) fail("access before the launches before are done:", name, i, -1);
    if (i < 0 || (i + 1) * (long long)sizeof(Value) > buffer.bytes)
      fail("out of bounds:", name, i, -1);
    touch(number, i * (long long)sizeof(Value), (i + 1) * (long long)sizeof(Value));
    return {(Value *)buffer.data + i, buffer.touches ? buffer.touches + i : nullptr, name, i};
  }
};

const int MAX_SHARED = 256 << 10;
alignas(16) inline char shared_data[MAX_SHARED];
inline Touch shared_touches[MAX_SHARED];  // of the element that begins at a byte
inline const char *shared_owners[MAX_SHARED];
inline int shared_block;                  // whose memory it is: number of the block + 1
inline long long shared_end;              // of what that block has used

template <class T> struct Shared {
  const char *name; long long offset, count;
  Shared(const char *name, long long offset, long long count)
      : name(name), offset(offset), count(count) {
    const long long end = offset + count * (long long)sizeof(T);
    if (offset % 16 || end > MAX_SHARED) fail("no place in shared memory:", name, offset, -1);
    if (shared_block != block + 1) shared_end = 0;
    shared_block = block + 1;
    if (end <= shared_end) return;
    memset(shared_data + shared_end, 0xff, end - shared_end);
    memset(shared_touches + shared_end, 0, (end - shared_end) * sizeof(Touch));
    memset(shared_owners + shared_end, 0, (end - shared_end) * sizeof(char *));
    shared_end = end;
  }
  Element<T> operator[](long long i) const {
    if (i < 0 || i >= count) fail("out of bounds:", name, i, -1);
    const long long at = offset + i * (long long)sizeof(T);
    return {(T *)(shared_data + at), shared_touches + at, name, i, shared_owners + at};
  }
};

template <class T, int N> struct Local {
  const char *name; T data[N];
  explicit Local(const char *name) : name(name) { memset((void *)data, 0xff, sizeof data); }
  T &operator[](long long i) {
    if (i < 0 || i >= N) fail("out of bounds:", name, i, -1);
    return data[i];
  }
};

// ---- fibers

enum State { READY, AT_BARRIER, AT_WARP, DONE };
struct Fiber { void *stack_pointer; char *stack; State state; };
const size_t STACK_BYTES = 256 << 10;
inline Fiber fibers[1024];
inline void *scheduler;
inline void (*body)();

extern "C" void dlc_switch(void **save, void *to);
#if defined(__x86_64__)
asm(".text\n.weak dlc_switch\n.type dlc_switch,@function\ndlc_switch:\n"
    " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
const int SAVED = 6;
#else
#error the switch of fibers is written for x86-64 only
#endif

inline void pause(State state) {
  Fiber &me = fibers[thread];
  me.state = state;
  dlc_switch(&me.stack_pointer, scheduler);
}
[[noreturn]] inline void give_up() { pause(DONE); abort(); }
void check_copies();
void forget_copies();
inline void enter() { body(); check_copies(); pause(DONE); }

inline void prepare(Fiber &fiber) {
  if (!fiber.stack)
    fiber.stack = (char *)mmap(0, STACK_BYTES, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void **top = (void **)(fiber.stack + STACK_BYTES - 64);
  *--top = nullptr;         // keeps the stack aligned as after a call
  *--top = (void *)enter;
  for (int i = 0; i < SAVED; ++i) *--top = nullptr;
  fiber.stack_pointer = top;
  fiber.state = READY;
}

struct Random { u32 state; u32 operator()() { return state = state * 1664525u + 1013904223u; } };

inline int *ordered(int *order, int count, int kind, Random &random) {
  for (int i = 0; i < count; ++i) order[i] = kind == BACKWARD ? count - 1 - i : i;
  for (int i = count - 1; kind == SHUFFLED && i > 0; --i) {
    const int j = (random() >> 8) % (u32)(i + 1), other = order[i];
    order[i] = order[j];
    order[j] = other;
  }
  return order;
}

// Runs all blocks; false, with `failure` set, at the first fault.
inline bool launch(const char *name, void (*run)(), Buffer *buffers, int blocks, int count,
                   int how) {
  kernel = name;
  order = how;
  failure[0] = 0;
  body = run;
  arguments = buffers;
  threads = count;
  epoch = 0;
  for (Span &span : touched) span = {1LL << 62, 0};
  for (Span &span : fetched) span = {0, 0};
  Random random = {(u32)order + 1};
  int turn[1024];
  int *block_turn = ordered((int *)malloc(sizeof(int) * (blocks + 1)), blocks, order, random);
  shared_block = 0;
  memset(turns, 0, sizeof turns);
  arrived_at = (i64 *)malloc(sizeof(i64) * (blocks + 1));
  leader = (int *)malloc(sizeof(int) * (blocks + 1));
  for (int b = 0; b < blocks; ++b) arrived_at[b] = leader[b] = -1;
  launched = blocks;
  for (int b = 0; b < blocks && !failure[0]; ++b) {
    block = block_turn[b];
    ++epoch;
    for (int t = 0; t < count; ++t) prepare(fibers[t]);
    memset(begun, 0, sizeof begun);
    forget_copies();
    for (int waiting = 1; waiting && !failure[0];) {
      ordered(turn, count, order, random);
      for (int i = 0; i < count && !failure[0]; ++i) {
        thread = turn[i];
        if (fibers[thread].state == READY) dlc_switch(&scheduler, fibers[thread].stack_pointer);
      }
      int done = 0, met = 0;
      for (int t = 0; t < count; ++t) done += fibers[t].state == DONE;
      for (int w = 0; w < count; w += 32) {
        int here = 0;
        for (int t = w; t < w + 32 && t < count; ++t) here += fibers[t].state == AT_WARP;
        if (here % 32 && !failure[0])
          snprintf(failure, sizeof failure, "%s: %d lanes of a warp of block %d wait for the others",
                   kernel, here, block);
        for (int t = w; t < w + 32 && here == 32; ++t) fibers[t].state = READY;
        met += here;
      }
      if (met && !failure[0]) continue;
      waiting = count - done;
      if (waiting && done && !failure[0])
        snprintf(failure, sizeof failure, "%s: %d threads of block %d ended, %d wait", kernel, done,
                 block, waiting);
      ++epoch;
      for (int t = 0; t < count; ++t)
        if (fibers[t].state == AT_BARRIER) fibers[t].state = READY;
    }
  }
  free(block_turn);
  free(arrived_at);
  free(leader);
  return !failure[0];
}

// ---- for a driver that runs kernels by this emulation

struct Param { int bytes, written, same_as; };  // of an element; same_as: whose memory it is, or -1
struct Kernel {
  const char *name; void (*run)(); int threads, shared, buffers, sizes; const Param *params;
};

// Launches with the parameters of cuLaunchKernel; `behind` says how many bytes an allocation has
// from an address on.
inline const char *start(const Kernel &kernel, void **params, i64 (*behind)(const void *),
                         int blocks, int order) {
  Buffer buffers[64];
  for (int i = 0; i < kernel.buffers; ++i) {
    const Param &param = kernel.params[i];
    char *data = *(char **)params[i];
    buffers[i] = {data, behind(data), nullptr};
    if (param.same_as >= 0) buffers[i].touches = buffers[param.same_as].touches;
    else if (param.written)
      buffers[i].touches = (Touch *)calloc(buffers[i].bytes / param.bytes + 1, sizeof(Touch));
  }
  launch(kernel.name, kernel.run, buffers, blocks, kernel.threads, order);
  for (int i = 0; i < kernel.buffers; ++i)
    if (kernel.params[i].same_as < 0) free(buffers[i].touches);
  return failure;
}

}  // namespace dlc

DLC_FN void barrier() { dlc::pause(dlc::AT_BARRIER); }
DLC_FN void begin_launch() { dlc::begun[dlc::thread] = true; }
template <class T> DLC_FN void fetch_ahead(const dlc::Global<T> &p, i64 count) {
  using namespace dlc;
  const i64 bytes = count * i64(sizeof(T));
  if (begun[thread]) fail("asked for too late:", p.name, 0, -1);
  if (bytes > p.buffer.bytes) fail("out of bounds:", p.name, count - 1, -1);
  if (p.buffer.touches) fail("asked for ahead, and written:", p.name, 0, -1);
  fetched[p.number] = {0, bytes};
}

// Threads of all blocks may meet in a word, and what was launched before may still write there.
DLC_FN void report_word(const dlc::Reports &reports, i64 at, u64 word) {
  if (at < 0 || at >= reports.count) dlc::fail("out of bounds:", "reports", at, -1);
  if (word > reports.words[at]) reports.words[at] = word;
}

// The first thread counts; the others wait before and behind.
DLC_FN bool last_block(const dlc::Global<u32> &arrivals, i64 group, u32 count) {
  using namespace dlc;
  if (group < 0 || (group + 1) * 4 > arrivals.buffer.bytes)
    fail("out of bounds:", arrivals.name, group, -1);
  touch(arrivals.number, group * 4, (group + 1) * 4);
  check_copies();
  barrier();
  if (thread == 0) {
    u32 &number = ((u32 *)arrivals.buffer.data)[group];
    arrived_at[block] = group;
    is_last = ++number == count;
    if (is_last) number = 0;
    for (int b = 0; b < launched && is_last; ++b)
      if (b != block && arrived_at[b] == group && leader[b] < 0) leader[b] = block;
  }
  barrier();
  return is_last;
}

#include "emulate_copies.h"
#include "emulate_warps.h"

// Part of emulate.h: copies beside the threads of a block.
#pragma once

namespace dlc {

struct Copy { char *to; const char *from; int bytes, size; Touch *touch; u32 group; };
struct Copies { Copy *open; int count, room; u32 groups; };
inline Copies copies[1024];  // of each thread
inline Random late = {1};

inline void forget_copies() {
  for (int t = 0; t < threads; ++t) copies[t].count = copies[t].groups = 0;
}
inline void check_copies() {
  if (copies[thread].count) fail("copies that nobody waits for:", kernel, copies[thread].count, -1);
}

inline void arrive(Copies &mine, u32 groups) {  // all of that many groups, in order
  int kept = 0;
  for (int i = 0; i < mine.count; ++i) {
    const Copy &c = mine.open[i];
    if (c.group >= groups) { mine.open[kept++] = c; continue; }
    memcpy(c.to, c.from, c.bytes);
    for (int byte = 0; byte < c.bytes; byte += c.size) {
      c.touch[byte].writer = thread;
      c.touch[byte].write_epoch = epoch;
      c.touch[byte].write_block = block;
    }
  }
  mine.count = kept;
}

}  // namespace dlc

template <int COUNT, class A, class B>
void copy_async(const A &to, i64 at, const B &from, i64 first) {
  using namespace dlc;
  Copies &mine = copies[thread];
  if (mine.count == mine.room)
    mine.open = (Copy *)realloc(mine.open, sizeof(Copy) * (mine.room = 2 * mine.room + 16));
  to[at + COUNT - 1];
  from[first + COUNT - 1];
  Copy c = {};
  for (int e = COUNT - 1; e >= 0; --e) {
    const auto source = from[first + e];
    const auto target = to[at + e];
    if (source.touch) on_read(*source.touch, source.name, source.index);
    on_write(*target.touch, target.name, target.index);
    target.touch->writer = COPIED;
    *target.owner = target.name;
    c = {(char *)target.at, (const char *)source.at, COUNT * (int)sizeof *target.at,
         (int)sizeof *target.at, target.touch, mine.groups};
  }
  if ((u64)c.from % c.bytes || at * (c.bytes / COUNT) % c.bytes)
    fail("a copy is not aligned:", to.name, at, -1);
  if (order == BACKWARD || (order == SHUFFLED && late() >> 8 & 1)) memcpy(c.to, c.from, c.bytes);
  mine.open[mine.count++] = c;
}
DLC_FN void commit_copies() { ++dlc::copies[dlc::thread].groups; }
template <int GROUPS> void wait_copies() {
  dlc::Copies &mine = dlc::copies[dlc::thread];
  dlc::arrive(mine, mine.groups > GROUPS ? mine.groups - GROUPS : 0);
}

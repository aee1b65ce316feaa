// Executes the instructions of AMX on processors that have none: each raises SIGILL, whose handler
// decodes it, does what it would do to the thread's tiles, and goes on behind it.
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, instructions
// LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TILERELEASE, TDPBF16PS and TDPBUSD; volume 1,
// section 18.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <xmmintrin.h>

enum { kTiles = 8, kRows = 16, kRowBytes = 64, kConfigBytes = 64 };
enum { kNone, k66, kF3, kF2 };                      // the prefix that VEX stands for
enum { kFlushDenormals = 0x8040, kMasked = 0x1F80 };  // of MXCSR

struct Config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

struct Tiles {
  struct Config config;
  uint8_t data[kTiles][kRows][kRowBytes];
};

struct Instruction {
  unsigned prefix, opcode, mod, reg, rm, extra;  // `extra` is the register that VEX names
  uintptr_t address;                             // of its memory, if it has any
  intptr_t stride;                               // what its index register says, scaled
  unsigned size;
};

static __thread struct Tiles *tiles __attribute__((tls_model("initial-exec")));
static struct sigaction before;

static uintptr_t register_of(const ucontext_t *context, unsigned number) {
  static const int kPlaces[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};
  return (uintptr_t)context->uc_mcontext.gregs[kPlaces[number]];
}

static int32_t displacement(const uint8_t *code) {
  int32_t value;
  memcpy(&value, code, sizeof value);
  return value;
}

// The memory operand: its address without the index, and the index on its own.
static void decode_memory(const uint8_t *code, unsigned extend_index, unsigned extend_base,
                          const ucontext_t *context, struct Instruction *found) {
  const uint8_t *at = code + 5;
  unsigned base = found->rm & 7U;
  uintptr_t address = 0;
  int has_base = 1, is_relative = 0;
  if (base == 4) {
    const uint8_t sib = *at++;
    const unsigned index = (sib >> 3U & 7U) | extend_index << 3U;
    base = sib & 7U;
    if (index != 4) found->stride = (intptr_t)(register_of(context, index) << (sib >> 6U));
    has_base = !(base == 5 && found->mod == 0);
  } else if (base == 5 && found->mod == 0) {
    has_base = 0, is_relative = 1;
  }
  if (has_base) address = register_of(context, base | extend_base << 3U);
  if (found->mod == 1) {
    address += (intptr_t)(int8_t)*at++;
  } else if (found->mod == 2 || !has_base) {
    address += (intptr_t)displacement(at);
    at += 4;
  }
  found->size = (unsigned)(at - code);
  found->address = is_relative ? address + (uintptr_t)code + found->size : address;
}

static int decode(const uint8_t *code, const ucontext_t *context, struct Instruction *found) {
  if (code[0] != 0xC4 || (code[1] & 0x1FU) != 2 || (code[2] & 0x84U) != 0) return 0;
  const unsigned modrm = code[4];
  *found = (struct Instruction){.prefix = code[2] & 3U,
                                .opcode = code[3],
                                .mod = modrm >> 6U,
                                .reg = modrm >> 3U & 7U,
                                .rm = modrm & 7U,
                                .extra = ~(unsigned)code[2] >> 3U & 15U,
                                .size = 5};
  if (found->mod != 3) decode_memory(code, !(code[1] & 0x40U), !(code[1] & 0x20U), context, found);
  return 1;
}

static void configure(const struct Config *config) {
  memset(tiles, 0, sizeof *tiles);
  if (config != NULL && config->palette != 0) tiles->config = *config;
}

static void load(unsigned tile, const uint8_t *from, intptr_t stride) {
  memset(tiles->data[tile], 0, sizeof tiles->data[tile]);
  for (int row = 0; row < tiles->config.rows[tile]; ++row) {
    memcpy(tiles->data[tile][row], from + row * stride, tiles->config.row_bytes[tile]);
  }
}

static void store(unsigned tile, uint8_t *to, intptr_t stride) {
  for (int row = 0; row < tiles->config.rows[tile]; ++row) {
    memcpy(to + row * stride, tiles->data[tile][row], tiles->config.row_bytes[tile]);
  }
}

static float widened(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Sums of even and of odd products, each rounded once by a fused multiply-add, then their sum.
static void multiply(unsigned sums, unsigned left, unsigned right) {
  const unsigned pairs = tiles->config.row_bytes[left] / 4U;
  const unsigned columns = tiles->config.row_bytes[sums] / 4U;
  const unsigned state = _mm_getcsr();
  _mm_setcsr(kMasked | kFlushDenormals);
  for (int row = 0; row < tiles->config.rows[sums]; ++row) {
    float *to = (float *)(void *)tiles->data[sums][row];
    float even[kRowBytes / 4] = {0}, odd[kRowBytes / 4] = {0};
    for (unsigned k = 0; k < pairs; ++k) {
      uint32_t a, b[kRowBytes / 4];
      memcpy(&a, tiles->data[left][row] + 4 * k, sizeof a);
      memcpy(b, tiles->data[right][k], sizeof b);
      const float low = widened(a << 16U), high = widened(a & 0xFFFF0000U);
      for (int n = 0; n < kRowBytes / 4; ++n) {
        even[n] = __builtin_fmaf(low, widened(b[n] << 16U), even[n]);
        odd[n] = __builtin_fmaf(high, widened(b[n] & 0xFFFF0000U), odd[n]);
      }
    }
    for (unsigned n = 0; n < columns; ++n) to[n] += even[n] + odd[n];
  }
  _mm_setcsr(state);
}

// Sums of products of unsigned bytes on the left and signed ones on the right, which wrap around.
static void multiply_bytes(unsigned sums, unsigned left, unsigned right) {
  const unsigned words = tiles->config.row_bytes[left] / 4U;
  const unsigned columns = tiles->config.row_bytes[sums] / 4U;
  for (int row = 0; row < tiles->config.rows[sums]; ++row) {
    uint32_t *to = (uint32_t *)(void *)tiles->data[sums][row];
    for (unsigned k = 0; k < 4 * words; ++k) {
      const int32_t a = tiles->data[left][row][k];
      const int8_t *b = (const int8_t *)tiles->data[right][k / 4U];
      for (unsigned n = 0; n < columns; ++n) to[n] += (uint32_t)(a * b[4 * n + k % 4U]);
    }
  }
}

// Whether the instruction was one of AMX.
static int execute(const struct Instruction *it) {
  const int in_memory = it->mod != 3;
  uint8_t *memory = (uint8_t *)it->address;
  switch (it->opcode << 4U | it->prefix) {
    case 0x49 << 4 | kNone:
      configure(in_memory ? (const struct Config *)(void *)(memory + it->stride) : NULL);
      return 1;
    case 0x49 << 4 | kF2:
      memset(tiles->data[it->reg], 0, sizeof tiles->data[it->reg]);
      return !in_memory;
    case 0x4B << 4 | kF2:
    case 0x4B << 4 | k66:
      if (in_memory) load(it->reg, memory, it->stride);
      return in_memory;
    case 0x4B << 4 | kF3:
      if (in_memory) store(it->reg, memory, it->stride);
      return in_memory;
    case 0x5E << 4 | k66:
      if (!in_memory) multiply_bytes(it->reg, it->rm, it->extra);
      return !in_memory;
    case 0x5C << 4 | kF3:
      if (!in_memory) multiply(it->reg, it->rm, it->extra);
      return !in_memory;
    default:
      return 0;
  }
}

static void on_illegal(int signal, siginfo_t *info, void *state) {
  ucontext_t *context = state;
  const uint8_t *code = (const uint8_t *)context->uc_mcontext.gregs[REG_RIP];
  struct Instruction found;
  if (tiles == NULL) {
    void *memory = mmap(NULL, sizeof *tiles, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                        -1, 0);
    if (memory == MAP_FAILED) _exit(1);
    tiles = memory;
  }
  if (decode(code, context, &found) && execute(&found)) {
    context->uc_mcontext.gregs[REG_RIP] += found.size;
    return;
  }
  (void)signal, (void)info;
  sigaction(SIGILL, &before, NULL);  // and run into it again
}

__attribute__((constructor)) static void install(void) {
  struct sigaction action = {.sa_flags = SA_SIGINFO};
  action.sa_sigaction = on_illegal;
  sigaction(SIGILL, &action, &before);
}

// A libcuda.so.1 without a GPU: memory of the device is memory of the CPU, kernels run by the
// emulation, and every call is written to the file STUB_CUDA_LOG. An image is the path of the
// library that holds its emulated kernels, behind a magic word.
//   STUB_CUDA_DEVICES=0       no GPU
//   STUB_CUDA_ARCH=75         its architecture; else 80
//   STUB_CUDA_MEMORY=1000     bytes of memory that there are
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

using Result = int;
constexpr Result kOutOfMemory = 2, kInvalidValue = 1, kNoDevice = 100, kInvalidImage = 200,
                 kNotFound = 500, kLaunchFailed = 719;
constexpr char kMagic[] = "DLC-EMULATED ";

struct Param { int bytes, written, same_as; };
struct Kernel { const char *name; void (*run)(); int threads, shared, buffers, sizes; const Param *params; };
using Start = const char *(*)(void **, long long (*)(const void *), int, int);
struct Function { const Kernel *kernel; Start start; };
struct Module { void *library; std::vector<Function *> functions; };
struct Graph { std::vector<std::function<Result()>> nodes; };
struct Stream { Graph *recording = nullptr; };

std::recursive_mutex mutex;
std::map<const char *, long long> memory;  // address of an allocation -> bytes
std::string last_failure = "the launch failed";
Stream default_stream;

int number(const char *name, int otherwise) {
  const char *text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

void note(const std::string &line) {
  const char *path = std::getenv("STUB_CUDA_LOG");
  if (path == nullptr) return;
  std::FILE *file = std::fopen(path, "a");
  std::fprintf(file, "%s\n", line.c_str());
  std::fclose(file);
}

long long behind(const void *address) {
  const auto *at = static_cast<const char *>(address);
  auto found = memory.upper_bound(at);
  if (found == memory.begin()) return 0;
  --found;
  const long long rest = found->first + found->second - at;
  return rest > 0 ? rest : 0;
}

// 1 is the default stream too, as in CUDA.
Stream &stream_of(void *stream) {
  return reinterpret_cast<std::uintptr_t>(stream) > 1 ? *static_cast<Stream *>(stream) : default_stream;
}

Result now_or_later(void *stream, std::function<Result()> work) {
  Stream &s = stream_of(stream);
  if (s.recording == nullptr) return work();
  s.recording->nodes.push_back(std::move(work));
  return 0;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) Result
#define LOCKED const std::lock_guard<std::recursive_mutex> lock(mutex)

API cuInit(unsigned) { return number("STUB_CUDA_DEVICES", 1) > 0 ? 0 : kNoDevice; }
API cuDeviceGetCount(int *count) { *count = number("STUB_CUDA_DEVICES", 1); return 0; }
API cuDeviceGet(int *device, int) { *device = 0; return 0; }
API cuDeviceGetAttribute(int *value, int attribute, int) {
  const int arch = number("STUB_CUDA_ARCH", 80);
  *value = attribute == 75 ? arch / 10 : arch % 10;
  return 0;
}
API cuDevicePrimaryCtxRetain(void **context, int) { note("retain"); *context = &default_stream; return 0; }
API cuDevicePrimaryCtxRelease_v2(int) { note("release"); return 0; }
API cuCtxPushCurrent_v2(void *) { return 0; }
API cuCtxPopCurrent_v2(void **) { return 0; }
API cuModuleLoadData(void **module, const void *image) {
  LOCKED;
  const auto *text = static_cast<const char *>(image);
  if (std::strncmp(text, kMagic, sizeof kMagic - 1) != 0) return kInvalidImage;
  void *library = dlopen(text + sizeof kMagic - 1, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return kInvalidImage;
  note("load");
  *module = new Module{library, {}};
  return 0;
}
API cuModuleUnload(void *module) {
  LOCKED;
  note("unload");
  auto *m = static_cast<Module *>(module);
  for (Function *function : m->functions) delete function;
  delete m;
  return 0;
}
API cuModuleGetFunction(void **function, void *module, const char *name) {
  LOCKED;
  auto *m = static_cast<Module *>(module);
  const auto *kernel = static_cast<const Kernel *>(dlsym(m->library, (std::string("kernel_") + name).c_str()));
  const auto start = reinterpret_cast<Start>(dlsym(m->library, (std::string("start_") + name).c_str()));
  if (kernel == nullptr || start == nullptr) return kNotFound;
  m->functions.push_back(new Function{kernel, start});
  *function = m->functions.back();
  return 0;
}
API cuFuncSetAttribute(void *, int attribute, int value) {
  LOCKED;
  note("attribute " + std::to_string(attribute) + " " + std::to_string(value));
  return 0;
}
API cuLaunchKernel(void *function, unsigned blocks, unsigned y, unsigned z, unsigned threads,
                   unsigned ty, unsigned tz, unsigned shared, void *stream, void **params, void **) {
  LOCKED;
  const auto *f = static_cast<Function *>(function);
  if (y != 1 || z != 1 || ty != 1 || tz != 1 || static_cast<int>(threads) != f->kernel->threads) return kInvalidValue;
  if (static_cast<int>(shared) != f->kernel->shared) return kInvalidValue;
  std::vector<std::uint64_t> values;
  for (int i = 0; i < f->kernel->buffers + f->kernel->sizes; ++i) {
    values.push_back(*static_cast<std::uint64_t *>(params[i]));
  }
  return now_or_later(stream, [f, blocks, values]() mutable {
    std::vector<void *> places;
    for (auto &value : values) places.push_back(&value);
    note(std::string("launch ") + f->kernel->name + " " + std::to_string(blocks));
    const char *failure = f->start(places.data(), behind, static_cast<int>(blocks), 2);
    if (failure[0] == '\0') return 0;
    last_failure = failure;
    return kLaunchFailed;
  });
}
struct Attribute { int id, padding; union { int enabled; char room[64]; } value; };
struct Config {
  unsigned x, y, z, threads, ty, tz, shared;
  void *stream;
  Attribute *attributes;
  unsigned count;
};
static_assert(sizeof(Config) == 56 && sizeof(Attribute) == 72, "as in cuda.h");
API cuLaunchKernelEx(const Config *config, void *function, void **params, void **extra) {
  for (unsigned i = 0; i < config->count; ++i) {
    const Attribute &attribute = config->attributes[i];
    note("with attribute " + std::to_string(attribute.id) + " " + std::to_string(attribute.value.enabled));
  }
  return cuLaunchKernel(function, config->x, config->y, config->z, config->threads, config->ty, config->tz,
                        config->shared, config->stream, params, extra);
}
API cuMemAlloc_v2(unsigned long long *pointer, std::size_t bytes) {
  LOCKED;
  long long used = static_cast<long long>(bytes);
  for (const auto &entry : memory) used += entry.second;
  if (used > number("STUB_CUDA_MEMORY", 1 << 30)) return kOutOfMemory;
  const std::size_t room = (bytes + 255) / 256 * 256;
  auto *data = static_cast<char *>(std::aligned_alloc(256, room));
  std::memset(data, 0xff, room);
  memory[data] = static_cast<long long>(bytes);
  *pointer = reinterpret_cast<unsigned long long>(data);
  note("allocate " + std::to_string(bytes));
  return 0;
}
API cuMemFree_v2(unsigned long long pointer) {
  LOCKED;
  auto *data = reinterpret_cast<char *>(pointer);
  if (memory.erase(data) == 0) return kInvalidValue;
  std::free(data);
  note("free");
  return 0;
}
API cuMemcpyHtoDAsync_v2(unsigned long long to, const void *of, std::size_t bytes, void *stream) {
  LOCKED;
  auto *target = reinterpret_cast<char *>(to);
  if (behind(target) < static_cast<long long>(bytes)) return kInvalidValue;
  note("to device " + std::to_string(bytes));
  return now_or_later(stream, [=] { std::memcpy(target, of, bytes); return 0; });
}
API cuMemcpyDtoHAsync_v2(void *to, unsigned long long of, std::size_t bytes, void *stream) {
  LOCKED;
  const auto *source = reinterpret_cast<const char *>(of);
  if (behind(source) < static_cast<long long>(bytes)) return kInvalidValue;
  note("to host " + std::to_string(bytes));
  return now_or_later(stream, [=] { std::memcpy(to, source, bytes); return 0; });
}
API cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long of, std::size_t bytes, void *stream) {
  LOCKED;
  auto *target = reinterpret_cast<char *>(to);
  const auto *source = reinterpret_cast<const char *>(of);
  if (behind(target) < static_cast<long long>(bytes)) return kInvalidValue;
  if (behind(source) < static_cast<long long>(bytes)) return kInvalidValue;
  note("on device " + std::to_string(bytes));
  return now_or_later(stream, [=] { std::memcpy(target, source, bytes); return 0; });
}
API cuMemHostAlloc(void **memory, std::size_t bytes, unsigned) {
  note("pin " + std::to_string(bytes));
  *memory = std::malloc(bytes);
  return 0;
}
API cuMemFreeHost(void *memory) { note("unpin"); std::free(memory); return 0; }
API cuMemsetD8Async(unsigned long long to, unsigned char byte, std::size_t bytes, void *stream) {
  LOCKED;
  auto *target = reinterpret_cast<char *>(to);
  if (behind(target) < static_cast<long long>(bytes)) return kInvalidValue;
  note("fill " + std::to_string(bytes));
  return now_or_later(stream, [=] { std::memset(target, byte, bytes); return 0; });
}
API cuStreamCreate(void **stream, unsigned) { *stream = new Stream; return 0; }
API cuStreamDestroy_v2(void *stream) { delete static_cast<Stream *>(stream); return 0; }
API cuStreamSynchronize(void *stream) { note("wait"); return stream_of(stream).recording != nullptr ? kInvalidValue : 0; }
API cuStreamBeginCapture_v2(void *stream, int) {
  LOCKED;
  note("record");
  stream_of(stream).recording = new Graph;
  return 0;
}
API cuStreamEndCapture(void *stream, void **graph) {
  LOCKED;
  *graph = stream_of(stream).recording;
  stream_of(stream).recording = nullptr;
  return *graph != nullptr ? 0 : kInvalidValue;
}
API cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long) {
  *exec = new Graph(*static_cast<Graph *>(graph));
  return 0;
}
API cuGraphDestroy(void *graph) { delete static_cast<Graph *>(graph); return 0; }
API cuGraphExecDestroy(void *exec) { note("forget"); delete static_cast<Graph *>(exec); return 0; }
API cuGraphLaunch(void *exec, void *stream) {
  LOCKED;
  note(&stream_of(stream) == &default_stream ? "replay in the default stream" : "replay");
  for (const auto &node : static_cast<Graph *>(exec)->nodes) {
    if (const Result result = node()) return result;
  }
  return 0;
}
API cuGetErrorString(Result result, const char **text) {
  switch (result) {
    case kOutOfMemory: *text = "out of memory"; break;
    case kLaunchFailed: *text = last_failure.c_str(); break;
    default: *text = "a fault";
  }
  return 0;
}

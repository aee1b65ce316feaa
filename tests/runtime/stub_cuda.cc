// A libcuda.so.1 without a GPU: memory of the device is memory of the CPU, kernels run by the
// emulation, and every call is written to the file STUB_CUDA_LOG. An image is the path of the
// library that holds its emulated kernels, behind a magic word.
//   STUB_CUDA_DEVICES=0       no GPU
//   STUB_CUDA_ARCH=75         its architecture; else 80
//   STUB_CUDA_MEMORY=1000     bytes of memory that there are
//   STUB_CUDA_ORDER=last      of a graph's launches: as recorded, any that is ready, the latest
//                   =7        first, or drawn by this seed
//   STUB_CUDA_DROP_EDGE=2     forgets the third edge of each graph
//   STUB_CUDA_SKIP_WAIT=2     the third wait for a stream does not wait
// A copy to pinned memory is done when the stream is waited for; until then something else is there. A
// wait fails where pinned memory has changed that a copy may still have been reading.
// A graph fails where two launches that nothing orders touch the same memory, one of them writing,
// and where one asks ahead for what any of them writes.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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
struct Span { long long begin, end; };
using Spans = const Span *(*)();  // of each buffer, by the last launch
struct Function { const Kernel *kernel; Start start; Spans touched, fetched; };
struct Module { void *library; std::vector<Function *> functions; };
struct Access { const char *begin, *end; bool is_written, is_ahead; };  // ahead: asked for before its turn
struct Launch {
  const Function *function;
  unsigned blocks;
  std::vector<std::uint64_t> values;
};
struct Node { Launch launch; int number; };
struct Edge { int from, to; bool early; };
struct Graph { std::vector<Node *> nodes; std::vector<Edge> edges; };
struct Exec { std::vector<Launch> launches; std::vector<Edge> edges; };
struct Stream {};
struct Late { char *pinned; std::vector<char> data; bool is_read; };  // a copy that may not be done

std::recursive_mutex mutex;
std::map<const char *, long long> memory;  // address of an allocation -> bytes
std::string last_failure = "the launch failed";
Stream default_stream;
std::map<const char *, long long> pinned;  // as `memory`
std::vector<Late> late;
int waits = 0;

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

long long behind(const void *address, const std::map<const char *, long long> &memory) {
  const auto *at = static_cast<const char *>(address);
  auto found = memory.upper_bound(at);
  if (found == memory.begin()) return 0;
  --found;
  const long long rest = found->first + found->second - at;
  return rest > 0 ? rest : 0;
}

// Kernels reach pinned memory, too.
long long behind(const void *address) {
  const long long bytes = behind(address, memory);
  return bytes > 0 ? bytes : behind(address, pinned);
}

// 1 is the default stream too, as in CUDA.
Stream &stream_of(void *stream) {
  return reinterpret_cast<std::uintptr_t>(stream) > 1 ? *static_cast<Stream *>(stream) : default_stream;
}

Result check(const Function *f, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned ty,
             unsigned tz, unsigned shared) {
  if (y != 1 || z != 1 || ty != 1 || tz != 1 || static_cast<int>(threads) != f->kernel->threads) return kInvalidValue;
  return static_cast<int>(shared) == f->kernel->shared && blocks > 0 ? 0 : kInvalidValue;
}

Launch launch_of(const Function *f, unsigned blocks, void **params) {
  Launch made{f, blocks, {}};
  for (int i = 0; i < f->kernel->buffers + f->kernel->sizes; ++i) {
    made.values.push_back(*static_cast<std::uint64_t *>(params[i]));
  }
  return made;
}

// Runs a launch; what it touched goes into `accesses`.
Result run(const Launch &launch, std::vector<Access> *accesses) {
  std::vector<std::uint64_t> values = launch.values;
  std::vector<void *> places;
  for (auto &value : values) places.push_back(&value);
  const Kernel &kernel = *launch.function->kernel;
  note(std::string("launch ") + kernel.name + " " + std::to_string(launch.blocks));
  const char *failure = launch.function->start(places.data(), behind, static_cast<int>(launch.blocks), 2);
  if (failure[0] != '\0') {
    last_failure = failure;
    return kLaunchFailed;
  }
  const Span *touched = launch.function->touched(), *fetched = launch.function->fetched();
  for (int i = 0; i < kernel.buffers; ++i) {
    const char *data = reinterpret_cast<const char *>(values[i]);
    for (const Span *spans : {touched, fetched}) {
      const Span &span = spans[i];
      const bool is_ahead = spans == fetched;
      if (span.begin >= span.end) continue;
      if (is_ahead) note("ahead " + std::to_string(span.end - span.begin));
      if (accesses == nullptr) continue;
      accesses->push_back({data + span.begin, data + span.end, !is_ahead && kernel.params[i].written != 0, is_ahead});
    }
  }
  return 0;
}

bool conflict(const std::vector<Access> &a, const std::vector<Access> &b) {
  for (const Access &x : a) {
    for (const Access &y : b) {
      if ((x.is_written || y.is_written) && x.begin < y.end && y.begin < x.end) return true;
    }
  }
  return false;
}

// The launches of a graph in one of the orders that its edges allow.
std::vector<int> order_of(const Exec &exec) {
  const int count = static_cast<int>(exec.launches.size());
  const char *how = std::getenv("STUB_CUDA_ORDER");
  unsigned random = how != nullptr ? static_cast<unsigned>(std::atoi(how)) : 0;
  std::vector<int> order, waits(count, 0), ready;
  for (const Edge &edge : exec.edges) ++waits[edge.to];
  for (int i = 0; i < count; ++i) {
    if (waits[i] == 0) ready.push_back(i);
  }
  while (!ready.empty()) {
    auto chosen = std::min_element(ready.begin(), ready.end());
    if (how != nullptr && std::strcmp(how, "last") == 0) {
      chosen = std::max_element(ready.begin(), ready.end());
    } else if (random != 0) {
      random = random * 1664525u + 1013904223u;
      chosen = ready.begin() + (random >> 8) % ready.size();
    }
    const int next = *chosen;
    ready.erase(chosen);
    order.push_back(next);
    for (const Edge &edge : exec.edges) {
      if (edge.from == next && --waits[edge.to] == 0) ready.push_back(edge.to);
    }
  }
  return order;
}

// Whether a launch asks ahead for what another one writes: an edge from that one does not help.
bool asks_too_early(const Exec &exec, const std::vector<std::vector<Access>> &accesses) {
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    for (std::size_t j = 0; j < accesses.size(); ++j) {
      for (const Access &x : accesses[i]) {
        if (!x.is_ahead || !conflict({x}, accesses[j])) continue;
        last_failure = std::string(exec.launches[i].function->kernel->name) + " asks ahead for what " +
                       exec.launches[j].function->kernel->name + " writes";
        return true;
      }
    }
  }
  return false;
}

// Whether any two launches that no path orders touch the same memory.
bool races(const Exec &exec, const std::vector<std::vector<Access>> &accesses) {
  const std::size_t count = exec.launches.size();
  std::vector<std::vector<bool>> before(count, std::vector<bool>(count));
  for (std::size_t i = 0; i < count; ++i) {  // edges lead from earlier launches to later ones
    for (const Edge &edge : exec.edges) {
      if (edge.to != static_cast<int>(i)) continue;
      before[i][edge.from] = true;
      for (int j = 0; j < edge.from; ++j) before[i][j] = before[i][j] || before[edge.from][j];
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (before[i][j] || !conflict(accesses[i], accesses[j])) continue;
      last_failure = std::string("nothing orders the launches ") + exec.launches[j].function->kernel->name + " and " +
                     exec.launches[i].function->kernel->name + ", which touch the same memory";
      return true;
    }
  }
  return false;
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
  const auto touched = reinterpret_cast<Spans>(dlsym(m->library, "dlc_touched"));
  const auto fetched = reinterpret_cast<Spans>(dlsym(m->library, "dlc_fetched"));
  if (kernel == nullptr || start == nullptr || touched == nullptr || fetched == nullptr) return kNotFound;
  m->functions.push_back(new Function{kernel, start, touched, fetched});
  *function = m->functions.back();
  return 0;
}
API cuFuncSetAttribute(void *, int attribute, int value) {
  LOCKED;
  note("attribute " + std::to_string(attribute) + " " + std::to_string(value));
  return 0;
}
API cuLaunchKernel(void *function, unsigned blocks, unsigned y, unsigned z, unsigned threads,
                   unsigned ty, unsigned tz, unsigned shared, void *, void **params, void **) {
  LOCKED;
  const auto *f = static_cast<Function *>(function);
  if (const Result result = check(f, blocks, y, z, threads, ty, tz, shared)) return result;
  return run(launch_of(f, blocks, params), nullptr);
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
API cuMemcpyHtoDAsync_v2(unsigned long long to, const void *of, std::size_t bytes, void *) {
  LOCKED;
  auto *target = reinterpret_cast<char *>(to);
  if (behind(target) < static_cast<long long>(bytes)) return kInvalidValue;
  note("to device " + std::to_string(bytes));
  std::memcpy(target, of, bytes);
  const auto *source = static_cast<const char *>(of);
  if (behind(of, pinned) > 0) late.push_back({const_cast<char *>(source), {source, source + bytes}, true});
  return 0;
}
API cuMemcpyDtoHAsync_v2(void *to, unsigned long long of, std::size_t bytes, void *) {
  LOCKED;
  const auto *source = reinterpret_cast<const char *>(of);
  if (behind(source) < static_cast<long long>(bytes)) return kInvalidValue;
  std::memcpy(to, source, bytes);
  if (bytes > 0 && behind(to, pinned) > 0) {
    note("to pinned " + std::to_string(bytes));
    late.push_back({static_cast<char *>(to), {source, source + bytes}, false});
    *static_cast<char *>(to) ^= 1;  // nearly right: no condition stays, and no loop becomes endless
    return 0;
  }
  note("to host " + std::to_string(bytes));
  return 0;
}
API cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long of, std::size_t bytes, void *) {
  LOCKED;
  auto *target = reinterpret_cast<char *>(to);
  const auto *source = reinterpret_cast<const char *>(of);
  if (behind(target) < static_cast<long long>(bytes)) return kInvalidValue;
  if (behind(source) < static_cast<long long>(bytes)) return kInvalidValue;
  note("on device " + std::to_string(bytes));
  std::memcpy(target, source, bytes);
  return 0;
}
API cuMemHostAlloc(void **memory, std::size_t bytes, unsigned) {
  LOCKED;
  note("pin " + std::to_string(bytes));
  *memory = std::malloc(bytes);
  pinned[static_cast<char *>(*memory)] = static_cast<long long>(bytes);
  return 0;
}
API cuMemFreeHost(void *memory) {
  LOCKED;
  note("unpin");
  if (pinned.erase(static_cast<char *>(memory)) == 0) return kInvalidValue;
  std::free(memory);
  return 0;
}
API cuMemsetD8Async(unsigned long long to, unsigned char byte, std::size_t bytes, void *) {
  LOCKED;
  auto *target = reinterpret_cast<char *>(to);
  if (behind(target) < static_cast<long long>(bytes)) return kInvalidValue;
  note("fill " + std::to_string(bytes));
  std::memset(target, byte, bytes);
  return 0;
}
API cuStreamCreate(void **stream, unsigned) { *stream = new Stream; return 0; }
API cuStreamDestroy_v2(void *stream) { delete static_cast<Stream *>(stream); return 0; }
API cuStreamSynchronize(void *) {
  LOCKED;
  note("wait");
  if (waits++ == number("STUB_CUDA_SKIP_WAIT", -1)) return 0;
  bool is_changed = false;
  for (const Late &copy : late) {
    if (behind(copy.pinned, pinned) == 0) continue;
    if (!copy.is_read) {
      std::memcpy(copy.pinned, copy.data.data(), copy.data.size());
    } else if (std::memcmp(copy.pinned, copy.data.data(), copy.data.size()) != 0) {
      is_changed = true;
    }
  }
  late.clear();
  if (!is_changed) return 0;
  last_failure = "pinned memory changed before it was copied";
  return kLaunchFailed;
}
API cuGraphCreate(void **graph, unsigned) {
  note("record");
  *graph = new Graph;
  return 0;
}
struct NodeParams {
  void *function;
  unsigned x, y, z, threads, ty, tz, shared;
  void **params, **extra;
  void *kernel, *context;
};
static_assert(sizeof(NodeParams) == 72, "as in cuda.h");
API cuGraphAddKernelNode_v2(void **node, void *graph, void *const *, std::size_t count, const NodeParams *about) {
  LOCKED;
  const auto *f = static_cast<Function *>(about->function);
  if (count != 0 || about->kernel != nullptr) return kInvalidValue;
  if (const Result result = check(f, about->x, about->y, about->z, about->threads, about->ty, about->tz, about->shared)) {
    return result;
  }
  auto &nodes = static_cast<Graph *>(graph)->nodes;
  nodes.push_back(new Node{launch_of(f, about->x, about->params), static_cast<int>(nodes.size())});
  *node = nodes.back();
  return 0;
}
struct EdgeData { unsigned char from_port, to_port, type, reserved[5]; };
API cuGraphAddDependencies_v2(void *graph, void *const *from, void *const *to, const EdgeData *about, std::size_t count) {
  LOCKED;
  auto &edges = static_cast<Graph *>(graph)->edges;
  for (std::size_t i = 0; i < count; ++i) {
    const Edge made{static_cast<Node *>(from[i])->number, static_cast<Node *>(to[i])->number, about != nullptr};
    if (about != nullptr && (about[i].from_port != 1 || about[i].type != 1 || about[i].to_port != 0)) return kInvalidValue;
    for (const Edge &edge : edges) {
      if (edge.from == made.from && edge.to == made.to) return kInvalidValue;
    }
    edges.push_back(made);
    note("edge " + std::to_string(made.from) + " " + std::to_string(made.to) + (made.early ? " early" : ""));
  }
  return 0;
}
API cuGraphAddDependencies(void *graph, void *const *from, void *const *to, std::size_t count) {
  return cuGraphAddDependencies_v2(graph, from, to, nullptr, count);
}
API cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long) {
  LOCKED;
  const auto *g = static_cast<Graph *>(graph);
  auto *made = new Exec{{}, g->edges};
  for (const Node *node : g->nodes) made->launches.push_back(node->launch);
  const int dropped = number("STUB_CUDA_DROP_EDGE", -1);
  if (dropped >= 0 && dropped < static_cast<int>(made->edges.size())) made->edges.erase(made->edges.begin() + dropped);
  *exec = made;
  return 0;
}
API cuGraphDestroy(void *graph) {
  for (Node *node : static_cast<Graph *>(graph)->nodes) delete node;
  delete static_cast<Graph *>(graph);
  return 0;
}
API cuGraphExecDestroy(void *exec) { note("forget"); delete static_cast<Exec *>(exec); return 0; }
API cuGraphLaunch(void *exec, void *stream) {
  LOCKED;
  note(&stream_of(stream) == &default_stream ? "replay in the default stream" : "replay");
  const Exec &e = *static_cast<Exec *>(exec);
  std::vector<std::vector<Access>> accesses(e.launches.size());
  const std::vector<int> order = order_of(e);
  for (const int next : order) {
    if (const Result result = run(e.launches[next], &accesses[next])) return result;
  }
  return races(e, accesses) || asks_too_early(e, accesses) ? kLaunchFailed : 0;
}
API cuGetErrorString(Result result, const char **text) {
  switch (result) {
    case kOutOfMemory: *text = "out of memory"; break;
    case kLaunchFailed: *text = last_failure.c_str(); break;
    default: *text = "a fault";
  }
  return 0;
}

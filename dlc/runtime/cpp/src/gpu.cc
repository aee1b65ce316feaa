#include "gpu.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "failure.h"
#include "gpu_graph.h"
#include "host.h"

namespace dlc_runtime {
namespace {

constexpr std::size_t kMaxGraphs = 32;
// A tensor of the CPU goes through pinned memory up to this size: beyond, copying it there costs more
// than the device's waiting for it.
constexpr std::int64_t kPinnedBytes = 1 << 20;
constexpr std::size_t kSeenBytes = 256;  // memory for what the program looks at, at first
constexpr CuDevicePointer kAlignment = 16;  // kernels copy so many bytes of a tensor at a time

void *host_view(CuDevicePointer pointer) {  // an address of the device, as models pass it on
  return reinterpret_cast<void *>(static_cast<std::uintptr_t>(pointer));
}

CuDevicePointer device_view(const void *pointer) {
  return static_cast<CuDevicePointer>(reinterpret_cast<std::uintptr_t>(pointer));
}

}  // namespace

// ---- runs

// What the model's program calls. The first failure is kept; nothing is launched after it.
struct GpuRun::Host {
  dlc_gpu_host interface;
  GpuRun &run;
  dlc_runtime::Host &cpu;

  Host(GpuRun &owner, dlc_runtime::Host &host)
      : interface{*host.interface(), &Host::launch, &Host::stage, &Host::fetch, &Host::send,
                  &Host::read, owner.reports_->words()},
        run(owner),
        cpu(host) {
    interface.host.allocate = &Host::allocate;
    interface.host.release = &Host::release;
    interface.host.output = &Host::output;
  }

  // The first member of the interface belongs to the CPU's host; `self` is found from it.
  static thread_local Host *current;

  template <typename Work>
  static void guarded_call(Work work) noexcept {
    Host &host = *current;
    if (host.cpu.failed()) return;
    try {
      work(host);
    } catch (const Failure &failure) {
      host.interface.host.fail(host.interface.host.self, failure.message.c_str());
    } catch (...) {
      host.interface.host.fail(host.interface.host.self, "there is no memory");
    }
  }

  static void launch(void *, std::uint32_t kernel, std::int64_t blocks, void **params,
                     const std::int64_t *bytes) noexcept {
    guarded_call([&](Host &host) {
      if (blocks <= 0) return;
      if (blocks > 0x7fffffff) fail(DLC_RUN_FAILED, "a kernel needs more blocks than a GPU has");
      const auto count = static_cast<unsigned>(blocks);
      if (host.run.graph_ != nullptr) {
        host.run.graph_->add(kernel, count, params, bytes);
      } else {
        host.run.code_->launch(kernel, count, params, host.run.current_);
      }
    });
  }

  // Whether a graph is being recorded, which cannot hold what the program asks for now.
  static bool stops_recording() noexcept {
    GpuRun &run = current->run;
    if (run.graph_ != nullptr) run.is_recordable_ = false;
    return run.graph_ != nullptr;
  }

  static void *stage(void *, std::int64_t bytes) noexcept {
    if (stops_recording()) return nullptr;
    try {
      return current->run.staging_.at_least(bytes > 0 ? bytes : 1);
    } catch (...) {
      return nullptr;
    }
  }

  static void fetch(void *, void *to, const void *of, std::int64_t bytes) noexcept {
    guarded_call([&](Host &host) {
      const CudaDriver &driver = host.run.code_->driver();
      if (bytes <= 0) return;
      check_cuda(driver,
                 driver.copy_to_host(to, device_view(of), static_cast<std::size_t>(bytes),
                                     host.run.current_),
                 "copy from the GPU");
      check_cuda(driver, driver.stream_synchronize(host.run.current_), "run the model");
    });
  }

  static void send(void *, void *to, const void *of, std::int64_t bytes) noexcept {
    guarded_call([&](Host &host) {
      const CudaDriver &driver = host.run.code_->driver();
      if (bytes <= 0) return;
      check_cuda(driver,
                 driver.copy_to_device(device_view(to), of, static_cast<std::size_t>(bytes),
                                       host.run.current_),
                 "copy to the GPU");
      check_cuda(driver, driver.stream_synchronize(host.run.current_), "copy to the GPU");
    });
  }

  static std::int32_t read(void *, void *to, const void *of, std::int64_t bytes) noexcept {
    if (stops_recording()) return 1;
    guarded_call([&](Host &host) {
      const CudaDriver &driver = host.run.code_->driver();
      const auto count = static_cast<std::size_t>(bytes);
      char *seen = host.run.seen_->at_least(std::max(count, kSeenBytes));
      const CuStream stream = host.run.current_;
      check_cuda(driver, driver.copy_to_host(seen, device_view(of), count, stream),
                 "copy from the GPU");
      check_cuda(driver, driver.stream_synchronize(stream), "run the model");
      host.run.heed();  // nothing is decided by what bad indices lead to
      std::memcpy(to, seen, count);
    });
    return current->cpu.failed() ? 1 : 0;
  }

  static void *allocate(void *, std::int64_t bytes) noexcept {
    void *found = nullptr;
    if (stops_recording()) return nullptr;
    guarded_call([&](Host &host) { found = host.run.blocks_->take(bytes, host.run.current_); });
    return found;
  }

  static void release(void *, void *memory) noexcept { current->run.blocks_->give_back(memory); }

  static void *output(void *, std::uint32_t index, const std::int64_t *dims) noexcept {
    void *found = nullptr;
    if (stops_recording()) return nullptr;
    guarded_call([&](Host &host) { found = host.run.provide_(index, dims); });
    return found;
  }
};

thread_local GpuRun::Host *GpuRun::Host::current = nullptr;

GpuRun::GpuRun(std::shared_ptr<const GpuCode> code)
    : code_(std::move(code)),
      arena_(std::make_unique<GpuMemory>(code_->driver())),
      blocks_(std::make_unique<GpuBlocks>(code_->driver())),
      seen_(std::make_unique<PinnedMemory>(code_->driver())),
      pinned_(std::make_unique<PinnedMemory>(code_->driver())) {
  const GpuScope scope(*code_);
  reports_ = std::make_unique<GpuReports>(*code_);
  check_cuda(code_->driver(), code_->driver().stream_create(&stream_, kCuStreamNonBlocking),
             "make a stream");
  current_ = stream_;
}

GpuRun::~GpuRun() {
  const CudaDriver &driver = code_->driver();
  if (driver.context_push(code_->context()) != 0) return;
  if (current_ != stream_) driver.stream_synchronize(current_);
  forget_graphs();
  tensors_.clear();
  arena_.reset();
  blocks_.reset();
  seen_.reset();
  pinned_.reset();
  reports_.reset();
  driver.stream_destroy(stream_);
  CuContext context = nullptr;
  driver.context_pop(&context);
}

void GpuRun::forget_graphs() noexcept {
  for (const auto &entry : graphs_) code_->driver().graph_exec_destroy(entry.second);
  graphs_.clear();
}

// Where the kernels find a tensor: where it is, if they can, else in memory of its own.
CuDevicePointer GpuRun::place(std::size_t number, const GpuTensor &tensor) {
  const CuDevicePointer given = device_view(tensor.data);
  if (tensor.on_device && tensor.bytes > 0 && given % kAlignment == 0) return given;
  return tensors_[number]->at_least(tensor.bytes);
}

// Throws what launches that are done have reported.
void GpuRun::heed() {
  if (reports_->is_any()) fail(DLC_RUN_FAILED, reports_->take());
}

// Finds memory for everything. The addresses are the key of what is recorded with them.
GpuRun::Key GpuRun::bind(const std::vector<std::int64_t> &sizes, std::int64_t arena_bytes,
                         const std::vector<GpuTensor> &inputs,
                         const std::vector<GpuTensor> &outputs) {
  while (tensors_.size() < inputs.size() + outputs.size()) {
    tensors_.push_back(std::make_unique<GpuMemory>(code_->driver()));
  }
  Key key = sizes;
  input_pointers_.clear();
  output_pointers_.clear();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const CuDevicePointer at = place(i, inputs[i]);
    input_pointers_.push_back(host_view(at));
    key.push_back(static_cast<std::int64_t>(at));
  }
  const dlc_gpu_model &model = code_->model();
  for (std::uint32_t i = 0; i < model.constant_count; ++i) {
    input_pointers_.push_back(
        host_view(code_->weights() + static_cast<CuDevicePointer>(model.constant_offsets[i])));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool is_late = outputs[i].bytes < 0;
    const CuDevicePointer at = is_late ? 0 : place(inputs.size() + i, outputs[i]);
    output_pointers_.push_back(host_view(at));
    key.push_back(static_cast<std::int64_t>(at));
  }
  const bool is_new = !arena_->has(arena_bytes);
  arena_pointer_ = arena_->at_least(arena_bytes);
  if (is_new && arena_bytes > 0) {
    check_cuda(code_->driver(),
               code_->driver().fill(arena_pointer_, 0, static_cast<std::size_t>(arena_bytes),
                                    current_),
               "clear memory of the GPU");
  }
  key.push_back(static_cast<std::int64_t>(arena_pointer_));
  return key;
}

// What the last run left in another stream comes first.
void GpuRun::enter(CuStream stream) {
  if (stream == current_) return;
  check_cuda(code_->driver(), code_->driver().stream_synchronize(current_), "run the model");
  current_ = stream;
}

void GpuRun::bring(const std::vector<GpuTensor> &inputs) {
  const CudaDriver &driver = code_->driver();
  std::size_t staged = 0;
  for (const GpuTensor &t : inputs) {
    if (!t.on_device && t.bytes <= kPinnedBytes) staged += static_cast<std::size_t>(t.bytes);
  }
  char *memory = staged > 0 ? pinned_->at_least(staged) : nullptr;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const GpuTensor &tensor = inputs[i];
    const CuDevicePointer to = device_view(input_pointers_[i]);
    const auto bytes = static_cast<std::size_t>(tensor.bytes);
    if (bytes == 0 || (tensor.on_device && to == device_view(tensor.data))) continue;
    if (tensor.on_device) {
      check_cuda(driver, driver.copy_on_device(to, device_view(tensor.data), bytes, current_),
                 "copy an input on the GPU");
      continue;
    }
    const void *from = tensor.data;
    if (tensor.bytes <= kPinnedBytes) {
      std::memcpy(memory, from, bytes);
      from = std::exchange(memory, memory + bytes);
    }
    check_cuda(driver, driver.copy_to_device(to, from, bytes, current_), "copy an input to the GPU");
  }
}

// Whether an output is of the CPU, which waits for it.
bool GpuRun::fetch(const std::vector<GpuTensor> &inputs, const std::vector<GpuTensor> &outputs) {
  const CudaDriver &driver = code_->driver();
  const auto is_of_cpu = [](const GpuTensor &t) { return !t.on_device; };
  bool waits = std::any_of(inputs.begin(), inputs.end(), is_of_cpu);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const GpuTensor &tensor = outputs[i];
    const CuDevicePointer from = device_view(output_pointers_[i]);
    const auto bytes = static_cast<std::size_t>(tensor.bytes);
    if (bytes == 0 || (tensor.on_device && from == device_view(tensor.data))) continue;
    if (tensor.on_device) {
      check_cuda(driver, driver.copy_on_device(device_view(tensor.data), from, bytes, current_),
                 "copy an output on the GPU");
      continue;
    }
    waits = true;
    check_cuda(driver, driver.copy_to_host(tensor.data, from, bytes, current_),
               "copy an output from the GPU");
  }
  return waits;
}

void GpuRun::run(const std::vector<std::int64_t> &sizes, std::int64_t arena_bytes,
                 const std::vector<GpuTensor> &inputs, std::vector<GpuTensor> &outputs,
                 const LatePlace &late, CuStream stream, bool waits) {
  const GpuScope scope(*code_);
  const CudaDriver &driver = code_->driver();
  if (reports_->is_any()) {
    check_cuda(driver, driver.stream_synchronize(current_), "run the model");
    fail(DLC_RUN_FAILED, "an earlier run, which was not waited for: " + reports_->take());
  }
  enter(stream);
  const Key key = bind(sizes, arena_bytes, inputs, outputs);
  bring(inputs);
  const auto found = graphs_.find(key);
  CuGraphExec graph = found != graphs_.end() ? found->second : nullptr;
  if (graph == nullptr && eager_.count(sizes) == 0) graph = record(sizes, key);
  if (graph != nullptr) {
    check_cuda(driver, driver.graph_launch(graph, current_), "launch the model");
  } else {
    provide_ = [&](std::size_t index, const std::int64_t *dims) {
      outputs[index] = late(index, dims);
      const CuDevicePointer at = place(inputs.size() + index, outputs[index]);
      return output_pointers_[index] = host_view(at);
    };
    call(sizes, nullptr);
  }
  if (fetch(inputs, outputs) || waits) {
    check_cuda(driver, driver.stream_synchronize(current_), "run the model");
    heed();
  }
}

// Calls the program, which launches into a graph, or right away.
void GpuRun::call(const std::vector<std::int64_t> &sizes, LaunchGraph *graph) {
  graph_ = graph;
  dlc_runtime::Host cpu(false);
  blocks_->give_back_all();  // what a run that failed had
  Host host(*this, cpu);
  Host::current = &host;
  const std::int32_t status = code_->model().model.run(
      &host.interface.host, sizes.data(), input_pointers_.data(), output_pointers_.data(),
      host_view(arena_pointer_));
  Host::current = nullptr;
  if ((status == 0 && !cpu.failed()) || !is_recordable_) return;
  // What was launched may have reported why, and copies still read pinned memory.
  if (code_->driver().stream_synchronize(current_) == 0) heed();
  fail(cpu.cause(status), cpu.failure());
}

// Null where the program waits for data or finds out sizes, as some do for some sizes.
CuGraphExec GpuRun::record(const std::vector<std::int64_t> &sizes, const Key &key) {
  const CudaDriver &driver = code_->driver();
  if (graphs_.size() >= kMaxGraphs) {
    check_cuda(driver, driver.stream_synchronize(current_), "run the model");
    forget_graphs();
  }
  LaunchGraph graph(*code_);
  is_recordable_ = true;
  call(sizes, &graph);
  if (std::exchange(is_recordable_, true)) return graphs_[key] = graph.instantiate();
  if (eager_.size() >= kMaxGraphs) eager_.clear();
  eager_.insert(sizes);
  return nullptr;
}

// ---- memory of the caller's

GpuBlock::GpuBlock(std::shared_ptr<const GpuCode> code, std::int64_t bytes)
    : code_(std::move(code)), memory_(std::make_unique<GpuMemory>(code_->driver())) {
  const GpuScope scope(*code_);
  memory_->at_least(bytes);
}

GpuBlock::~GpuBlock() {
  const CudaDriver &driver = code_->driver();
  if (driver.context_push(code_->context()) != 0) return;
  memory_.reset();
  CuContext context = nullptr;
  driver.context_pop(&context);
}

void *GpuBlock::data() const noexcept { return host_view(memory_->at_least(0)); }

void GpuBlock::read(void *to, std::int64_t bytes, CuStream stream) const {
  const GpuScope scope(*code_);
  const CudaDriver &driver = code_->driver();
  if (bytes > 0) {
    check_cuda(driver,
               driver.copy_to_host(to, device_view(data()), static_cast<std::size_t>(bytes), stream),
               "copy from the GPU");
  }
  check_cuda(driver, driver.stream_synchronize(stream), "run the model");
}

}  // namespace dlc_runtime

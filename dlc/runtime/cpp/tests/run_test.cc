// Loading and running, through the C interface: every status, ownership, threads.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "dlc/runtime.hpp"
#include "float_environment.h"

namespace {

std::string twice_path, thrice_path;  // models that double and triple
std::string folder;

std::string read(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string write(const char *name, const std::string &bytes) {
  const std::string path = folder + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

dlc_status load_status(const std::string &path) {
  dlc_module *module = nullptr;
  const dlc_status status = dlc_module_load(path.c_str(), DLC_VERIFY_FULL, &module);
  CHECK((module != nullptr) == (status == DLC_OK));
  dlc_module_free(module);
  return status;
}

template <typename Body>
dlc::Error error_of(Body body) {
  try {
    body();
  } catch (const dlc::Error &error) {
    return error;
  }
  return dlc::Error(DLC_OK, "no error");
}

std::vector<float> run_once(const dlc::Model &model, std::vector<float> x) {
  std::vector<float> b = {1, 2, 3};
  std::vector<float> y(x.size()), total(1);
  const auto batch = static_cast<std::int64_t>(x.size() / 3);
  model.context().run({dlc::view(x, {batch, 3}), dlc::view(b, {3})},
                      {dlc::view(y, {batch, 3}), dlc::view(total, {1})});
  y.push_back(total[0]);
  return y;
}

void test_a_run_into_memory_of_the_caller() {
  const dlc::Model model = dlc::Model::load(twice_path);
  CHECK(run_once(model, {1, 1, 1, 5, 6, 7}) == (std::vector<float>{3, 4, 5, 11, 14, 17, 54}));
}

void test_a_run_into_memory_of_the_context() {
  const dlc::Model model = dlc::Model::load(twice_path);
  dlc::Context context = model.context();
  const std::vector<float> b = {1, 2, 3};
  for (std::int64_t batch = 1; batch < 12; ++batch) {
    const std::vector<float> x(static_cast<std::size_t>(3 * batch), 1.0F);
    const auto outputs = context.run({dlc::view(x, {batch, 3}), dlc::view(b, {3})});
    CHECK(outputs[0].shape() == (std::vector<std::int64_t>{batch, 3}));
    CHECK(outputs[0].as<float>()[3 * batch - 1] == 5.0F);
    CHECK(outputs[1].as<float>()[0] == 12.0F * static_cast<float>(batch));
    CHECK(error_of([&] { outputs[0].as<double>(); }).status() == DLC_BAD_TENSOR);
  }
}

void test_what_a_model_says_about_itself() {
  const dlc::Model model = dlc::Model::load(twice_path);
  const auto inputs = model.inputs();
  CHECK(inputs.size() == 2 && inputs[0].name == "x" && inputs[0].dtype.bits == 32);
  CHECK(inputs[0].shape == (std::vector<std::string>{"batch", "3"}));
  CHECK(inputs[0].constants == (std::vector<std::int64_t>{-1, 3}));
  CHECK(model.outputs()[1].name == "total");
  CHECK(model.metadata() == "{\"model\":\"affine\"}");
  dlc_size_info size{};
  CHECK(dlc_module_size(model.handle(), 0, &size) == DLC_OK);
  CHECK(std::string(size.name) == "batch" && size.min == 1 && size.max == 64);
  CHECK(dlc_module_size(model.handle(), 1, &size) == DLC_INVALID_ARGUMENT);
  dlc_tensor_info info{};
  CHECK(dlc_module_input(model.handle(), 2, &info) == DLC_INVALID_ARGUMENT);
  CHECK_HAS(dlc_last_error(), "index 2 of 2");
}

void test_output_shapes_without_a_run() {
  dlc::Context context = dlc::Model::load(twice_path).context();
  std::vector<float> x(21), b(3);
  const auto shapes = context.output_shapes({dlc::view(x, {7, 3}), dlc::view(b, {3})});
  CHECK(shapes == (std::vector<std::vector<std::int64_t>>{{7, 3}, {1}}));
}

DLTensor raw(float *data, std::int32_t rank, std::int64_t *shape) {
  return {data, {kDLCPU, 0}, rank, {kDLFloat, 32, 1}, shape, nullptr, 0};
}

// A context outlives the handle of its module: the code stays until the last context is gone.
void test_a_context_keeps_its_module() {
  dlc_module *module = nullptr;
  dlc_context *context = nullptr;
  CHECK(dlc_module_load(twice_path.c_str(), DLC_VERIFY_SKIP_HASH, &module) == DLC_OK);
  CHECK(dlc_context_create(module, &context) == DLC_OK);
  dlc_module_free(module);
  float x[] = {1, 2, 3}, b[] = {0, 0, 0};
  std::int64_t x_shape[] = {1, 3}, b_shape[] = {3};
  const DLTensor in[] = {raw(x, 2, x_shape), raw(b, 1, b_shape)};
  DLTensor out[2] = {};
  CHECK(dlc_run(context, in, out) == DLC_OK);
  CHECK(out[0].ndim == 2 && static_cast<float *>(out[0].data)[2] == 6.0F);
  dlc_context_free(context);
}

// The caller gives memory when a run asks for it, and keeps it; until it does so no more.
void test_a_run_asks_for_memory() {
  const dlc::Model model = dlc::Model::load(twice_path);
  dlc_context *context = nullptr;
  CHECK(dlc_context_create(model.handle(), &context) == DLC_OK);
  float x[] = {1, 2, 3}, b[] = {0, 0, 0};
  std::int64_t x_shape[] = {1, 3}, b_shape[] = {3};
  const DLTensor in[] = {raw(x, 2, x_shape), raw(b, 1, b_shape)};
  std::vector<std::vector<float>> given(2);
  const dlc_output_memory give = [](void *user, std::size_t index, std::int64_t bytes) {
    auto &memory = (*static_cast<std::vector<std::vector<float>> *>(user))[index];
    memory.resize(static_cast<std::size_t>(bytes) / sizeof(float));
    return static_cast<void *>(memory.data());
  };
  CHECK(dlc_context_set_output_memory(context, give, &given) == DLC_OK);
  DLTensor out[2] = {};
  CHECK(dlc_run(context, in, out) == DLC_OK);
  CHECK(out[0].data == given[0].data() && given[0] == (std::vector<float>{2, 4, 6}));
  CHECK(out[1].data == given[1].data() && given[1] == (std::vector<float>{12}));

  const dlc_output_memory odd = [](void *user, std::size_t, std::int64_t) -> void * {
    return static_cast<char *>(user) + 1;
  };
  float room[4] = {};
  CHECK(dlc_context_set_output_memory(context, odd, room) == DLC_OK);
  DLTensor apart[2] = {};
  CHECK(dlc_run(context, in, apart) == DLC_BAD_TENSOR);
  CHECK_HAS(dlc_last_error(), "its data is not aligned");

  const dlc_output_memory none = [](void *, std::size_t, std::int64_t) -> void * {
    return nullptr;
  };
  CHECK(dlc_context_set_output_memory(context, none, nullptr) == DLC_OK);
  DLTensor missing[2] = {};
  CHECK(dlc_run(context, in, missing) == DLC_NO_MEMORY);
  CHECK(dlc_context_set_output_memory(context, nullptr, nullptr) == DLC_OK);
  DLTensor own[2] = {};
  CHECK(dlc_run(context, in, own) == DLC_OK && own[0].data != given[0].data());
  CHECK(dlc_context_set_output_memory(nullptr, nullptr, nullptr) == DLC_INVALID_ARGUMENT);
  dlc_context_free(context);
}

// Tensors that do not fit, and what is said about them.
void test_tensors_that_do_not_fit() {
  const dlc::Model model = dlc::Model::load(twice_path);
  dlc::Context context = model.context();
  std::vector<float> x(12), b(3), y(12), total(1);
  std::vector<double> wide(12);
  const auto expect = [&](const dlc::Tensor &first, const dlc::Tensor &second, const char *why) {
    const dlc::Error error = error_of([&] { context.run({first, second}); });
    CHECK(error.status() == DLC_BAD_TENSOR);
    CHECK_HAS(error.what(), why);
  };
  const dlc::Tensor good_x = dlc::view(x, {4, 3}), good_b = dlc::view(b, {3});
  expect(dlc::view(wide, {4, 3}), good_b, "input 'x': expected f32, got f64");
  expect(dlc::view(x, {3, 4}), good_b, "input 'x': expected shape (batch, 3), got (3, 4)");
  expect(dlc::view(x, {12}), good_b, "expected shape (batch, 3), got (12,)");
  expect(dlc::Tensor(nullptr, dlc::dtype_of<float>(), {4, 3}), good_b, "its data is NULL");
  expect(dlc::Tensor(reinterpret_cast<char *>(x.data()) + 1, dlc::dtype_of<float>(), {1, 3}),
         good_b, "not aligned");
  expect(dlc::Tensor(x.data(), dlc::dtype_of<float>(), {65, 3}), good_b,
         "size 'batch' is 65, the model was built for 1 to 64");
  std::vector<float> unlucky(39);
  expect(dlc::view(unlucky, {13, 3}), good_b, "a batch of 13 is bad luck");
  const dlc::Error output = error_of([&] {
    context.run({good_x, good_b}, {dlc::view(y, {3, 4}), dlc::view(total, {1})});
  });
  CHECK(output.status() == DLC_BAD_TENSOR);
  CHECK_HAS(output.what(), "output 'y': expected shape (4, 3), got (3, 4)");
  CHECK(error_of([&] { context.run({good_x}); }).status() == DLC_INVALID_ARGUMENT);
  context.run({good_x, good_b}, {dlc::view(y, {4, 3}), dlc::view(total, {1})});
}

void test_strides() {
  dlc_module *module = nullptr;
  dlc_context *context = nullptr;
  CHECK(dlc_module_load(twice_path.c_str(), 0, &module) == DLC_OK);
  CHECK(dlc_context_create(module, &context) == DLC_OK);
  float x[12] = {}, b[3] = {};
  std::int64_t x_shape[] = {2, 3}, b_shape[] = {3}, dense[] = {3, 1}, gaps[] = {6, 1};
  DLTensor in[] = {raw(x, 2, x_shape), raw(b, 1, b_shape)};
  in[0].strides = dense;
  DLTensor out[2] = {};
  CHECK(dlc_run(context, in, out) == DLC_OK);
  in[0].strides = gaps;
  CHECK(dlc_run(context, in, out) == DLC_BAD_TENSOR);
  CHECK_HAS(dlc_last_error(), "not dense");
  in[0].strides = nullptr;
  in[0].device.device_type = kDLCUDA;
  CHECK(dlc_run(context, in, out) == DLC_BAD_TENSOR);
  CHECK_HAS(dlc_last_error(), "not in CPU memory");
  CHECK(dlc_run(context, nullptr, out) == DLC_INVALID_ARGUMENT);
  CHECK(dlc_run(nullptr, in, out) == DLC_INVALID_ARGUMENT);
  dlc_context_free(context);
  dlc_module_free(module);
}

void test_a_model_that_reports_no_steps_is_refused() {
  dlc_module *module = nullptr;
  dlc_context *context = nullptr;
  CHECK(dlc_module_load(twice_path.c_str(), 0, &module) == DLC_OK);
  CHECK(dlc_context_create(module, &context) == DLC_OK);
  float x[6] = {}, b[3] = {};
  std::int64_t x_shape[] = {2, 3}, b_shape[] = {3};
  const DLTensor in[] = {raw(x, 2, x_shape), raw(b, 1, b_shape)};
  DLTensor out[2] = {};
  const dlc_step *steps = nullptr;
  size_t count = 0;
  CHECK(dlc_profile(context, in, out, &steps, &count) == DLC_INCOMPATIBLE);
  CHECK_HAS(dlc_last_error(), "without a report of its steps");
  CHECK(dlc_profile(context, in, out, nullptr, &count) == DLC_INVALID_ARGUMENT);
  CHECK(dlc_run(context, in, out) == DLC_OK);
  dlc_context_free(context);
  dlc_module_free(module);
}

void test_a_failed_run_leaves_the_context_usable() {
  const dlc::Model model = dlc::Model::load(twice_path);
  dlc::Context context = model.context();
  std::vector<float> x = {1, 2, 3}, b = {0, NAN, 0};
  const auto run = [&] { return context.run({dlc::view(x, {1, 3}), dlc::view(b, {3})}); };
  const dlc::Error error = error_of(run);
  CHECK(error.status() == DLC_RUN_FAILED);
  CHECK(std::string(error.what()) == "b is not a number");
  b[1] = 0;
  CHECK(run()[0].as<float>()[1] == 4.0F);
}

void test_files_that_are_no_models() {
  CHECK(load_status("/no/such/file") == DLC_NOT_FOUND);
  CHECK(load_status(folder) == DLC_BAD_ARTIFACT);
  CHECK(load_status("/dev/zero") == DLC_BAD_ARTIFACT);
  const std::string pipe = folder + "/pipe";
  CHECK(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(load_status(pipe) == DLC_BAD_ARTIFACT);
  CHECK(load_status(write("empty", "")) == DLC_BAD_ARTIFACT);
  CHECK(load_status(write("text", std::string(1000, 'x'))) == DLC_BAD_ARTIFACT);
  CHECK_HAS(dlc_last_error(), "/text: not a compiled model");
  const std::string whole = read(twice_path);
  CHECK(load_status(write("longer", whole + "x")) == DLC_BAD_ARTIFACT);
  CHECK(load_status(write("shorter", whole.substr(1))) == DLC_BAD_ARTIFACT);
  dlc_module *module = nullptr;
  CHECK(dlc_module_load(nullptr, 0, &module) == DLC_INVALID_ARGUMENT);
  CHECK(dlc_module_load(twice_path.c_str(), 99, &module) == DLC_INVALID_ARGUMENT);
  CHECK(std::string(dlc_status_name(DLC_INCOMPATIBLE)) == "DLC_INCOMPATIBLE");
}

void test_the_hash_sees_one_bit() {
  std::string bytes = read(twice_path);
  bytes[bytes.size() / 2] ^= 4;
  const std::string path = write("flipped", bytes);
  CHECK(load_status(path) == DLC_BAD_ARTIFACT);
  CHECK_HAS(dlc_last_error(), "does not have the hash");
  CHECK(dlc_check_file(path.c_str()) == DLC_BAD_ARTIFACT);
  CHECK_HAS(dlc_last_error(), "/flipped: damaged: its content does not have the hash");
  CHECK(dlc_check_file(twice_path.c_str()) == DLC_OK);
  CHECK(dlc_check_file("/no/such/file") == DLC_NOT_FOUND);
  CHECK(dlc_check_file(nullptr) == DLC_INVALID_ARGUMENT);
}

void test_loading_from_memory() {
  std::string bytes = read(twice_path);
  const dlc::Model model = dlc::Model::load(bytes.data(), bytes.size());
  bytes.assign(bytes.size(), 'x');  // the runtime has a copy
  CHECK(run_once(model, {1, 1, 1})[0] == 3.0F);
  CHECK(error_of([&] { dlc::Model::load(bytes.data(), bytes.size()); }).status() ==
        DLC_BAD_ARTIFACT);
}

// The C library keeps the spellings of paths it has opened: descriptors are used again, so a path
// through one must not lead to the library it once meant.
void test_each_file_gives_its_own_code() {
  const dlc::Model kept = dlc::Model::load(twice_path);
  for (int i = 0; i < 40; ++i) {
    { const dlc::Model again = dlc::Model::load(twice_path); }
    const dlc::Model other = dlc::Model::load(thrice_path);
    CHECK(run_once(other, {1, 1, 1})[0] == 4.0F);
  }
  CHECK(run_once(kept, {1, 1, 1})[0] == 3.0F);
}

// The host may flush denormals; the model must not see it, and the host must get its mode back.
void test_the_float_environment() {
  const dlc::Model model = dlc::Model::load(twice_path);
  dlc::Context context = model.context();
  std::vector<float> x = {1, 2, 3}, b = {-1, 0, 0};
  const dlc_runtime::FloatMode before = dlc_runtime::float_mode();
#if defined(__x86_64__)
  const dlc_runtime::FloatMode flushing = 0x1F80U | 0x8040U;  // FTZ and DAZ
#else
  const dlc_runtime::FloatMode flushing = 1U << 24U;  // FZ
#endif
  dlc_runtime::set_float_mode(flushing);
  const auto outputs = context.run({dlc::view(x, {1, 3}), dlc::view(b, {3})});
  const dlc_runtime::FloatMode after = dlc_runtime::float_mode();
  dlc_runtime::set_float_mode(before);
  CHECK(outputs[1].as<float>()[0] == 1.0F);
  CHECK(after == flushing);
}

void test_runs_from_many_threads() {
  const dlc::Model model = dlc::Model::load(twice_path);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      dlc::Context context = model.context();
      std::vector<float> b = {0, 0, 0};
      for (int i = 0; i < 200; ++i) {
        const std::int64_t batch = 1 + (t + i) % 12;
        std::vector<float> x(static_cast<std::size_t>(3 * batch), static_cast<float>(t));
        const auto outputs = context.run({dlc::view(x, {batch, 3}), dlc::view(b, {3})});
        CHECK(outputs[1].as<float>()[0] == static_cast<float>(6 * batch * t));
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
}

// Two threads in one context: each call runs alone or is refused, and both do happen.
void test_a_context_used_twice_at_once() {
  const dlc::Model model = dlc::Model::load(twice_path);
  dlc_context *context = nullptr;
  CHECK(dlc_context_create(model.handle(), &context) == DLC_OK);
  std::atomic<int> ran{0}, refused{0}, wrong{0};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto work = [&](float value) {
    std::vector<float> x(192, value), y(192), b(3);
    float total = 0;
    std::int64_t x_shape[] = {64, 3}, b_shape[] = {3}, total_shape[] = {1};
    const DLTensor in[] = {raw(x.data(), 2, x_shape), raw(b.data(), 1, b_shape)};
    DLTensor out[] = {raw(y.data(), 2, x_shape), raw(&total, 1, total_shape)};
    while ((ran < 100 || refused < 3) && std::chrono::steady_clock::now() < deadline) {
      const dlc_status status = dlc_run(context, in, out);
      if (status == DLC_OK) {
        ++ran;
        if (total != 384 * value) ++wrong;
      } else {
        ++refused;
        if (std::strstr(dlc_last_error(), "another thread is using") == nullptr) ++wrong;
      }
    }
  };
  std::thread other(work, 1.0F);
  work(2.0F);
  other.join();
  CHECK(ran >= 100 && refused >= 3 && wrong == 0);
  dlc_context_free(context);
}

// Loads, unloads, changes of the pool and failing runs, all at once.
void test_everything_at_once() {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 25; ++i) {
        const dlc::Model model = dlc::Model::load(t % 2 == 0 ? twice_path : thrice_path);
        const float expected = t % 2 == 0 ? 3.0F : 4.0F;
        CHECK(run_once(model, std::vector<float>(60, 1.0F))[0] == expected);
        if (t == 0) dlc_set_num_threads(1U + static_cast<unsigned>(i) % 3U);
        if (t == 1) CHECK(error_of([&] { run_once(model, std::vector<float>(39)); }).status() ==
                          DLC_BAD_TENSOR);
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  twice_path = argv[1];
  thrice_path = argv[2];
  char name[] = "/tmp/dlc_run_test_XXXXXX";
  folder = mkdtemp(name);
  test_a_run_into_memory_of_the_caller();
  test_a_run_into_memory_of_the_context();
  test_what_a_model_says_about_itself();
  test_output_shapes_without_a_run();
  test_a_context_keeps_its_module();
  test_a_run_asks_for_memory();
  test_tensors_that_do_not_fit();
  test_strides();
  test_a_model_that_reports_no_steps_is_refused();
  test_a_failed_run_leaves_the_context_usable();
  test_files_that_are_no_models();
  test_the_hash_sees_one_bit();
  test_loading_from_memory();
  test_each_file_gives_its_own_code();
  test_the_float_environment();
  test_runs_from_many_threads();
  test_a_context_used_twice_at_once();
  test_everything_at_once();
  for (const char *file : {"pipe", "empty", "text", "longer", "shorter", "flipped"}) {
    unlink((folder + "/" + file).c_str());
  }
  rmdir(folder.c_str());
  return check::result();
}

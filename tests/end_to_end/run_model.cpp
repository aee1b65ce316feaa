// Runs a compiled model: float32 inputs from standard input, all outputs to standard output.
//
//   run_model model.so < inputs > outputs

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlc/runtime.hpp>
#include <exception>
#include <stdexcept>
#include <vector>

namespace {

void run(const char *path) {
  const dlc::Model model = dlc::Model::load(path);
  std::vector<std::vector<float>> arrays;
  std::vector<dlc::Tensor> inputs;
  for (const dlc::TensorSpec &spec : model.inputs()) {
    std::size_t elements = 1;
    for (const std::int64_t dim : spec.constants) elements *= static_cast<std::size_t>(dim);
    std::vector<float> &array = arrays.emplace_back(elements);
    if (std::fread(array.data(), sizeof(float), elements, stdin) != elements) {
      throw std::runtime_error("too few inputs");
    }
    inputs.push_back(dlc::view(array, spec.constants));
  }
  dlc::Context context = model.context();
  for (const dlc::Tensor &output : context.run(inputs)) {
    std::fwrite(output.as<float>(), sizeof(float), output.size(), stdout);
  }
}

}  // namespace

int main(int count, char **words) {
  try {
    if (count != 2) throw std::runtime_error("usage: run_model model.so");
    run(words[1]);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

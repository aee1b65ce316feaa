// overhead model.so ROUNDS RUNS: microseconds of a run of a model of one float32, for each round.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <dlc/runtime.hpp>
#include <vector>

int main(int argc, char **argv) {
  if (argc != 4) return EXIT_FAILURE;
  const dlc::Model model = dlc::Model::load(argv[1]);
  dlc::Context context = model.context();
  std::vector<float> x(1), y(1);
  const std::vector<dlc::Tensor> inputs = {dlc::view(x, {1})}, outputs = {dlc::view(y, {1})};
  const long runs = std::atol(argv[3]);
  for (long round = std::atol(argv[2]); round > 0; --round) {
    const auto began = std::chrono::steady_clock::now();
    for (long i = 0; i < runs; ++i) context.run(inputs, outputs);
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - began;
    std::printf("%.6f\n", taken.count() / static_cast<double>(runs));
  }
  return EXIT_SUCCESS;
}

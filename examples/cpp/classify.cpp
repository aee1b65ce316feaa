// Reads handwritten digits with a compiled model: draws a few, says what they are, and counts how
// many of all held-back images the model gets right.
//
//   classify digits.so digits_test.bin

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlc/runtime.hpp>
#include <exception>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kShown = 6;
constexpr std::size_t kClasses = 10;
constexpr float kInk = 16.0F;  // the darkest value of a pixel

struct Digits {
  std::size_t count = 0, height = 0, width = 0;
  std::vector<std::uint8_t> labels;
  std::vector<float> pixels;  // [count, 1, height, width], 0 (paper) to 1 (ink)
};

std::uint32_t read_u32(const std::vector<char> &bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    value |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  }
  return value;
}

// The format is described in examples/digits/train.py, `write_raw`.
Digits read_digits(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  constexpr std::size_t kHeader = 16;
  if (bytes.size() < kHeader || std::string(bytes.data(), 4) != "DGT1") {
    throw std::runtime_error(path + " holds no digits");
  }
  Digits digits;
  digits.count = read_u32(bytes, 4);
  digits.height = read_u32(bytes, 8);
  digits.width = read_u32(bytes, 12);
  const std::size_t area = digits.height * digits.width;
  if (area == 0 || area > 4096 || bytes.size() != kHeader + digits.count * (1 + area)) {
    throw std::runtime_error(path + " is not as long as its header says");
  }
  for (std::size_t i = kHeader; i < bytes.size(); ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (i < kHeader + digits.count) {
      digits.labels.push_back(byte);
    } else {
      digits.pixels.push_back(static_cast<float>(byte) / kInk);
    }
  }
  return digits;
}

// One tensor in, one tensor out; the batch is a size variable of the model, so any count will do.
std::vector<float> run(const dlc::Model &model, const Digits &digits) {
  const auto size = [](std::size_t n) { return static_cast<std::int64_t>(n); };
  std::vector<float> logits(digits.count * kClasses);
  dlc::Context context = model.context();
  const std::vector<std::int64_t> shape = {size(digits.count), 1, size(digits.height),
                                           size(digits.width)};
  context.run({dlc::view(digits.pixels, shape)},
              {dlc::view(logits, {size(digits.count), size(kClasses)})});
  return logits;
}

std::size_t best_class(const std::vector<float> &logits, std::size_t image) {
  const auto *first = logits.data() + image * kClasses;
  return static_cast<std::size_t>(std::max_element(first, first + kClasses) - first);
}

// Images side by side; a pixel is two characters wide, so that it is about square.
void draw(const Digits &digits, std::size_t shown) {
  static const char *const kShades[] = {"  ", "░░", "▒▒", "▓▓", "██"};
  for (std::size_t y = 0; y < digits.height; ++y) {
    for (std::size_t i = 0; i < shown; ++i) {
      const float *row = digits.pixels.data() + (i * digits.height + y) * digits.width;
      for (std::size_t x = 0; x < digits.width; ++x) {
        const auto shade = static_cast<std::size_t>(std::clamp(row[x], 0.0F, 1.0F) * 4.0F + 0.5F);
        std::printf("%s", kShades[shade]);
      }
      std::printf("  ");
    }
    std::printf("\n");
  }
}

void show(const Digits &digits, const std::vector<float> &logits) {
  const std::size_t shown = std::min(kShown, digits.count);
  draw(digits, shown);
  for (std::size_t i = 0; i < shown; ++i) {
    const std::string text = "this is a " + std::to_string(best_class(logits, i));
    std::printf("%-*s", static_cast<int>(2 * digits.width + 2), text.c_str());
  }
  std::printf("\n\n");

  std::size_t right = 0;
  for (std::size_t i = 0; i < digits.count; ++i) {
    right += best_class(logits, i) == digits.labels[i] ? 1 : 0;
  }
  std::printf("accuracy: %zu of %zu held-back images, %.2f %%\n", right, digits.count,
              100.0 * static_cast<double>(right) / static_cast<double>(digits.count));
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s digits.so digits_test.bin\n", argv[0]);
    return EXIT_FAILURE;
  }
  try {
    const dlc::Model model = dlc::Model::load(argv[1]);
    const Digits digits = read_digits(argv[2]);
    show(digits, run(model, digits));
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

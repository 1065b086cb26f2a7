#include "moe/bench_weights.h"

#include <cmath>
#include <cstring>

#include "formats/bf16.h"
#include "formats/decode.h"

namespace halfbyte {

RandomMatrix::RandomMatrix(WeightFormat format, int64_t rows, int64_t cols,
                           std::mt19937_64& random) {
  view_.format = format;
  view_.rows = rows;
  view_.cols = cols;
  view_.name = "random weights";
  values_.resize((value_bytes(view_) + 7) / 8);
  for (uint64_t& word : values_) word = random();
  const float size = 1.0f / std::sqrt(static_cast<float>(cols));
  auto* bytes = reinterpret_cast<uint8_t*>(values_.data());
  switch (format) {
    case WeightFormat::kBf16:
      for (int64_t i = 0; i < rows * cols; ++i) {
        const float value = size * (static_cast<float>(bytes[2 * i]) / 64 - 2);
        const uint16_t bits = float_to_bf16(value);
        std::memcpy(bytes + 2 * i, &bits, 2);
      }
      break;
    case WeightFormat::kFp8Block:
      for (size_t i = 0; i < value_bytes(view_); ++i) bytes[i] &= 0xBF;  // below 2, no NaN
      scales_.resize(scale_bytes(view_));
      for (size_t i = 0; i < scales_.size(); i += 4) std::memcpy(&scales_[i], &size, 4);
      break;
    case WeightFormat::kMxfp4:
      scales_.assign(scale_bytes(view_), static_cast<uint8_t>(127 + std::lround(std::log2(size))));
      break;
    default:  // kNvfp4
      scales_.resize(scale_bytes(view_));
      for (uint8_t& scale : scales_)
        scale = static_cast<uint8_t>(0x30 + random() % 16);  // 0.5 to 2
      view_.global_scale = size;
      break;
  }
  view_.values = values_.data();
  view_.scales = scales_.data();
}

RandomExpert::RandomExpert(const MoeShape& shape, std::mt19937_64& random) {
  matrices_.reserve(3);
  if (shape.activation.gated())
    matrices_.emplace_back(shape.weights, shape.intermediate, shape.hidden, random);
  matrices_.emplace_back(shape.weights, shape.intermediate, shape.hidden, random);
  matrices_.emplace_back(shape.weights, shape.hidden, shape.intermediate, random);
}

ExpertWeights RandomExpert::view() const {
  ExpertWeights expert;
  if (matrices_.size() == 3) expert.gate = matrices_.front().view();
  expert.up = matrices_[matrices_.size() - 2].view();
  expert.down = matrices_.back().view();
  return expert;
}

std::vector<uint16_t> random_activations(size_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) value = float_to_bf16(normal(random));
  return values;
}

}  // namespace halfbyte

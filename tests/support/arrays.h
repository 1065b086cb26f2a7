// Arrays for tests of operations: host memory, F32 or BF16, as views.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "formats/bf16.h"
#include "halfbyte/tensor.h"

namespace halfbyte {

class Array {
 public:
  Array(DType dtype, int64_t rows, int64_t cols)
      : dtype_(dtype), rows_(rows), cols_(cols), memory_(static_cast<size_t>(rows * cols)) {}
  static Array f32(int64_t rows, int64_t cols, const std::vector<float>& values = {}) {
    Array array(DType::kF32, rows, cols);
    for (size_t i = 0; i < values.size(); ++i) array.memory_[i] = values[i];
    return array;
  }
  // Normal values with standard deviation `scale`.
  static Array random(std::mt19937& generator, int64_t rows, int64_t cols, float scale = 1,
                      float mean = 0) {
    Array array(DType::kF32, rows, cols);
    std::normal_distribution<float> normal(mean, scale);
    for (float& value : array.memory_) value = normal(generator);
    return array;
  }

  TensorView view() { return TensorView::of(memory_.data(), dtype_, rows_, cols_); }
  float* data() { return memory_.data(); }
  std::vector<float> values() const {
    std::vector<float> out(memory_.size());
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = dtype_ == DType::kBf16
                   ? bf16_to_float(reinterpret_cast<const uint16_t*>(memory_.data())[i])
                   : memory_[i];
    return out;
  }
  // The same values in BF16.
  Array as_bf16() const {
    Array array(DType::kBf16, rows_, cols_);
    const std::vector<float> all = values();
    auto* bits = reinterpret_cast<uint16_t*>(array.memory_.data());
    for (size_t i = 0; i < all.size(); ++i) bits[i] = float_to_bf16(all[i]);
    return array;
  }
  // The same values in F32, e.g. of a BF16 array.
  Array as_f32() const { return f32(rows_, cols_, values()); }

 private:
  DType dtype_;
  int64_t rows_, cols_;
  std::vector<float> memory_;  // BF16 uses the first half
};

}  // namespace halfbyte

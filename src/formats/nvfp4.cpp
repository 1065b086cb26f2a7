#include "formats/nvfp4.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/quant_kernels.h"

namespace halfbyte {

namespace {

constexpr uint32_t kInfinityBits = 0x7F800000u;
constexpr float kFourOverSixScaleMax = 256.0f;
constexpr int kLastScale = kE4m3MaxCode;

const QuantKernels& kernels() { return best_quant_kernels(); }

float widen(float value) { return value; }
float widen(uint16_t bits) { return bf16_to_float(bits); }

template <class T>
int64_t find_non_finite_value(const T* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if ((std::bit_cast<uint32_t>(widen(values[i])) & kInfinityBits) == kInfinityBits) return i;
  return -1;
}

// Scales by squared error. `t` holds the row as (16, G) magnitudes in units of the global scale.
// NOTE: in those units, because squares of the weights of an all but dead matrix underflow.
class ErrorSearch {
 public:
  explicit ErrorSearch(int64_t blocks)
      : t_(static_cast<size_t>(blocks) * 16),
        scale_(static_cast<size_t>(blocks)),
        errors_(static_cast<size_t>(blocks)),
        least_(static_cast<size_t>(blocks)) {}

  void start(const float* x, float global_scale) {
    kernels().transpose_magnitudes(x, blocks(), global_scale, t_.data());
    least_.assign(least_.size(), std::numeric_limits<float>::infinity());
  }

  // Scales that can win: [first, last] holds the best of all 126 for every block of the row.
  struct Range {
    int first = 1, last = kLastScale;
  };
  // `plain` are any scales. A scale v below this range saturates the largest element t of each
  // block so much that (t - 6 v)^2 alone exceeds the plain scale's error; from v = 4 t on every
  // code is 0, and the error stays what it was.
  Range promising(const float* x, float global_scale, const uint8_t* plain) {
    for (size_t g = 0; g < scale_.size(); ++g) scale_[g] = kE4m3Values[plain[g]];
    kernels().squared_errors(t_.data(), scale_.data(), blocks(), errors_.data());
    float low = kE4m3Max, high = 0;
    for (size_t g = 0; g < scale_.size(); ++g) {
      const float largest = max_magnitude(x + g * 16, 16) / global_scale;
      if (largest == 0) continue;  // any scale will do
      low = std::min(low, (largest - std::sqrt(errors_[g])) / kE2m1Max);
      high = std::max(high, 4 * largest);
    }
    // One code further on each side: more than all roundings here.
    return {std::max(float_to_e4m3(std::max(low, kE4m3Min)) - 1, 1),
            std::min(float_to_e4m3(high) + 1, kLastScale)};
  }

  // Takes candidates[g] for scales[g] where its error is smaller than the least so far.
  void offer(const uint8_t* candidates, uint8_t* scales) {
    for (size_t g = 0; g < scale_.size(); ++g) scale_[g] = kE4m3Values[candidates[g]];
    kernels().squared_errors(t_.data(), scale_.data(), blocks(), errors_.data());
    for (size_t g = 0; g < scale_.size(); ++g)
      if (errors_[g] < least_[g]) {
        least_[g] = errors_[g];
        scales[g] = candidates[g];
      }
  }

 private:
  int64_t blocks() const { return static_cast<int64_t>(scale_.size()); }

  std::vector<float> t_, scale_, errors_, least_;
};

template <class T>
void quantize(const T* values, int64_t rows, int64_t cols, float global_scale, ScaleChoice choice,
              uint8_t* codes, uint8_t* scales) {
  HB_CHECK(cols % kNvfp4Group == 0);
  HB_CHECK(global_scale > 0 && global_scale <= std::numeric_limits<float>::max());
  const int64_t blocks = cols / kNvfp4Group;
  std::vector<float> widened(static_cast<size_t>(cols));
  std::vector<uint8_t> candidates(static_cast<size_t>(blocks));
  std::vector<uint8_t> plain(static_cast<size_t>(blocks));
  ErrorSearch search(choice == ScaleChoice::kMax ? 0 : blocks);
  for (int64_t r = 0; r < rows; ++r, codes += cols / 2, scales += blocks) {
    const T* row = values + r * cols;
    const float* x = nullptr;
    if constexpr (sizeof(T) == 2) {
      kernels().widen_bf16(row, cols, widened.data());
      x = widened.data();
    } else {
      x = row;
    }
    if (kernels().max_bits_f32(x, cols) >= kInfinityBits)
      throw Error(ErrorKind::kInput, "",
                  fmt::format("the value at row {}, column {} is not finite", r,
                              find_non_finite(row, cols)));
    kernels().max_scales(x, blocks, global_scale, 1.0f, scales);
    if (choice == ScaleChoice::kFourOverSix) {
      search.start(x, global_scale);
      plain.assign(scales, scales + blocks);
      search.offer(plain.data(), scales);
      kernels().max_scales(x, blocks, global_scale, 1.5f, candidates.data());
      search.offer(candidates.data(), scales);
    } else if (choice == ScaleChoice::kMse) {
      plain.assign(scales, scales + blocks);
      search.start(x, global_scale);
      const auto range = search.promising(x, global_scale, plain.data());
      for (int code = range.first; code <= range.last; ++code) {
        candidates.assign(candidates.size(), static_cast<uint8_t>(code));
        search.offer(candidates.data(), scales);
      }
      // Every scale is without error for a block of zeros: it keeps the plain one.
      for (int64_t g = 0; g < blocks; ++g)
        if (kernels().max_bits_f32(x + g * kNvfp4Group, kNvfp4Group) == 0)
          scales[g] = plain[static_cast<size_t>(g)];
    }
    kernels().encode(x, scales, blocks, global_scale, codes);
  }
}

}  // namespace

const char* name_of(ScaleChoice choice) {
  switch (choice) {
    case ScaleChoice::kMse:
      return "mse";
    case ScaleChoice::kFourOverSix:
      return "four-over-six";
    default:
      return "max";
  }
}

ScaleChoice parse_scale_choice(std::string_view name) {
  for (const auto choice : {ScaleChoice::kMax, ScaleChoice::kMse, ScaleChoice::kFourOverSix})
    if (name == name_of(choice)) return choice;
  throw Error(ErrorKind::kInput, "scale",
              fmt::format("\"{}\" is unknown; known: max, mse, four-over-six", name));
}

float max_magnitude(const float* values, int64_t count) {
  return std::bit_cast<float>(kernels().max_bits_f32(values, count));
}
float max_magnitude(const uint16_t* bf16, int64_t count) {
  return std::bit_cast<float>(kernels().max_bits_bf16(bf16, count));
}
int64_t find_non_finite(const float* values, int64_t count) {
  return find_non_finite_value(values, count);
}
int64_t find_non_finite(const uint16_t* bf16, int64_t count) {
  return find_non_finite_value(bf16, count);
}

float nvfp4_global_scale(float amax, ScaleChoice choice) {
  const float scale_max = choice == ScaleChoice::kFourOverSix ? kFourOverSixScaleMax : kE4m3Max;
  if (amax == 0) return 1.0f;
  return std::max(amax / (kE2m1Max * scale_max), std::numeric_limits<float>::min());
}

void quantize_nvfp4(const float* values, int64_t rows, int64_t cols, float global_scale,
                    ScaleChoice choice, uint8_t* codes, uint8_t* scales) {
  quantize(values, rows, cols, global_scale, choice, codes, scales);
}

void quantize_nvfp4(const uint16_t* bf16, int64_t rows, int64_t cols, float global_scale,
                    ScaleChoice choice, uint8_t* codes, uint8_t* scales) {
  quantize(bf16, rows, cols, global_scale, choice, codes, scales);
}

void dequantize_nvfp4(const uint8_t* codes, const uint8_t* scales, int64_t rows, int64_t cols,
                      float global_scale, float* out) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      // NOTE: this product is exact (at most 6 significant bits); only the next one rounds.
      const float local = e2m1_to_float(e2m1_code_at(codes + r * (cols / 2), c)) *
                          kE4m3Values[scales[r * (cols / kNvfp4Group) + c / kNvfp4Group]];
      out[r * cols + c] = local * global_scale;
    }
}

}  // namespace halfbyte

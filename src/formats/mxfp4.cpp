#include "formats/mxfp4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/nvfp4.h"

namespace halfbyte {
namespace {

constexpr int kHalfBytes = kNvfp4Group / 2;
constexpr uint8_t kScaleOne = 0x38;
constexpr int kLargestShift = 8, kSmallestShift = -9;  // powers of two that E4M3 has

bool half_is_zero(const uint8_t* codes) {
  uint64_t word;
  std::memcpy(&word, codes, kHalfBytes);
  return (word & 0x7777777777777777u) == 0;
}

// The half whose values are code * 2^shift (in units of the global scale), shift outside the
// window: tries every scale, in double, where products and sums of these few bits are exact.
// Returns the least squared error.
double recode_half(const uint8_t* codes, int shift, uint8_t* out_codes, uint8_t* out_scale) {
  std::array<double, kNvfp4Group> values;
  for (int i = 0; i < kNvfp4Group; ++i)
    values[static_cast<size_t>(i)] = std::ldexp(e2m1_to_float(e2m1_code_at(codes, i)), shift);
  double least = std::numeric_limits<double>::infinity();
  for (int scale = 1; scale <= kE4m3MaxCode; ++scale) {
    const double step = kE4m3Values[static_cast<size_t>(scale)];
    std::array<uint8_t, kHalfBytes> packed{};
    double error = 0;
    for (int i = 0; i < kNvfp4Group; ++i) {
      const double value = values[static_cast<size_t>(i)];
      // The quotient in fp32: a rounding there can only turn a near tie into a tie.
      const uint8_t code = float_to_e2m1(static_cast<float>(value / step));
      packed[static_cast<size_t>(i / 2)] |= static_cast<uint8_t>(code << (i % 2 * 4));
      const double difference = value - e2m1_to_float(code) * step;
      error += difference * difference;
    }
    if (error < least) {
      least = error;
      *out_scale = static_cast<uint8_t>(scale);
      std::memcpy(out_codes, packed.data(), packed.size());
    }
  }
  return least;
}

}  // namespace

void dequantize_mxfp4(const uint8_t* codes, const uint8_t* scales, int64_t rows, int64_t cols,
                      float* out) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c)
      out[r * cols + c] = e2m1_to_float(e2m1_code_at(codes + r * (cols / 2), c)) *
                          e8m0_to_float(scales[r * (cols / kMxfp4Group) + c / kMxfp4Group]);
}

int64_t find_mxfp4_nan_scale(const uint8_t* scales, int64_t count) {
  const auto* found =
      static_cast<const uint8_t*>(std::memchr(scales, kE8m0Nan, static_cast<size_t>(count)));
  return found == nullptr ? -1 : found - scales;
}

std::optional<int> mxfp4_max_exponent(const uint8_t* codes, const uint8_t* scales, int64_t rows,
                                      int64_t cols) {
  int largest = -1;
  const int64_t blocks = rows * (cols / kMxfp4Group);
  for (int64_t b = 0; b < blocks; ++b) {
    if (scales[b] <= largest) continue;
    const uint8_t* block = codes + b * (kMxfp4Group / 2);
    if (!half_is_zero(block) || !half_is_zero(block + kHalfBytes)) largest = scales[b];
  }
  if (largest < 0) return std::nullopt;
  return largest - kE8m0Bias;
}

int nvfp4_cast_exponent(std::optional<int> max_exponent) {
  return max_exponent ? std::max(*max_exponent - kLargestShift, -126) : 0;
}

CastCounts cast_mxfp4_to_nvfp4(const uint8_t* codes, const uint8_t* scales, int64_t rows,
                               int64_t cols, int m, uint8_t* nvfp4_codes, uint8_t* nvfp4_scales) {
  HB_CHECK(cols % kMxfp4Group == 0);
  // E8M0 code -> E4M3 code of the same scale in units of 2^m; 0 where there is none.
  std::array<uint8_t, 256> same_scale{};
  for (int e = 0; e < 255; ++e) {
    const int shift = e - kE8m0Bias - m;
    if (shift >= kSmallestShift && shift <= kLargestShift)
      same_scale[static_cast<size_t>(e)] = float_to_e4m3(std::ldexp(1.0f, shift));
  }
  CastCounts counts;
  const int64_t halves = rows * (cols / kNvfp4Group);
  std::memcpy(nvfp4_codes, codes, static_cast<size_t>(halves * kHalfBytes));
  for (int64_t h = 0; h < halves; ++h) {
    const uint8_t* half = codes + h * kHalfBytes;
    const uint8_t e = scales[h / 2];
    if (half_is_zero(half)) {
      nvfp4_scales[h] = kScaleOne;
      ++counts.exact;
    } else if (same_scale[e] != 0) {
      nvfp4_scales[h] = same_scale[e];
      ++counts.exact;
    } else {
      const double error =
          recode_half(half, e - kE8m0Bias - m, nvfp4_codes + h * kHalfBytes, nvfp4_scales + h);
      ++(error == 0 ? counts.recoded : counts.lossy);
    }
  }
  return counts;
}

}  // namespace halfbyte

// NVFP4: E2M1 codes, one E4M3 scale per 16 along a row, one fp32 scale per matrix.
//
//   W[r, c] = E2M1(codes[r, c]) * E4M3(scales[r, c / 16]) * global_scale
//
// Letters: R rows, C columns (a multiple of 16), G = C / 16 blocks a row. In memory: codes (R, C/2)
// bytes, the even column in the low nibble; scales (R, G) E4M3 bytes, row-major; global_scale is
// ModelOpt's `weight_scale_2`, a multiplier.
//
// The quantiser is ModelOpt's, byte for byte, all arithmetic in fp32:
//   global_scale = amax / (6 * 448)
//   s = amax_block / (6 * global_scale), 1 if that is 0, clamped to [2^-9, 448]; stored as E4M3(s)
//   code = E2M1(x / (E4M3(s) * global_scale)): the rounded scale, a true division, ties to even;
//          the sign bit is (quotient < 0)
// Checked: tests/unit/formats/nvfp4_test.cpp, tests/golden/nvfp4_quantize_test.cpp (tolerance 0).
#pragma once

#include <cstdint>
#include <string_view>

namespace halfbyte {

inline constexpr int64_t kNvfp4Group = 16;

// How the scale of a block is found. The file format is the same for all.
enum class ScaleChoice {
  kMax,  // the block's largest magnitude becomes 6
  kMse,  // of all 126 positive scales the one with the least squared error, the first of equals
  kFourOverSix,  // the largest magnitude becomes 6 or 4, whichever has the smaller squared error;
                 // global_scale = amax / (6 * 256) leaves the room for it
};

const char* name_of(ScaleChoice choice);                // "max", "mse", "four-over-six"
ScaleChoice parse_scale_choice(std::string_view name);  // else Error{kInput}

// Largest magnitude. A NaN or Inf among the values gives a result that is not finite;
// `find_non_finite` then says where the first one is (-1: none). BF16 values are given as bits.
float max_magnitude(const float* values, int64_t count);
float max_magnitude(const uint16_t* bf16, int64_t count);
int64_t find_non_finite(const float* values, int64_t count);
int64_t find_non_finite(const uint16_t* bf16, int64_t count);

// The global scale for a matrix (or for several that share it) whose largest magnitude is `amax`.
// 1 for a matrix of zeros, and never below 2^-126: loaders want a normal fp32 number.
float nvfp4_global_scale(float amax, ScaleChoice choice);

// Quantises (rows, cols) values with a given global scale (finite, > 0). Rows do not depend on each
// other. A block of zeros gets scale 1. Throws Error{kInput} with row and column if a value is not
// finite. Safe to call from several threads.
void quantize_nvfp4(const float* values, int64_t rows, int64_t cols, float global_scale,
                    ScaleChoice choice, uint8_t* codes, uint8_t* scales);
void quantize_nvfp4(const uint16_t* bf16, int64_t rows, int64_t cols, float global_scale,
                    ScaleChoice choice, uint8_t* codes, uint8_t* scales);

// The exact value rounded once to fp32; out (rows, cols).
void dequantize_nvfp4(const uint8_t* codes, const uint8_t* scales, int64_t rows, int64_t cols,
                      float global_scale, float* out);

}  // namespace halfbyte

// MXFP4: E2M1 codes, one E8M0 scale per 32 along a row; and the cast to NVFP4.
//
//   W[r, c] = E2M1(codes[r, c]) * 2^(e[r, c / 32] - 127)
//
// codes (R, C/2) bytes, the even column in the low nibble; scales (R, C/32) E8M0 bytes; C is a
// multiple of 32.
//
// The cast: with global_scale = 2^m, both 16-element halves of a block of exponent k = e - 127 get
// the block scale 2^(k - m) and keep their codes. That is exact for -9 <= k - m <= 8. ModelOpt's
// choice is m = kmax - 8 with kmax the largest exponent of a block that is not all zero (over gate
// and up together, which share the global scale). A half outside that window may still be exact
// with other codes; else it is lossy, and gets the scale with the least squared error.
// Checked: tests/unit/formats/mxfp4_test.cpp, tests/golden/nvfp4_quantize_test.cpp.
#pragma once

#include <cstdint>
#include <optional>

namespace halfbyte {

inline constexpr int64_t kMxfp4Group = 32;

// Exact; (what exceeds fp32 becomes Inf, as in fp32 multiplication). out (rows, cols).
void dequantize_mxfp4(const uint8_t* codes, const uint8_t* scales, int64_t rows, int64_t cols,
                      float* out);

// Index of the first NaN scale (0xFF), or -1.
int64_t find_mxfp4_nan_scale(const uint8_t* scales, int64_t count);

// Largest exponent k = e - 127 of a block that is not all zero; nothing if all are.
std::optional<int> mxfp4_max_exponent(const uint8_t* codes, const uint8_t* scales, int64_t rows,
                                      int64_t cols);

// m of the global scale 2^m: max_exponent - 8, at least -126 (a normal fp32); 0 if all is zero.
int nvfp4_cast_exponent(std::optional<int> max_exponent);

// Halves (16 elements) of a cast by what became of them. Halves of zeros are exact.
struct CastCounts {
  int64_t exact = 0;    // codes unchanged
  int64_t recoded = 0;  // other codes, the same values
  int64_t lossy = 0;    // other values

  CastCounts& operator+=(const CastCounts& other) {
    exact += other.exact;
    recoded += other.recoded;
    lossy += other.lossy;
    return *this;
  }
  int64_t total() const { return exact + recoded + lossy; }
};

// nvfp4_codes (rows, cols/2), nvfp4_scales (rows, cols/16); the global scale is 2^m. A half of
// zeros gets scale 1. No scale may be 0xFF. Rows do not depend on each other; safe to call from
// several threads.
CastCounts cast_mxfp4_to_nvfp4(const uint8_t* codes, const uint8_t* scales, int64_t rows,
                               int64_t cols, int m, uint8_t* nvfp4_codes, uint8_t* nvfp4_scales);

}  // namespace halfbyte

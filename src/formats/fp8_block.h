// Block FP8 ("FP8_PB_WO"): E4M3 elements, one fp32 scale per 128 x 128 tile.
//
//   W[r, c] = E4M3(codes[r, c]) * scales[r / 128, c / 128]
//
// codes (rows, cols) bytes; scales (ceil(rows/128), ceil(cols/128)), stored on disk as 4-D
// [ceil(rows/128), 1, ceil(cols/128), 1], which is the same memory. Edge tiles are smaller.
// Checked: tests/unit/formats/fp8_block_test.cpp.
#pragma once

#include <cstdint>

namespace halfbyte {

inline constexpr int64_t kFp8Tile = 128;

constexpr int64_t fp8_tiles(int64_t extent) { return (extent + kFp8Tile - 1) / kFp8Tile; }

// Exact product rounded once to fp32.
void dequantize_fp8_block(const uint8_t* codes, const float* scales, int64_t rows, int64_t cols,
                          float* out);  // out (rows, cols)

// Quantises as ModelOpt does: the scale of a tile is amax / 448, codes are E4M3(x / scale), a true
// division, ties to even. A tile of zeros gets scale 1; no scale is below 2^-126. Row strips of
// `kFp8Tile` do not depend on each other. Throws Error{kInput} with row and column if a value is
// not finite. BF16 values are given as bits.
void quantize_fp8_block(const float* values, int64_t rows, int64_t cols, uint8_t* codes,
                        float* scales);
void quantize_fp8_block(const uint16_t* bf16, int64_t rows, int64_t cols, uint8_t* codes,
                        float* scales);

}  // namespace halfbyte

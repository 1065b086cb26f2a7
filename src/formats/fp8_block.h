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

}  // namespace halfbyte

// Weight matrices as tiles of 16 rows: the one layout that all CPU kernels read.
//
// A tile holds 16 rows, one a vector lane, and is a run of blocks along the columns; a kernel reads
// it from its first byte to its last. Within a block, 16 lanes of 4 bytes make a line of 64 bytes.
//
//   format  columns  block                                                                   bytes
//   kBf16      64    32 lines: line p, lane r = columns 2p (low half) and 2p+1 of row r        2048
//   kF32       64    64 lines: line c, lane r = column c of row r                              4096
//   kFp8       64    16 scales fp32, lane r; 16 lines of codes, see fp8_code_offset            1088
//   kNvfp4     64    a line of scales: lane r, byte g = group g of 16 columns of row r;         576
//                    8 lines of codes: line i, lane r = columns 8i .. 8i+7 of row r
//   kMxfp4    128    a line of scales (groups of 32 columns), 16 lines of codes               1088
//
// E2M1 codes within a lane: nibble j (0..3) of the low half is column 2j, of the high half 2j+1, so
// that one shift brings a pair of columns under a table look-up of 16-bit words.
// NVFP4 scales are re-coded from E4M3 to UE5M3: 5 exponent bits, 3 mantissa bits, no sign, value
// 2^(e-16) (1 + m/8). Every E4M3 number has one, subnormals included, and a decoder needs a shift
// and an addition; a zero scale becomes zero codes. MXFP4 scales stay E8M0.
// Rows and columns that the matrix lacks are zero codes with finite scales: they add exact zeros.
// The fp32 global scale of NVFP4 is not in the tiles; kernels multiply finished sums by it.
// Checked: tests/unit/simd/tiles_test.cpp unpacks with code of its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "halfbyte/tensor.h"

namespace halfbyte {

inline constexpr int kTileRows = 16;

enum class TileFormat { kBf16, kF32, kFp8, kNvfp4, kMxfp4 };
inline constexpr int kTileFormats = 5;

const char* name_of(TileFormat format);

// How a matrix is kept: kF32 becomes kBf16 if every value survives that.
TileFormat tile_format(const MatrixView& weight);
// The same where values do not matter; not for kF32.
TileFormat tile_format(WeightFormat format);

struct TileLayout {
  TileFormat format = TileFormat::kBf16;
  int64_t tiles = 0;        // ceil(rows / 16)
  int64_t blocks = 0;       // a tile
  int64_t padded_cols = 0;  // blocks * columns of a block
  size_t block_bytes = 0;
  size_t tile_bytes = 0;

  static TileLayout of(TileFormat format, int64_t rows, int64_t cols);
  int64_t block_cols() const { return padded_cols / blocks; }
  size_t bytes() const { return static_cast<size_t>(tiles) * tile_bytes; }
};

// Where the code of (row, column) lies in a kFp8 block, behind the scales. Lane groups of 4 rows by
// 2 columns fill 8 bytes, so that unpacking the low or the high halves of 16-byte lanes gives
// pairs.
constexpr int fp8_code_offset(int row, int col) {
  return col / 4 * 64 + row / 4 * 16 + col % 4 / 2 * 8 + row % 4 * 2 + col % 2;
}

// UE5M3 byte of an E4M3 byte that is finite and not negative; 0 for zero.
uint8_t ue5m3_from_e4m3(uint8_t e4m3);

// Packs tile `tile` of `weight` into layout.tile_bytes at `out`. The matrix has been checked
// (formats/check_matrix.h). Tiles may be packed from several threads.
void pack_tile(const MatrixView& weight, const TileLayout& layout, int64_t tile, std::byte* out);

}  // namespace halfbyte

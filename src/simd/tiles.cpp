#include "simd/tiles.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/fp8_block.h"

namespace halfbyte {

namespace {

struct BlockShape {
  int cols;
  size_t bytes;
};

constexpr BlockShape block_shape(TileFormat format) {
  switch (format) {
    case TileFormat::kBf16:
      return {64, 2048};
    case TileFormat::kF32:
      return {64, 4096};
    case TileFormat::kFp8:
      return {64, 64 + 1024};
    case TileFormat::kNvfp4:
      return {64, 64 + 512};
    case TileFormat::kMxfp4:
      return {128, 64 + 1024};
  }
  return {64, 0};
}

// The part of a matrix that one block covers.
struct Window {
  int64_t row, col;  // of the block's corner
  int rows, cols;    // that the matrix has; the rest of the block stays zero
};

template <class T>
void put(std::byte* out, int index, T value) {
  std::memcpy(out + static_cast<size_t>(index) * sizeof(T), &value, sizeof(T));
}

void pack_bf16(const MatrixView& weight, const Window& window, std::byte* out) {
  for (int r = 0; r < window.rows; ++r)
    for (int c = 0; c < window.cols; ++c) {
      const int64_t at = (window.row + r) * weight.cols + window.col + c;
      const uint16_t value = weight.format == WeightFormat::kBf16
                                 ? static_cast<const uint16_t*>(weight.values)[at]
                                 : float_to_bf16(static_cast<const float*>(weight.values)[at]);
      put(out, (c / 2 * kTileRows + r) * 2 + c % 2, value);
    }
}

void pack_f32(const MatrixView& weight, const Window& window, std::byte* out) {
  for (int r = 0; r < window.rows; ++r) {
    const float* row =
        static_cast<const float*>(weight.values) + (window.row + r) * weight.cols + window.col;
    for (int c = 0; c < window.cols; ++c) put(out, c * kTileRows + r, row[c]);
  }
}

void pack_fp8(const MatrixView& weight, const Window& window, std::byte* out) {
  const auto* scales = static_cast<const float*>(weight.scales);
  for (int r = 0; r < window.rows; ++r) {
    const int64_t row = window.row + r;
    // A block lies within one 128 x 128 tile of scales.
    put(out, r, scales[row / kFp8Tile * fp8_tiles(weight.cols) + window.col / kFp8Tile]);
    const auto* codes = static_cast<const uint8_t*>(weight.values) + row * weight.cols + window.col;
    for (int c = 0; c < window.cols; ++c) put(out, 64 + fp8_code_offset(r, c), codes[c]);
  }
}

void pack_fp4(const MatrixView& weight, const Window& window, int group, std::byte* out) {
  const auto* values = static_cast<const uint8_t*>(weight.values);
  const auto* scales = static_cast<const uint8_t*>(weight.scales);
  for (int r = 0; r < window.rows; ++r) {
    const int64_t row = window.row + r;
    const uint8_t* codes = values + row * (weight.cols / 2);
    for (int c = 0; c < window.cols; c += group) {
      const uint8_t stored = scales[row * (weight.cols / group) + (window.col + c) / group];
      put(out, r * 4 + c / group,
          weight.format == WeightFormat::kNvfp4 ? ue5m3_from_e4m3(stored) : stored);
      if (weight.format == WeightFormat::kNvfp4 && stored == 0) continue;  // codes stay zero
      for (int first = c; first < c + group; first += 8) {
        uint32_t lane = 0;
        for (int i = 0; i < 8; ++i) {
          const uint32_t code = e2m1_code_at(codes, window.col + first + i);
          lane |= code << (i % 2 * 16 + i / 2 * 4);
        }
        put(out + 64, first / 8 * kTileRows + r, lane);
      }
    }
  }
}

}  // namespace

const char* name_of(TileFormat format) {
  switch (format) {
    case TileFormat::kBf16:
      return "bf16";
    case TileFormat::kF32:
      return "f32";
    case TileFormat::kFp8:
      return "fp8";
    case TileFormat::kNvfp4:
      return "nvfp4";
    case TileFormat::kMxfp4:
      return "mxfp4";
  }
  return "?";
}

TileFormat tile_format(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16:
      return TileFormat::kBf16;
    case WeightFormat::kFp8Block:
      return TileFormat::kFp8;
    case WeightFormat::kNvfp4:
      return TileFormat::kNvfp4;
    case WeightFormat::kMxfp4:
      return TileFormat::kMxfp4;
    case WeightFormat::kF32:
      break;
  }
  HB_CHECK(format != WeightFormat::kF32);
  return TileFormat::kF32;
}

TileFormat tile_format(const MatrixView& weight) {
  if (weight.format != WeightFormat::kF32) return tile_format(weight.format);
  const auto* bits = static_cast<const uint32_t*>(weight.values);
  const bool exact = std::all_of(bits, bits + weight.rows * weight.cols,
                                 [](uint32_t value) { return (value & 0xFFFFu) == 0; });
  return exact ? TileFormat::kBf16 : TileFormat::kF32;
}

TileLayout TileLayout::of(TileFormat format, int64_t rows, int64_t cols) {
  const BlockShape block = block_shape(format);
  TileLayout layout;
  layout.format = format;
  layout.tiles = (rows + kTileRows - 1) / kTileRows;
  layout.blocks = (cols + block.cols - 1) / block.cols;
  layout.padded_cols = layout.blocks * block.cols;
  layout.block_bytes = block.bytes;
  layout.tile_bytes = static_cast<size_t>(layout.blocks) * block.bytes;
  return layout;
}

uint8_t ue5m3_from_e4m3(uint8_t e4m3) {
  if (e4m3 == 0) return 0;
  // fp32 has every E4M3 number as a normal one: exponent bias 127 -> 16, three mantissa bits.
  const uint32_t bits = std::bit_cast<uint32_t>(e4m3_to_float(e4m3));
  return static_cast<uint8_t>((bits >> 20) - ((127u - 16u) << 3));
}

void pack_tile(const MatrixView& weight, const TileLayout& layout, int64_t tile, std::byte* out) {
  std::memset(out, 0, layout.tile_bytes);
  const int64_t block_cols = layout.block_cols();
  for (int64_t b = 0; b < layout.blocks; ++b, out += layout.block_bytes) {
    Window window;
    window.row = tile * kTileRows;
    window.col = b * block_cols;
    window.rows = static_cast<int>(std::min<int64_t>(kTileRows, weight.rows - window.row));
    window.cols = static_cast<int>(std::min<int64_t>(block_cols, weight.cols - window.col));
    switch (layout.format) {
      case TileFormat::kBf16:
        pack_bf16(weight, window, out);
        break;
      case TileFormat::kF32:
        pack_f32(weight, window, out);
        break;
      case TileFormat::kFp8:
        pack_fp8(weight, window, out);
        break;
      case TileFormat::kNvfp4:
        pack_fp4(weight, window, 16, out);
        break;
      case TileFormat::kMxfp4:
        pack_fp4(weight, window, 32, out);
        break;
    }
  }
}

}  // namespace halfbyte

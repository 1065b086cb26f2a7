// Packed tiles unpacked by code of the test's own, byte by byte from the description in
// simd/tiles.h.
#include "simd/tiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "formats/decode.h"
#include "formats/e4m3.h"
#include "support/moe.h"

namespace halfbyte {
namespace {

using testing_moe::random_matrix;
using testing_moe::StoredMatrix;

constexpr double kE2m1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};

float float_at(const std::vector<std::byte>& bytes, size_t at) {
  float value;
  std::memcpy(&value, bytes.data() + at, 4);
  return value;
}

// W[row][col], without the global scale, as the layout's description says.
double unpack(const std::vector<std::byte>& tiles, const TileLayout& layout, int64_t row,
              int64_t col) {
  const int64_t block_cols = layout.format == TileFormat::kMxfp4 ? 128 : 64;
  const size_t block = static_cast<size_t>(row / 16) * layout.tile_bytes +
                       static_cast<size_t>(col / block_cols) * layout.block_bytes;
  const size_t r = static_cast<size_t>(row % 16), c = static_cast<size_t>(col % block_cols);
  const auto byte = [&](size_t at) { return static_cast<unsigned>(tiles[block + at]); };
  switch (layout.format) {
    case TileFormat::kBf16: {
      const unsigned bits =
          byte(c / 2 * 64 + r * 4 + c % 2 * 2) | byte(c / 2 * 64 + r * 4 + c % 2 * 2 + 1) << 8;
      const uint32_t wide = bits << 16;
      float value;
      std::memcpy(&value, &wide, 4);
      return value;
    }
    case TileFormat::kF32:
      return float_at(tiles, block + c * 64 + r * 4);
    case TileFormat::kFp8: {
      const size_t lane = r / 4 * 16 + c % 4 / 2 * 8 + r % 4 * 2 + c % 2;
      return double{e4m3_to_float(static_cast<uint8_t>(byte(64 + c / 4 * 64 + lane)))} *
             double{float_at(tiles, block + r * 4)};
    }
    case TileFormat::kNvfp4:
    case TileFormat::kMxfp4: {
      const bool nvfp4 = layout.format == TileFormat::kNvfp4;
      const unsigned scale = byte(r * 4 + c / (nvfp4 ? 16 : 32));
      const double factor =
          nvfp4 ? std::ldexp(1 + (scale & 7) / 8.0, static_cast<int>(scale >> 3) - 16)
                : std::ldexp(1, static_cast<int>(scale) - 127);
      const size_t nibble = c % 2 * 4 + c % 8 / 2;  // of the lane's eight, from the lowest
      const unsigned codes = byte(64 + c / 8 * 64 + r * 4 + nibble / 2);
      return kE2m1[(codes >> (nibble % 2 * 4)) & 15] * factor;
    }
  }
  return NAN;
}

void expect_unpacks(const StoredMatrix& weight) {
  const TileLayout layout =
      TileLayout::of(tile_format(weight.view), weight.view.rows, weight.view.cols);
  std::vector<std::byte> tiles(layout.bytes(), std::byte{0xFF});
  for (int64_t tile = 0; tile < layout.tiles; ++tile)
    pack_tile(weight.view, layout, tile,
              tiles.data() + static_cast<size_t>(tile) * layout.tile_bytes);
  MatrixView plain = weight.view;
  plain.global_scale = 1;
  std::vector<double> row(static_cast<size_t>(plain.cols));
  for (int64_t r = 0; r < layout.tiles * 16; ++r) {
    if (r < plain.rows) decode_row(plain, r, row.data());
    for (int64_t c = 0; c < layout.padded_cols; ++c) {
      const bool inside = r < plain.rows && c < plain.cols;
      // Padding is zero, and finite: moe-faults B75, B76.
      ASSERT_EQ(unpack(tiles, layout, r, c), inside ? row[static_cast<size_t>(c)] : 0.0)
          << name_of(layout.format) << " (" << r << ", " << c << ")";
    }
  }
}

TEST(Tiles, EveryFormatUnpacksToWhatWasStored) {
  std::mt19937 random(11);
  for (WeightFormat format : {WeightFormat::kBf16, WeightFormat::kF32, WeightFormat::kFp8Block,
                              WeightFormat::kNvfp4, WeightFormat::kMxfp4})
    for (const auto& [rows, cols] : {std::pair{16, 128}, {1, 32}, {17, 160}, {352, 96}, {144, 288}})
      expect_unpacks(random_matrix(format, rows, cols, random));
}

// Every E4M3 scale that a file may hold: zero, subnormal, largest.
TEST(Tiles, EveryScaleByteUnpacks) {
  std::mt19937 random(12);
  StoredMatrix weight = random_matrix(WeightFormat::kNvfp4, 16, 128, random);
  for (int byte = 0; byte < 0x7F; ++byte) {
    std::fill(weight.scales.begin(), weight.scales.end(), static_cast<uint8_t>(byte));
    expect_unpacks(weight);
  }
  weight = random_matrix(WeightFormat::kMxfp4, 16, 128, random);
  for (int byte = 0; byte < 0xFF; ++byte) {  // moe-faults B31
    std::fill(weight.scales.begin(), weight.scales.end(), static_cast<uint8_t>(byte));
    expect_unpacks(weight);
  }
}

TEST(Tiles, Ue5m3HoldsEveryE4m3) {
  EXPECT_EQ(ue5m3_from_e4m3(0), 0);
  for (int byte = 1; byte < 0x7F; ++byte) {
    const uint8_t code = ue5m3_from_e4m3(static_cast<uint8_t>(byte));
    EXPECT_EQ(std::ldexp(1 + (code & 7) / 8.0, (code >> 3) - 16),
              double{e4m3_to_float(static_cast<uint8_t>(byte))});
  }
}

TEST(Tiles, CodesOfEightColumnsFillAnFp8Line) {
  std::vector<int> seen(1024);
  for (int r = 0; r < 16; ++r)
    for (int c = 0; c < 64; ++c) ++seen[static_cast<size_t>(fp8_code_offset(r, c))];
  for (int count : seen) EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace halfbyte

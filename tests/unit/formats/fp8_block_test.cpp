#include "formats/fp8_block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "formats/e4m3.h"

namespace halfbyte {
namespace {

// Tile by tile instead of element by element, with edge tiles in both directions.
TEST(Fp8Block, DequantizesTilesWithEdges) {
  const int64_t rows = 300, cols = 160;
  std::mt19937 random(2);
  std::vector<uint8_t> codes(static_cast<size_t>(rows * cols));
  for (auto& code : codes) code = static_cast<uint8_t>(random() % 127 | (random() % 2) << 7);
  ASSERT_EQ(fp8_tiles(rows), 3);
  ASSERT_EQ(fp8_tiles(cols), 2);
  const std::vector<float> scales = {1.0f, 0.37f, 1e-3f, 7.5f, 0x1p-20f, 3.0f};  // (3, 2)
  std::vector<float> out(codes.size());
  dequantize_fp8_block(codes.data(), scales.data(), rows, cols, out.data());
  size_t checked = 0;
  for (int64_t tile = 0; tile < 6; ++tile)
    for (int64_t r = tile / 2 * 128; r < std::min(rows, tile / 2 * 128 + 128); ++r)
      for (int64_t c = tile % 2 * 128; c < std::min(cols, tile % 2 * 128 + 128); ++c, ++checked) {
        const size_t i = static_cast<size_t>(r * cols + c);
        ASSERT_EQ(out[i], e4m3_to_float(codes[i]) * scales[static_cast<size_t>(tile)]);
      }
  EXPECT_EQ(checked, codes.size());
}

}  // namespace
}  // namespace halfbyte

#include "formats/fp8_block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "halfbyte/error.h"

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

std::vector<float> random_matrix(int64_t rows, int64_t cols) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> x(static_cast<size_t>(rows * cols));
  for (float& v : x) v = bf16_to_float(float_to_bf16(normal(random)));
  return x;
}

// The definition, element by element.
TEST(Fp8Block, QuantizesEachTileByItsLargest) {
  const int64_t rows = 300, cols = 161;
  std::vector<float> x = random_matrix(rows, cols);
  for (int64_t r = 128; r < 256; ++r)  // one tile of zeros, some tiny values elsewhere
    for (int64_t c = 0; c < 128; ++c) x[static_cast<size_t>(r * cols + c)] = c % 2 ? 0.0f : -0.0f;
  for (size_t i = 0; i < 60; ++i) x[i] *= 0x1p-12f;
  std::vector<uint8_t> codes(x.size());
  std::vector<float> scales(6);
  quantize_fp8_block(x.data(), rows, cols, codes.data(), scales.data());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      float amax = 0;
      if (r % 128 == 0 && c % 128 == 0) {
        for (int64_t i = r; i < std::min(rows, r + 128); ++i)
          for (int64_t j = c; j < std::min(cols, c + 128); ++j)
            amax = std::max(amax, std::abs(x[static_cast<size_t>(i * cols + j)]));
        ASSERT_EQ(scales[static_cast<size_t>(r / 128 * 2 + c / 128)],
                  amax == 0 ? 1.0f : amax / 448.0f);
      }
      const size_t i = static_cast<size_t>(r * cols + c);
      ASSERT_EQ(codes[i], float_to_e4m3(x[i] / scales[static_cast<size_t>(r / 128 * 2 + c / 128)]));
    }
  // The largest of a tile is kept to a rounding of its scale; all within half a step (1/16).
  std::vector<float> back(x.size());
  dequantize_fp8_block(codes.data(), scales.data(), rows, cols, back.data());
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_LE(std::abs(back[i] - x[i]),
              std::max(std::abs(x[i]) / 16.0f, 0x1p-10f * scales[0]) * 1.001f);
}

TEST(Fp8Block, Bf16AndFloatInputsAgreeAndNonFiniteIsRefused) {
  std::vector<float> x = random_matrix(130, 40);
  std::vector<uint16_t> bf16;
  for (const float v : x) bf16.push_back(float_to_bf16(v));
  std::vector<uint8_t> a(x.size()), b(x.size());
  std::vector<float> scales_a(2), scales_b(2);
  quantize_fp8_block(x.data(), 130, 40, a.data(), scales_a.data());
  quantize_fp8_block(bf16.data(), 130, 40, b.data(), scales_b.data());
  EXPECT_EQ(a, b);
  EXPECT_EQ(scales_a, scales_b);
  bf16[129 * 40 + 7] = 0x7F80;
  try {
    quantize_fp8_block(bf16.data(), 130, 40, b.data(), scales_b.data());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("row 129, column 7"), std::string::npos);
  }
}

}  // namespace
}  // namespace halfbyte

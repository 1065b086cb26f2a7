#include "formats/decode.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

namespace halfbyte {
namespace {

std::vector<double> row_of(const MatrixView& matrix, int64_t row) {
  std::vector<double> out(static_cast<size_t>(matrix.cols));
  decode_row(matrix, row, out.data());
  return out;
}

// Rows of 32: the code of column c is c % 16; the values are written out from the E2M1 table.
constexpr std::array<double, 16> kE2m1 = {0,    0.5,  1,  1.5,  2,  3,  4,  6,
                                          -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
std::vector<uint8_t> fp4_codes(int rows) {
  std::vector<uint8_t> bytes;
  for (int i = 0; i < rows * 16; ++i)
    bytes.push_back(static_cast<uint8_t>((2 * i % 16) | (2 * i + 1) % 16 << 4));
  return bytes;
}

TEST(Decode, Nvfp4TakesTheScaleOfItsRowAndGroupAndTheGlobalOne) {
  const auto codes = fp4_codes(2);
  const std::vector<uint8_t> scales = {0x38, 0x40, 0x7E, 0x01};  // 1, 2; 448, 2^-9
  const MatrixView m{WeightFormat::kNvfp4, 2, 32, codes.data(), scales.data(), 0.25f, "w"};
  const double scale[2][2] = {{1, 2}, {448, 0.001953125}};
  for (int r = 0; r < 2; ++r) {
    const auto row = row_of(m, r);
    for (size_t c = 0; c < 32; ++c)
      EXPECT_EQ(row[c], kE2m1[c % 16] * scale[r][c / 16] * 0.25) << r << " " << c;
  }
}

TEST(Decode, Mxfp4HasOneScaleFor32AndNoGlobalOne) {
  const auto codes = fp4_codes(2);
  const std::vector<uint8_t> scales = {128, 0};  // 2, 2^-127
  const MatrixView m{WeightFormat::kMxfp4, 2, 32, codes.data(), scales.data(), 1.0f, "w"};
  for (size_t c = 0; c < 32; ++c) {
    EXPECT_EQ(row_of(m, 0)[c], kE2m1[c % 16] * 2) << c;
    EXPECT_EQ(row_of(m, 1)[c], kE2m1[c % 16] * 0x1p-127) << c;
  }
}

TEST(Decode, Fp8TakesTheScaleOfItsTile) {
  const int64_t rows = 129, cols = 130;
  const std::vector<uint8_t> codes(static_cast<size_t>(rows * cols), 0x3C);  // 1.5
  const std::vector<float> scales = {1, 2, 4, 8};                            // (2, 2) tiles
  const MatrixView m{WeightFormat::kFp8Block, rows, cols, codes.data(), scales.data(), 1.0f, "w"};
  EXPECT_EQ(row_of(m, 127)[127], 1.5);
  EXPECT_EQ(row_of(m, 127)[128], 3);
  EXPECT_EQ(row_of(m, 128)[127], 6);
  EXPECT_EQ(row_of(m, 128)[129], 12);
}

TEST(Decode, PlainFormatsAreTheirValues) {
  const std::array<uint16_t, 4> bf16 = {0x3F80, 0xC000, 0x0001, 0x7F7F};
  const MatrixView b{WeightFormat::kBf16, 2, 2, bf16.data(), nullptr, 1.0f, "w"};
  EXPECT_EQ(row_of(b, 0), (std::vector<double>{1, -2}));
  EXPECT_EQ(row_of(b, 1), (std::vector<double>{0x1p-133, 0x1.FEp127}));
  const std::array<float, 4> f32 = {1, 2, 3.1415927f, -0x1p-149f};
  const MatrixView f{WeightFormat::kF32, 2, 2, f32.data(), nullptr, 1.0f, "w"};
  EXPECT_EQ(row_of(f, 1), (std::vector<double>{double{3.1415927f}, -0x1p-149}));
}

TEST(Decode, CountsTheBytesBehindAView) {
  const auto bytes = [](WeightFormat format, int64_t rows, int64_t cols) {
    MatrixView m;
    m.format = format;
    m.rows = rows;
    m.cols = cols;
    return std::pair(value_bytes(m), scale_bytes(m));
  };
  EXPECT_EQ(bytes(WeightFormat::kNvfp4, 3, 48), std::pair(size_t{72}, size_t{9}));
  EXPECT_EQ(bytes(WeightFormat::kMxfp4, 3, 64), std::pair(size_t{96}, size_t{6}));
  EXPECT_EQ(bytes(WeightFormat::kFp8Block, 129, 128), std::pair(size_t{16512}, size_t{8}));
  EXPECT_EQ(bytes(WeightFormat::kBf16, 3, 5), std::pair(size_t{30}, size_t{0}));
  EXPECT_EQ(bytes(WeightFormat::kF32, 3, 5), std::pair(size_t{60}, size_t{0}));
}

}  // namespace
}  // namespace halfbyte

#include "formats/mxfp4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "formats/e2m1.h"
#include "formats/nvfp4.h"

namespace halfbyte {
namespace {

// A row of 32-blocks; each is (exponent k, the codes its elements cycle through).
struct Row {
  std::vector<uint8_t> codes, scales;
  void add(int k, std::vector<uint8_t> cycle) {
    for (size_t i = 0; i < 16; ++i)
      codes.push_back(static_cast<uint8_t>(cycle[2 * i % cycle.size()] |
                                           cycle[(2 * i + 1) % cycle.size()] << 4));
    scales.push_back(static_cast<uint8_t>(k + 127));
  }
  int64_t cols() const { return static_cast<int64_t>(scales.size()) * 32; }
};

struct Cast {
  CastCounts counts;
  int m = 0;
  std::vector<uint8_t> codes, scales;
  std::vector<float> before, after;
};
Cast cast(const Row& row) {
  Cast result;
  result.m =
      nvfp4_cast_exponent(mxfp4_max_exponent(row.codes.data(), row.scales.data(), 1, row.cols()));
  result.codes.resize(row.codes.size());
  result.scales.resize(row.scales.size() * 2);
  result.counts = cast_mxfp4_to_nvfp4(row.codes.data(), row.scales.data(), 1, row.cols(), result.m,
                                      result.codes.data(), result.scales.data());
  result.before.resize(static_cast<size_t>(row.cols()));
  result.after.resize(result.before.size());
  dequantize_mxfp4(row.codes.data(), row.scales.data(), 1, row.cols(), result.before.data());
  dequantize_nvfp4(result.codes.data(), result.scales.data(), 1, row.cols(),
                   std::ldexp(1.0f, result.m), result.after.data());
  return result;
}

const std::vector<uint8_t> kAllCodes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

TEST(Mxfp4, DecodesEveryCodeAtEveryScale) {
  for (int e = 0; e < 255; ++e) {
    Row row;
    row.add(e - 127, kAllCodes);
    std::vector<float> out(32);
    dequantize_mxfp4(row.codes.data(), row.scales.data(), 1, 32, out.data());
    for (size_t i = 0; i < 32; ++i)
      EXPECT_EQ(out[i], static_cast<float>(e2m1_to_float(static_cast<uint8_t>(i % 16)) *
                                           std::ldexp(1.0, e - 127)));
  }
}

// Example of the format's description: k = -7 under kmax = -3 gives m = -11, scale 2^4 = 0x58.
TEST(Mxfp4, CastKeepsCodesInsideTheWindow) {
  Row row;
  row.add(-7, kAllCodes);
  row.add(-3, {1, 15});
  const Cast result = cast(row);
  EXPECT_EQ(result.m, -11);
  EXPECT_EQ(result.scales, (std::vector<uint8_t>{0x58, 0x58, 0x78, 0x78}));
  EXPECT_EQ(result.codes, row.codes);
  EXPECT_EQ(result.before, result.after);
  EXPECT_EQ(result.counts.exact, 4);
}

// B33: a spread of 17 is exact; 18 is not, and says so; {0, 4} reaches three steps further.
TEST(Mxfp4, CountsWhatIsNotExact) {
  for (const int spread : {17, 18, 20, 21}) {
    Row full, sparse;
    full.add(0, kAllCodes);
    full.add(-spread, kAllCodes);
    sparse.add(0, kAllCodes);
    sparse.add(-spread, {0, 6, 14, 8});  // 0, 4, -4, -0
    const Cast a = cast(full), b = cast(sparse);
    EXPECT_EQ(a.counts.total(), 4);
    EXPECT_EQ(a.counts.lossy, spread > 17 ? 2 : 0) << spread;
    EXPECT_EQ(a.before == a.after, a.counts.lossy == 0);
    EXPECT_EQ(b.counts.lossy, spread > 20 ? 2 : 0) << spread;
    EXPECT_EQ(b.counts.recoded, spread > 17 && spread <= 20 ? 2 : 0) << spread;
    EXPECT_EQ(b.before == b.after, b.counts.lossy == 0);
  }
}

// Reach below the window by the magnitudes that a half holds.
TEST(Mxfp4, RecodesHalvesSeparately) {
  const auto reach = [](std::vector<uint8_t> cycle) {
    int reached = 0;
    for (int d = -9; d >= -14; --d) {
      Row row;
      row.add(8, kAllCodes);
      row.add(d, cycle);
      if (cast(row).counts.lossy == 0) reached = d;
    }
    return reached;
  };
  EXPECT_EQ(reach({0, 1, 2, 3, 4, 5, 6, 7}), -9);
  EXPECT_EQ(reach({0, 2, 4, 5, 6, 7}), -10);  // 0 1 2 3 4 6
  EXPECT_EQ(reach({0, 4, 6}), -11);           // 0 2 4
  EXPECT_EQ(reach({0, 6}), -12);              // 0 4

  Row row;  // one half can be re-coded, the other cannot
  row.add(8, kAllCodes);
  row.add(-10, {0, 2, 4, 6, 0, 2, 4, 6, 0, 2, 4, 6, 0, 2, 4, 6,
                1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3});
  const Cast result = cast(row);
  EXPECT_EQ(result.counts.exact, 2);
  EXPECT_EQ(result.counts.recoded, 1);
  EXPECT_EQ(result.counts.lossy, 1);
}

TEST(Mxfp4, ZeroBlocksDoNotCount) {
  Row row;
  row.add(0, {0, 8});
  row.add(-127, {8});
  row.add(-20, kAllCodes);
  const Cast result = cast(row);
  EXPECT_EQ(result.m, -28);
  EXPECT_EQ(result.counts.exact, 6);
  EXPECT_EQ(result.scales[0], 0x38);
  EXPECT_EQ(result.scales[2], 0x38);
  EXPECT_EQ(result.codes, row.codes);  // negative zeros stay

  Row zeros;
  zeros.add(5, {0});
  EXPECT_FALSE(mxfp4_max_exponent(zeros.codes.data(), zeros.scales.data(), 1, 32).has_value());
  EXPECT_EQ(cast(zeros).m, 0);
}

TEST(Mxfp4, FindsNanScales) {
  std::vector<uint8_t> scales(100, 254);
  EXPECT_EQ(find_mxfp4_nan_scale(scales.data(), 100), -1);
  scales[37] = 255;
  EXPECT_EQ(find_mxfp4_nan_scale(scales.data(), 100), 37);
}

TEST(Mxfp4, GlobalScaleStaysNormal) {
  EXPECT_EQ(nvfp4_cast_exponent(-127), -126);
  EXPECT_EQ(nvfp4_cast_exponent(127), 119);
  EXPECT_EQ(nvfp4_cast_exponent({}), 0);
}

// Teeth: reading the scale's exponent one off, or swapping nibbles, changes values.
TEST(Mxfp4, AFlippedScaleOrNibbleWouldBeSeen) {
  Row row;
  row.add(0, kAllCodes);
  row.add(-3, kAllCodes);
  const Cast right = cast(row);
  ASSERT_EQ(right.before, right.after);
  Cast wrong = right;
  wrong.scales[1] += 8;  // twice the scale
  dequantize_nvfp4(wrong.codes.data(), wrong.scales.data(), 1, 64, std::ldexp(1.0f, wrong.m),
                   wrong.after.data());
  EXPECT_NE(wrong.after, right.before);
  wrong = right;
  wrong.codes[3] = static_cast<uint8_t>(wrong.codes[3] << 4 | wrong.codes[3] >> 4);
  dequantize_nvfp4(wrong.codes.data(), wrong.scales.data(), 1, 64, std::ldexp(1.0f, wrong.m),
                   wrong.after.data());
  EXPECT_NE(wrong.after, right.before);
}

}  // namespace
}  // namespace halfbyte

#include "moe/cuda/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "support/hopper_layout.h"

namespace halfbyte::hopper {
namespace {

using testing_hopper::Pairs;

WordPair encode(const Pairs& pairs) {
  uint32_t r[8];
  std::copy(pairs.begin(), pairs.end(), r);
  return encode_words(r);
}

TEST(HopperLayout, EveryCodeTimesEveryE4m3ScaleIsExact) {
  std::set<uint32_t> bytes;
  for (uint32_t e4m3 = 1; e4m3 <= kE4m3MaxCode; ++e4m3) {
    const double scale = double{e4m3_to_float(static_cast<uint8_t>(e4m3))};
    const uint32_t byte = encode_e4m3_scale(e4m3);
    ASSERT_LT(byte, 256u);
    bytes.insert(byte);
    const uint32_t pattern = 0x7000u | byte << 4;
    EXPECT_EQ(double{bf16_to_float(static_cast<uint16_t>(pattern))}, scale * 0x1p119) << e4m3;
    for (uint32_t code = 0; code < 16; ++code) {
      const double value = testing_hopper::product(place_code(code), pattern);
      EXPECT_EQ(value * decode_gain(WeightFormat::kNvfp4),
                double{e2m1_to_float(static_cast<uint8_t>(code))} * scale);
      EXPECT_TRUE(testing_hopper::is_bf16(value)) << e4m3 << " " << code;
    }
  }
  EXPECT_EQ(bytes.size(), 126u);
  EXPECT_EQ(encode_e4m3_scale(0), 0u);
}

TEST(HopperLayout, EveryCodeTimesE8m0ScalesIsExactFor132PowersOfTwo) {
  for (int e_max : {0, 1, 100, 127, 132, 254})
    for (int e = 0; e <= e_max; ++e) {
      const uint32_t byte = encode_e8m0_scale(e, e_max);
      ASSERT_TRUE(byte >= 1 && byte <= 253) << e << " of " << e_max;
      for (uint32_t code = 0; code < 16; ++code) {
        const double value = testing_hopper::product(place_code(code), byte << 7);
        const double expected = std::ldexp(e2m1_to_float(static_cast<uint8_t>(code)), e - e_max);
        if (e_max - e <= 132) {
          EXPECT_EQ(value, expected) << e << " of " << e_max;
          EXPECT_TRUE(testing_hopper::is_bf16(value)) << e << " of " << e_max;
        } else {
          EXPECT_LE(std::abs(value), 0x1p-130);
        }
      }
    }
  // A block of zeros may have any exponent.
  EXPECT_EQ(encode_e8m0_scale(254, 0), 253u);
}

TEST(HopperLayout, WordsEncodeAndDecodeBothWays) {
  std::mt19937 random(1);
  for (int i = 0; i < 100'000; ++i) {
    const WordPair words = {static_cast<uint32_t>(random()), static_cast<uint32_t>(random())};
    const WordPair again = encode(testing_hopper::unpack_words(words));
    EXPECT_EQ(again.first, words.first);
    EXPECT_EQ(again.second, words.second);

    Pairs pairs;
    for (uint32_t& pair : pairs) pair = place_code(random() & 15) | place_code(random() & 15) << 16;
    EXPECT_EQ(testing_hopper::unpack_words(encode(pairs)), pairs);
  }
}

TEST(HopperLayout, ScaleWordsGiveThePatternOfEachRowAndHalf) {
  std::mt19937 random(2);
  for (int i = 0; i < 10'000; ++i) {
    uint32_t byte[2][2];
    for (auto& row : byte)
      for (uint32_t& half : row) half = random() & 255;
    const uint32_t word = encode_scales(byte[0][0], byte[0][1], byte[1][0], byte[1][1]);
    for (int half = 0; half < 2; ++half)
      EXPECT_EQ(testing_hopper::nvfp4_patterns(word, half),
                (0x7000u | byte[0][half] << 4) | (0x7000u | byte[1][half] << 4) << 16);
    EXPECT_EQ(testing_hopper::mxfp4_patterns(byte[0][0] | byte[1][0] << 8),
              byte[0][0] << 7 | byte[1][0] << 23);
  }
}

TEST(HopperLayout, LanesOwnEachColumnOfABlockOnceAndWholeGroups) {
  for (WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kMxfp4}) {
    const int group = format == WeightFormat::kNvfp4 ? 16 : 32;
    std::multiset<int> columns;
    for (int h = 0; h < 2; ++h)
      for (int t = 0; t < 4; ++t)
        for (int c = 0; c < 16; ++c) {
          columns.insert(column(format, h, t) + c);
          EXPECT_EQ((column(format, h, t) + c) / group, column(format, h, t) / group);
        }
    EXPECT_EQ(columns.size(), 128u);
    EXPECT_EQ(std::set<int>(columns.begin(), columns.end()).size(), 128u);
    EXPECT_TRUE(*columns.begin() == 0 && *columns.rbegin() == 127);
    // One scale word serves a lane: MXFP4 has both halves in one group.
    for (int t = 0; t < 4; ++t)
      EXPECT_EQ(column(format, 0, t) / group == column(format, 1, t) / group, group == 32);
  }
}

// The checkpoint's bytes of an expert: codes, scales and the fp32 scale of each matrix.
double checkpoint_bytes(const MoeShape& shape) {
  const double weights = (shape.activation.gated() ? 3.0 : 2.0) * shape.hidden * shape.intermediate;
  return shape.weights == WeightFormat::kNvfp4 ? weights * 4.5 / 8 + 12 : weights * 4.25 / 8;
}

double growth(WeightFormat format, int hidden, int intermediate) {
  MoeShape shape;
  shape.weights = format;
  shape.hidden = hidden;
  shape.intermediate = intermediate;
  const ExpertLayout layout = expert_layout(shape);
  EXPECT_EQ(layout.bytes % 128, 0u);  // experts follow each other; the copy engine wants 16
  return static_cast<double>(layout.bytes) / checkpoint_bytes(shape) - 1;
}

TEST(HopperLayout, PackedExpertsAreNoLargerThanTheCheckpoints) {
  struct {
    const char* name;
    int hidden, intermediate;
  } const shapes[] = {{"k3", 3584, 3072},
                      {"k3-tp4", 3584, 768},
                      {"k3-tp8", 3584, 384},
                      {"kimi-k2", 7168, 2048},
                      {"qwen3-30b", 2048, 768}};
  for (const auto& shape : shapes) {
    const double more = growth(WeightFormat::kNvfp4, shape.hidden, shape.intermediate);
    EXPECT_GE(more, 0) << shape.name;
    EXPECT_LT(more, 0.0001) << shape.name;
  }
  // gpt-oss: 2880 columns are 22.5 blocks.
  const double gpt_oss = growth(WeightFormat::kMxfp4, 2880, 2880);
  EXPECT_NEAR(gpt_oss, 23 / 22.5 - 1, 1e-4);
}

}  // namespace
}  // namespace halfbyte::hopper

#include "formats/bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace halfbyte {
namespace {

// The value by definition, in double.
double value_of(uint16_t bits) {
  const double sign = bits >> 15 ? -1 : 1;
  const int exponent = (bits >> 7) & 255, mantissa = bits & 127;
  if (exponent == 255)
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  return sign *
         (exponent == 0 ? std::ldexp(mantissa, -133) : std::ldexp(128 + mantissa, exponent - 134));
}

TEST(Bf16, DecodesEveryCode) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const double expected = value_of(static_cast<uint16_t>(code));
    const float got = bf16_to_float(static_cast<uint16_t>(code));
    if (std::isnan(expected))
      EXPECT_TRUE(std::isnan(got)) << code;
    else
      EXPECT_EQ(got, expected) << code;
  }
}

TEST(Bf16, RoundTripsEveryCode) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const uint16_t back = float_to_bf16(bf16_to_float(static_cast<uint16_t>(code)));
    if (std::isnan(value_of(static_cast<uint16_t>(code)))) {
      EXPECT_EQ(back, code | 0x40u);
    } else {
      EXPECT_EQ(back, code);
    }
  }
}

// Between each pair of neighbours: just below the middle, the middle, just above it.
TEST(Bf16, RoundsToNearestWithTiesToEven) {
  for (uint32_t code = 0; code < 0x7F80; ++code) {
    const uint32_t middle = (code << 16) + 0x8000u;
    const uint32_t even = code + (code & 1);
    for (const uint32_t sign : {0u, 0x8000u}) {
      const auto encode = [&](uint32_t bits) {
        return float_to_bf16(std::bit_cast<float>(bits | sign << 16));
      };
      EXPECT_EQ(encode(middle - 1), code | sign);
      EXPECT_EQ(encode(middle), even | sign);
      EXPECT_EQ(encode(middle + 1), (code + 1) | sign);
    }
  }
}

TEST(Bf16, KeepsNanWhosePayloadIsOnlyInTheLowBits) {
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7F800001u)))));
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0xFFFFFFFFu)))));
}

// Teeth: truncation and ties away from zero are told apart.
TEST(Bf16, TruncationAndTiesAwayWouldBeSeen) {
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3F80FFFFu)), 0x3F81);  // truncation: 0x3F80
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3F808000u)), 0x3F80);  // ties away: 0x3F81
}

static_assert(bf16_to_float(0x3F80) == 1.0f && float_to_bf16(-2.5f) == 0xC020);

}  // namespace
}  // namespace halfbyte

#include "formats/e2m1.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace halfbyte {
namespace {

double value_of(int code) {  // by definition: exponent bias 1
  const int exponent = (code >> 1) & 3, mantissa = code & 1;
  const double magnitude =
      exponent == 0 ? mantissa * 0.5 : std::ldexp(1 + mantissa * 0.5, exponent - 1);
  return code & 8 ? -magnitude : magnitude;
}

// Nearest of the eight magnitudes by search; of two equally near ones the even code.
int nearest(double magnitude) {
  int best = 0;
  for (int code = 1; code < 8; ++code) {
    const double now = std::abs(value_of(code) - magnitude);
    const double before = std::abs(value_of(best) - magnitude);
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(E2m1, DecodesEveryCode) {
  for (int code = 0; code < 16; ++code) {
    const float got = e2m1_to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(got, value_of(code)) << code;
    EXPECT_EQ(std::signbit(got), code >= 8) << code;
    EXPECT_EQ(e2m1_to_float(static_cast<uint8_t>(code | 0xA0)), got);  // upper bits do not count
  }
}

TEST(E2m1, EncodesTheNearestCode) {
  for (int step = 0; step <= 8 * 1024; ++step) {  // 0 .. 8 by 2^-10, every tie among them
    const double exact = step / 1024.0;
    const float value = static_cast<float>(exact);
    for (const float x : {value, std::nextafter(value, 100.0f), std::nextafter(value, 0.0f)}) {
      EXPECT_EQ(float_to_e2m1(x), nearest(x)) << x;
      EXPECT_EQ(float_to_e2m1(-x), nearest(x) | (x > 0 ? 8 : 0)) << x;
    }
  }
}

TEST(E2m1, SaturatesAndTakesTheSignFromTheComparison) {
  EXPECT_EQ(float_to_e2m1(std::numeric_limits<float>::infinity()), 7);
  EXPECT_EQ(float_to_e2m1(-1e30f), 15);
  EXPECT_EQ(float_to_e2m1(-0.0f), 0);
  EXPECT_EQ(float_to_e2m1(-std::numeric_limits<float>::denorm_min()), 8);
}

// Teeth (B26): ties away from zero give other codes.
TEST(E2m1, TiesAwayFromZeroWouldBeSeen) {
  const float ties[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const int even[] = {0, 2, 2, 4, 4, 6, 6};
  const int away[] = {1, 2, 3, 4, 5, 6, 7};
  int differ = 0;
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(float_to_e2m1(ties[i]), even[i]);
    differ += even[i] != away[i];
  }
  EXPECT_EQ(differ, 4);
}

// B19: every byte, both nibbles.
TEST(E2m1, UnpacksLowNibbleFirst) {
  for (int byte = 0; byte < 256; ++byte) {
    const uint8_t packed[2] = {static_cast<uint8_t>(byte), static_cast<uint8_t>(255 - byte)};
    EXPECT_EQ(e2m1_code_at(packed, 0), byte & 15);
    EXPECT_EQ(e2m1_code_at(packed, 1), byte >> 4);
    EXPECT_EQ(e2m1_code_at(packed, 2), (255 - byte) & 15);
    EXPECT_EQ(e2m1_code_at(packed, 3), (255 - byte) >> 4);
  }
}

static_assert(float_to_e2m1(2.5f) == 4 && e2m1_to_float(13) == -3.0f);

}  // namespace
}  // namespace halfbyte

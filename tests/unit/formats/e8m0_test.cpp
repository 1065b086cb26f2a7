#include "formats/e8m0.h"

#include <gtest/gtest.h>

#include <cmath>

#include "formats/e2m1.h"

namespace halfbyte {
namespace {

// B31: all codes against 2^(e - 127); 128.0 is no NaN, 254 is finite, 0 is not zero.
TEST(E8m0, DecodesEveryCode) {
  for (int code = 0; code < 255; ++code)
    EXPECT_EQ(e8m0_to_float(static_cast<uint8_t>(code)), std::ldexp(1.0, code - 127)) << code;
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

// B32: the product with an element is exact, at the ends of the range too.
TEST(E8m0, ScalesElementsExactly) {
  for (const int code : {1, 7, 9, 15})
    for (const int e : {0, 1, 2, 126, 127, 252, 253, 254}) {
      const double exact =
          static_cast<double>(e2m1_to_float(static_cast<uint8_t>(code))) * std::ldexp(1.0, e - 127);
      EXPECT_EQ(e2m1_to_float(static_cast<uint8_t>(code)) * e8m0_to_float(static_cast<uint8_t>(e)),
                static_cast<float>(exact));
    }
}

// Teeth: a plain shift into the exponent field is wrong at both ends.
TEST(E8m0, PlainShiftWouldBeSeen) {
  const auto shifted = [](uint32_t code) { return std::bit_cast<float>(code << 23); };
  EXPECT_EQ(shifted(134), e8m0_to_float(134));
  EXPECT_NE(shifted(0), e8m0_to_float(0));
  EXPECT_FALSE(std::isnan(shifted(255)));
}

}  // namespace
}  // namespace halfbyte

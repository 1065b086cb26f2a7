#include "base/philox.h"

#include <gtest/gtest.h>

namespace halfbyte {
namespace {

using Words = std::array<uint32_t, 4>;

// Random123, kat_vectors: philox4x32, 10 rounds.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0}, {0, 0, 0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes}, {kOnes, kOnes, kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformLiesInItsIntervalAndFillsIt) {
  double sum = 0, least = 1, most = 0;
  for (uint64_t i = 0; i < 100'000; ++i) {
    const double u = philox_uniform(7, i);
    sum += u;
    least = std::min(least, u);
    most = std::max(most, u);
  }
  EXPECT_GE(least, 0.0);
  EXPECT_LT(most, 1.0);
  EXPECT_LT(least, 1e-3);
  EXPECT_GT(most, 1 - 1e-3);
  EXPECT_NEAR(sum / 100'000, 0.5, 5 * 0.2887 / 316.2);  // 5 sigma of the mean
}

}  // namespace
}  // namespace halfbyte

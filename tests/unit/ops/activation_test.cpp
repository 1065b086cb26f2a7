#include "ops/activation.h"

#include <gtest/gtest.h>

#include <limits>

namespace halfbyte {
namespace {

// Vectors of the specifications (kimi-k3 5.5, nvfp4 10), computed there in fp64.
TEST(Activation, MatchesTheVectors) {
  const Activation situ{.kind = ActivationKind::kSitu};
  EXPECT_NEAR(activate(situ, 1.0, 1.0), 0.7158178281, 1e-10);
  EXPECT_NEAR(activate(situ, -2.0, 3.0), -0.6578738185, 1e-10);
  EXPECT_NEAR(activate(situ, 8.0, -40.0), -88.8215942883, 1e-9);
  EXPECT_NEAR(activate(situ, 0.5, -0.25), -0.0774021063, 1e-10);
  EXPECT_NEAR(activate(situ, -10.0, 30.0), -0.0037339545, 1e-10);
  EXPECT_NEAR(activate(situ, 1e4, 1e4), 100.0, 1e-9);
  EXPECT_NEAR(activate({.kind = ActivationKind::kSitu, .linear_beta = std::nullopt}, 1.0, 1.0),
              0.716199557, 1e-9);
  const Activation oai{.kind = ActivationKind::kSwigluClamped};
  EXPECT_NEAR(activate(oai, 1.0, 1.0), 1.69159153, 1e-7);
  EXPECT_NEAR(activate(oai, 100.0, 100.0), 55.999625, 1e-5);
  EXPECT_NEAR(activate(oai, 8.0, -8.0), -41.9997188, 1e-5);
  EXPECT_NEAR(activate({.kind = ActivationKind::kGegluTanh}, 1.0, 1.0), 0.841191991, 1e-9);
  EXPECT_EQ(activate({.kind = ActivationKind::kRelu2}, 0.0, -3.0), 0.0);
  EXPECT_EQ(activate({.kind = ActivationKind::kRelu2}, 0.0, 3.0), 9.0);
}

TEST(Activation, SigmoidAndSoftplusDoNotOverflow) {
  EXPECT_EQ(sigmoid(-1e4), 0.0);
  EXPECT_EQ(sigmoid(1e4), 1.0);
  EXPECT_EQ(softplus(1e4), 1e4);
  EXPECT_EQ(softplus(-1e4), 0.0);
}

TEST(Activation, NanStays) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const ActivationKind kind : {ActivationKind::kSwiglu, ActivationKind::kSwigluClamped,
                                    ActivationKind::kGegluTanh, ActivationKind::kSitu}) {
    EXPECT_TRUE(std::isnan(activate({.kind = kind}, nan, 1.0))) << name_of(kind);
    EXPECT_TRUE(std::isnan(activate({.kind = kind}, 1.0, nan))) << name_of(kind);
  }
  EXPECT_TRUE(std::isnan(activate({.kind = ActivationKind::kRelu2}, 0.0, nan)));
}

}  // namespace
}  // namespace halfbyte

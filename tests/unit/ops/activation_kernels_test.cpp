// The vector activations of every level against the formulas in double, and against published
// values.
#include "ops/activation_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ops/activation.h"

namespace halfbyte {
namespace {

std::vector<SimdLevel> levels() {
  std::vector<SimdLevel> known;
  for (SimdLevel level : {SimdLevel::kScalar, SimdLevel::kAvx2, SimdLevel::kAvx512})
    if (machine_has(level)) known.push_back(level);
  return known;
}

float one(SimdLevel level, const Activation& a, float gate, float up) {
  float h = NAN;
  activate_kernel(level)(a, {&gate, &up, 1.0f, 1.0f}, 1, &h);
  return h;
}

const std::vector<Activation> kAll = {
    {.kind = ActivationKind::kSwiglu},
    {.kind = ActivationKind::kSwigluClamped},
    {.kind = ActivationKind::kGegluTanh},
    {.kind = ActivationKind::kRelu2},
    {.kind = ActivationKind::kSitu},
    {.kind = ActivationKind::kSitu, .linear_beta = std::nullopt},
};

// Relative to the result: four roundings of a product and the functions' own, 16 units of 2^-24.
// The sigmoid of a large argument carries the argument's rounding, hence the factor 1 + |z|, z at
// most alpha g or 1.6 (g + 0.045 g^3).
TEST(ActivationKernels, AgreeWithDoubleOverAllSizes) {
  std::mt19937 random(21);
  std::normal_distribution<float> normal(0, 1);
  for (SimdLevel level : levels())
    for (const Activation& a : kAll)
      for (float size : {1e-6f, 1e-3f, 0.1f, 1.0f, 5.0f, 30.0f, 300.0f}) {
        std::vector<float> gate(157), up(157), h(157);
        for (float& g : gate) g = size * normal(random);
        for (float& u : up) u = size * normal(random);
        activate_kernel(level)(a, {gate.data(), up.data(), 1.0f, 1.0f}, 157, h.data());
        for (size_t i = 0; i < h.size(); ++i) {
          const double exact = activate<double>(a, gate[i], up[i]);
          double z = std::fabs(double{gate[i]}) * 1.702;
          if (a.kind == ActivationKind::kGegluTanh)
            z = 1.6 *
                (std::fabs(double{gate[i]}) + 0.045 * std::pow(std::fabs(double{gate[i]}), 3));
          const double tolerance = 16 * std::ldexp(1, -24) * (1 + z) * std::fabs(exact);
          // Below the smallest normal number results may be zero.
          ASSERT_NEAR(double{h[i]}, exact,
                      tolerance + 1e-37 * (1 + std::fabs(double{gate[i] * up[i]})))
              << name_of(level) << " " << name_of(a.kind) << " gate " << gate[i] << " up " << up[i];
        }
      }
}

// Values of the specification of NVFP4, section 10; moe-faults B38 to B43.
TEST(ActivationKernels, PublishedValues) {
  const Activation situ{.kind = ActivationKind::kSitu};
  const Activation free{.kind = ActivationKind::kSitu, .linear_beta = std::nullopt};
  const Activation oai{.kind = ActivationKind::kSwigluClamped};
  const Activation limit10{
      .kind = ActivationKind::kSwigluClamped, .alpha = 1, .limit = 10, .up_bias = 0};
  const Activation geglu{.kind = ActivationKind::kGegluTanh};
  const Activation relu2{.kind = ActivationKind::kRelu2};
  for (SimdLevel level : levels()) {
    const auto expect = [&](const Activation& a, float g, float u, double value) {
      EXPECT_NEAR(double{one(level, a, g, u)}, value, 1e-6 * std::fabs(value) + 1e-9)
          << name_of(level) << " " << name_of(a.kind) << "(" << g << ", " << u << ")";
    };
    expect(situ, 1, 1, 0.715817828);
    expect(situ, 2, -3, -4.86106655);
    expect(situ, 4, 25, 56.9593195);
    expect(situ, -1, 1, -0.263334663);
    expect(situ, 1e4f, 1e4f, 100);
    expect(free, 1, 1, 0.716199557);
    expect(oai, 1, 1, 1.69159153);
    expect(oai, 7, 7, 55.999625);
    expect(oai, 100, 100, 55.999625);
    expect(oai, -8, -8, 5.8599e-5);
    expect(oai, 8, -8, -41.9997188);
    expect(limit10, 20, 20, 99.99546);
    expect(geglu, 1, 1, 0.841191991);
    expect(relu2, 0, 3, 9);
    expect(relu2, 0, -3, 0);
  }
}

// The double formulas too: as g/2 (1 + tanh z) this one would be 0.
TEST(ActivationKernels, TheDefinitionOfGegluKeepsItsDigitsBelowZero) {
  const double exact = -3.10778293750111121803e-21;  // computed with 50 digits
  EXPECT_NEAR(activate<double>({.kind = ActivationKind::kGegluTanh}, -8, 1), exact, 1e-33);
}

// moe-faults B46.
TEST(ActivationKernels, HugeArgumentsGiveNoNan) {
  for (SimdLevel level : levels()) {
    for (const Activation& a : kAll)
      for (float g : {-88.0f, -100.0f, -1e4f, -1e30f, -1e38f}) {
        const float h = one(level, a, g, 1);
        if (a.kind == ActivationKind::kRelu2) continue;
        EXPECT_LT(std::fabs(h), 1e-30) << name_of(level) << " " << name_of(a.kind) << " " << g;
      }
    EXPECT_EQ(one(level, {.kind = ActivationKind::kSwigluClamped}, -1e38f, 7), 0.0f);
  }
}

TEST(ActivationKernels, NanStaysNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (SimdLevel level : levels())
    for (const Activation& a : kAll) {
      EXPECT_TRUE(std::isnan(one(level, a, 1, nan))) << name_of(level) << " " << name_of(a.kind);
      if (a.gated()) {
        EXPECT_TRUE(std::isnan(one(level, a, nan, 1))) << name_of(a.kind);
      }
    }
}

// tanh as 2 sigmoid - 1 would lose 1.3 % here.
TEST(ActivationKernels, SmallArgumentsKeepTheirDigits) {
  for (SimdLevel level : levels())
    for (float u : {1e-3f, 1e-4f, 1e-6f, 1e-15f}) {
      const double exact = activate<double>({.kind = ActivationKind::kSitu}, double{u}, double{u});
      EXPECT_NEAR(double{one(level, {.kind = ActivationKind::kSitu}, u, u)}, exact, 2e-6 * exact);
    }
}

TEST(ActivationKernels, EachScaleMultipliesItsOwnInput) {
  const float gate = 2, up = 30;
  for (SimdLevel level : levels()) {
    float h = NAN;
    activate_kernel(level)({}, {&gate, &up, 0.5f, 0.1f}, 1, &h);
    EXPECT_NEAR(h, 0.7310586f * 3, 1e-6);
  }
}

}  // namespace
}  // namespace halfbyte

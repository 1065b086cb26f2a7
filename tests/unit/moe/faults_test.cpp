// Faults that other engines have had, as tests of every device. The numbers B.. are those of the
// project's list of public faults (their symptoms and causes in our words); closed forms by hand.
//
// CE(g, u, d), the constant expert: every code of a matrix is 1.0, every block scale 1; x is 1/L
// everywhere, so that gate(x) = g, up(x) = u, down(h) = h d exactly, by the global scales g, u,
// d/F. A result is then bf16(act(g, u)) d times the sum of a token's weights: exact up to the
// rounding of h, 2^-8.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "formats/bf16.h"
#include "halfbyte/error.h"
#include "support/moe.h"

namespace halfbyte {
namespace {

using testing_moe::bf16_view;
using testing_moe::relative_l2;
using testing_moe::Runner;
using testing_moe::StoredExperts;
using testing_moe::StoredMatrix;
using testing_moe::StoredRouting;

constexpr double kBf16 = 0x1p-8;

StoredMatrix constant_matrix(int rows, int cols, float value, uint8_t code = 2) {
  StoredMatrix matrix;
  matrix.view = {.format = WeightFormat::kNvfp4,
                 .rows = rows,
                 .cols = cols,
                 .global_scale = value,
                 .name = {}};
  matrix.values.assign(static_cast<size_t>(rows * cols / 2), static_cast<uint8_t>(code * 17));
  matrix.scales.assign(static_cast<size_t>(rows * cols / 16), 0x38);
  return matrix;
}

struct Constants {
  float gate = 1, up = 1, down = 1;
};

MoeShape constant_shape(int experts, int top_k, const Activation& activation = {}) {
  MoeShape shape;
  shape.num_experts = experts;
  shape.top_k = top_k;
  shape.hidden = 128;
  shape.intermediate = 128;
  shape.activation = activation;
  return shape;
}

StoredExperts constant_experts(const MoeShape& shape, const std::vector<Constants>& constants) {
  StoredExperts experts;
  const auto add = [&](int rows, int cols, float value) {
    // A negative constant: the codes carry the sign, a global scale may not.
    experts.matrices.push_back(
        constant_matrix(rows, cols, std::fabs(value), value < 0 ? uint8_t{10} : uint8_t{2}));
  };
  for (const Constants& c : constants) {
    if (shape.activation.gated()) add(shape.intermediate, shape.hidden, c.gate);
    add(shape.intermediate, shape.hidden, c.up);
    add(shape.hidden, shape.intermediate, c.down / static_cast<float>(shape.intermediate));
  }
  size_t i = 0;
  const auto next = [&] {
    StoredMatrix& matrix = experts.matrices[i++];
    matrix.view.values = matrix.values.data();
    matrix.view.scales = matrix.scales.data();
    return matrix.view;
  };
  for (size_t e = 0; e < constants.size(); ++e) {
    ExpertWeights expert;
    if (shape.activation.gated()) expert.gate = next();
    expert.up = next();
    expert.down = next();
    experts.views.push_back(expert);
  }
  return experts;
}

// y[t] of each token for x = 1/L; every column of y must be the same.
std::vector<float> run_constant(const std::string& device, const MoeShape& shape,
                                const StoredExperts& experts, const Routing& routing) {
  Runner runner(device, shape, experts.views, routing.num_tokens);
  std::vector<uint16_t> x(static_cast<size_t>(routing.num_tokens * shape.hidden),
                          float_to_bf16(1.0f / static_cast<float>(shape.hidden)));
  const std::vector<float> y = runner.run(routing, bf16_view(x, routing.num_tokens, shape.hidden));
  std::vector<float> first;
  for (int t = 0; t < routing.num_tokens; ++t) {
    const float* row = y.data() + t * shape.hidden;
    for (int l = 1; l < shape.hidden; ++l) EXPECT_EQ(row[l], row[0]) << device << " token " << t;
    first.push_back(row[0]);
  }
  return first;
}

float run_one(const std::string& device, const Activation& activation, const Constants& c) {
  const MoeShape shape = constant_shape(1, 1, activation);
  const int32_t id = 0;
  const float weight = 1;
  return run_constant(device, shape, constant_experts(shape, {c}), {&id, &weight, 1})[0];
}

class MoeFaults : public testing_moe::DeviceTest {
 protected:
  void expect_one(const Activation& a, const Constants& c, double value) {
    EXPECT_NEAR(double{run_one(GetParam(), a, c)}, value, kBf16 * std::fabs(value) + 1e-12)
        << name_of(a.kind) << "(" << c.gate << ", " << c.up << ")";
  }
};

// --- A. Scales

TEST_P(MoeFaults, B01_B05_GateAndUpKeepTheirOwnGlobalScales) {
  expect_one({}, {1, 0.1f, 1}, 0.0731059);
  expect_one({}, {0.1f, 1, 1}, 0.0524979);
}

TEST_P(MoeFaults, B04_RatioOfEveryExpertIsItsOwn) {
  const MoeShape shape = constant_shape(4, 1);
  const StoredExperts experts =
      constant_experts(shape, {{1, 0.5f, 1}, {1, 1, 1}, {1, 3, 1}, {1, 0.9f, 1}});
  const std::vector<int32_t> ids = {0, 1, 2, 3};
  const std::vector<float> weights(4, 1.0f);
  const std::vector<float> y =
      run_constant(GetParam(), shape, experts, {ids.data(), weights.data(), 4});
  const double silu = 0.73105858;
  const double up[] = {0.5, 1, 3, 0.9};
  for (size_t t = 0; t < 4; ++t) EXPECT_NEAR(double{y[t]}, silu * up[t], kBf16 * silu * up[t]);
}

TEST_P(MoeFaults, B08_DownScaleIsAppliedOnce) { expect_one({}, {1, 1, 128 * 0.25f}, 23.375); }

TEST_P(MoeFaults, B22_GlobalScaleMeetsTheFp32Accumulator) {
  // x = 3, code 6, block scale 448: the accumulator is 1,032,192; times 2^-13 it is 126.
  const MoeShape shape = constant_shape(1, 1, {.kind = ActivationKind::kRelu2});
  StoredExperts experts = constant_experts(shape, {{1, 0x1p-13f, 1}});
  std::fill(experts.matrices[0].values.begin(), experts.matrices[0].values.end(), uint8_t{0x77});
  std::fill(experts.matrices[0].scales.begin(), experts.matrices[0].scales.end(), uint8_t{0x7E});
  Runner runner(GetParam(), shape, experts.views, 1);
  std::vector<uint16_t> x(128, float_to_bf16(3));
  const int32_t id = 0;
  const float weight = 1;
  const std::vector<float> y = runner.run({&id, &weight, 1}, bf16_view(x, 1, 128));
  EXPECT_NEAR(double{y[0]}, 126.0 * 126.0, kBf16 * 126 * 126);
}

TEST_P(MoeFaults, B37_TinyGlobalScalesGiveTinyFiniteNumbers) {
  for (float tiny : {1e-23f, 1e-38f, 1e-41f})
    for (const Constants& c :
         {Constants{tiny, 1, 1}, Constants{1, tiny, 1}, Constants{1, 1, 128 * tiny}}) {
      const MoeShape shape = constant_shape(2, 1);
      const StoredExperts experts = constant_experts(shape, {c, {1, 1, 1}});
      const std::vector<int32_t> ids = {0, 1};
      const std::vector<float> weights = {1, 1};
      const std::vector<float> y =
          run_constant(GetParam(), shape, experts, {ids.data(), weights.data(), 2});
      EXPECT_LT(std::fabs(y[0]), 1e-20f);
      EXPECT_NEAR(double{y[1]}, 0.73105858, kBf16);
    }
}

// --- B. Layout

TEST_P(MoeFaults, B14_GateAndUpAreNotSwapped) { expect_one({}, {2, 3, 1}, 5.284782); }

TEST_P(MoeFaults, B18_EvenColumnIsInTheLowNibble) {
  // Codes 0, 1.0, 0, 1.0, ...: byte 0x20. x picks the even or the odd columns.
  const MoeShape shape = constant_shape(1, 1, {.kind = ActivationKind::kRelu2});
  StoredExperts experts = constant_experts(shape, {{1, 1, 1}});
  std::fill(experts.matrices[0].values.begin(), experts.matrices[0].values.end(), uint8_t{0x20});
  Runner runner(GetParam(), shape, experts.views, 1);
  const int32_t id = 0;
  const float weight = 1;
  for (int odd : {0, 1}) {
    std::vector<uint16_t> x(128);
    for (size_t l = static_cast<size_t>(odd); l < 128; l += 2) x[l] = float_to_bf16(1.0f / 128);
    const std::vector<float> y = runner.run({&id, &weight, 1}, bf16_view(x, 1, 128));
    EXPECT_EQ(y[0], odd == 1 ? 0.25f : 0.0f);  // up = 0.5 or 0
  }
}

// --- D. Activations

TEST_P(MoeFaults, B36_B38_GegluIsTheTanhForm) {
  expect_one({.kind = ActivationKind::kGegluTanh}, {2, 3, 1}, 5.863793);
  // erf would give -0.93606 here, further away than a rounding of h.
  const double tanh_form =
      100 * 0.5 * -2.7 * (1 + std::tanh(0.7978845608 * (-2.7 + 0.044715 * -2.7 * 2.7 * 2.7)));
  const double erf_form = 100 * 0.5 * -2.7 * (1 + std::erf(-2.7 / std::sqrt(2.0)));
  ASSERT_GT(std::fabs(erf_form - tanh_form), 2 * kBf16 * std::fabs(tanh_form));
  expect_one({.kind = ActivationKind::kGegluTanh}, {-2.7f, 100, 1}, tanh_form);
}

TEST_P(MoeFaults, B39_B40_AlphaLimitAndBiasReachTheKernel) {
  const Activation oai{.kind = ActivationKind::kSwigluClamped};
  expect_one(oai, {1, 1, 1}, 1.69159153);
  expect_one(oai, {8, -8, 1}, -41.9997188);
  expect_one(oai, {-8, -8, 1}, 5.8599e-5);
  const Activation limit10{
      .kind = ActivationKind::kSwigluClamped, .alpha = 1, .limit = 10, .up_bias = 0};
  expect_one(limit10, {20, 20, 1}, 99.99546);
  expect_one(limit10, {-20, 20, 1}, -20 / (1 + std::exp(20.0)) * 10);
}

TEST_P(MoeFaults, B41_Relu2HasNoGate) {
  expect_one({.kind = ActivationKind::kRelu2}, {1, 3, 1}, 9);
  expect_one({.kind = ActivationKind::kRelu2}, {1, -3, 1}, 0);
}

TEST_P(MoeFaults, B43_SituWithAndWithoutALinearLimit) {
  expect_one({.kind = ActivationKind::kSitu}, {1, 1, 1}, 0.715817828);
  expect_one({.kind = ActivationKind::kSitu, .linear_beta = std::nullopt}, {1, 1, 1}, 0.716199557);
}

TEST_P(MoeFaults, B45_NoRowOfZerosForAnyGrid) {
  std::mt19937 random(45);
  for (int tokens : {1, 8, 33})
    for (int top_k : {1, 6, 16})
      for (int experts : {8, 128, 896}) {
        MoeShape shape = constant_shape(experts, top_k, {.kind = ActivationKind::kSitu});
        shape.hidden = 32;
        shape.intermediate = 32;
        const StoredExperts weights = testing_moe::random_experts(shape, random);
        const StoredRouting routing = testing_moe::random_routing(shape, tokens, random);
        std::vector<uint16_t> x =
            testing_moe::random_bf16(static_cast<size_t>(tokens * shape.hidden), random);
        Runner runner(GetParam(), shape, weights.views, tokens);
        const std::vector<float> y = runner.run(routing.view(), bf16_view(x, tokens, shape.hidden));
        for (int t = 0; t < tokens; ++t) {
          float size = 0;
          for (int l = 0; l < shape.hidden; ++l)
            size += std::fabs(y[static_cast<size_t>(t * shape.hidden + l)]);
          EXPECT_GT(size, 0) << tokens << " tokens, top " << top_k << " of " << experts;
        }
      }
}

TEST_P(MoeFaults, B46_HugeNegativeGatesGiveNoNan) {
  for (float g : {-88.0f, -100.0f, -1e4f, -1e30f}) {
    const float y = run_one(GetParam(), {}, {g, 1, 1});
    EXPECT_LT(std::fabs(y), 1e-30f) << g;
  }
}

// --- F. Ids, bounds, memory

TEST_P(MoeFaults, B57_RanksWithForeignIdsAsMinusOneAddUp) {
  std::mt19937 random(57);
  const MoeShape shape = constant_shape(8, 3);
  const StoredExperts weights = testing_moe::random_experts(shape, random);
  const StoredRouting routing = testing_moe::random_routing(shape, 9, random);
  std::vector<uint16_t> x = testing_moe::random_bf16(9 * 128, random);
  Runner all(GetParam(), shape, weights.views, 9);
  const std::vector<float> expected = all.run(routing.view(), bf16_view(x, 9, 128));
  std::vector<float> sum(expected.size());
  MoeShape local = shape;
  local.num_experts = 2;
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<int32_t> ids = routing.ids;
    for (int32_t& id : ids) id = id / 2 == rank ? id % 2 : -1;
    Runner runner(GetParam(), local,
                  {weights.views.begin() + rank * 2, weights.views.begin() + rank * 2 + 2}, 9);
    const std::vector<float> part =
        runner.run({ids.data(), routing.weights.data(), 9}, bf16_view(x, 9, 128));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  // On a GPU the order of a sum may depend on how many experts have rows: h may then round to a
  // neighbour (docs/numerics.md).
  EXPECT_LT(relative_l2(sum, expected), GetParam().starts_with("cuda") ? 4e-4 : 1e-6);
}

TEST_P(MoeFaults, B58_StaleIdsAreSkipped) {
  const MoeShape shape = constant_shape(2, 4);
  const StoredExperts experts = constant_experts(shape, {{1, 1, 1}, {1, 1, 1}});
  const int32_t ids[] = {2, 1000000, INT32_MAX, 1, INT32_MIN, -1, 3, 2};
  const float weights[] = {1, 1, 1, 0.5f, 1, 1, 1, 1};
  const std::vector<float> y = run_constant(GetParam(), shape, experts, {ids, weights, 2});
  EXPECT_NEAR(double{y[0]}, 0.5 * 0.73105858, kBf16);
  EXPECT_EQ(y[1], 0.0f);
}

TEST_P(MoeFaults, B61_ExpertsWithoutTokensLeaveNothingBehind) {
  MoeShape shape = constant_shape(256, 1);
  shape.hidden = shape.intermediate = 32;
  const StoredExperts experts =
      constant_experts(shape, std::vector<Constants>(256, Constants{1, 1, 1}));
  for (int32_t id : {0, 7, 255}) {
    const float weight = 1;
    const std::vector<float> y = run_constant(GetParam(), shape, experts, {&id, &weight, 1});
    EXPECT_NEAR(double{y[0]}, 0.73105858, kBf16);
  }
}

TEST_P(MoeFaults, B62_NoTokens) {
  const MoeShape shape = constant_shape(2, 2);
  const StoredExperts experts = constant_experts(shape, {{1, 1, 1}, {1, 1, 1}});
  Runner runner(GetParam(), shape, experts.views, 4);
  EXPECT_TRUE(
      runner.run({nullptr, nullptr, 0}, TensorView::of(nullptr, DType::kBf16, 0, 128)).empty());
}

TEST_P(MoeFaults, B64_AllTokensToTheLastExpert) {
  MoeShape shape = constant_shape(4, 2);
  shape.hidden = shape.intermediate = 16;
  const StoredExperts experts =
      constant_experts(shape, {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 2, 1}});
  const int tokens = GetParam() == "ref" ? 300 : 2500;  // more than two chunks
  std::vector<int32_t> ids(static_cast<size_t>(tokens) * 2, 3);
  std::vector<float> weights(ids.size());
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 7) / 8;
  ids[12] = 0;  // one slot elsewhere
  const std::vector<float> y =
      run_constant(GetParam(), shape, experts, {ids.data(), weights.data(), tokens});
  for (size_t t = 0; t < y.size(); ++t) {
    const double f = 0.73105858;
    const double first = t == 6 ? f : 2 * f;
    const double expected = double{weights[2 * t]} * first + double{weights[2 * t + 1]} * 2 * f;
    EXPECT_NEAR(double{y[t]}, expected, kBf16 * std::fabs(expected) + 1e-12) << t;
  }
}

TEST_P(MoeFaults, B66_ATokenMayNameAnExpertTwice) {
  const MoeShape shape = constant_shape(2, 2);
  const StoredExperts experts = constant_experts(shape, {{5, 5, 5}, {2, 3, 1}});
  for (int tokens : {1, 64}) {
    std::vector<int32_t> ids(static_cast<size_t>(tokens) * 2, 1);
    std::vector<float> weights;
    for (int t = 0; t < tokens; ++t) weights.insert(weights.end(), {0.25f, 0.5f});
    for (float y : run_constant(GetParam(), shape, experts, {ids.data(), weights.data(), tokens}))
      EXPECT_NEAR(double{y}, 0.75 * 5.284782, kBf16 * 4);
  }
}

TEST_P(MoeFaults, B67_EveryExpertOfAnOddNumber) {
  for (int num_experts : {5, 897}) {
    MoeShape shape = constant_shape(num_experts, 1);
    shape.hidden = shape.intermediate = 16;
    std::vector<Constants> constants;
    std::vector<int32_t> ids;
    for (int e = 0; e < num_experts; ++e) {
      constants.push_back({1, static_cast<float>(1 + e % 11), 1});
      ids.push_back(e);
    }
    const std::vector<float> weights(ids.size(), 1.0f);
    const std::vector<float> y = run_constant(GetParam(), shape, constant_experts(shape, constants),
                                              {ids.data(), weights.data(), num_experts});
    for (int e = 0; e < num_experts; ++e)
      EXPECT_NEAR(double{y[static_cast<size_t>(e)]}, 0.73105858 * (1 + e % 11), kBf16 * 9);
  }
}

TEST_P(MoeFaults, B69_B70_PaddingRowsChangeNothing) {
  std::mt19937 random(69);
  const MoeShape shape = constant_shape(6, 2);
  const StoredExperts weights = testing_moe::random_experts(shape, random);
  StoredRouting routing = testing_moe::random_routing(shape, 8, random);
  std::vector<uint16_t> x = testing_moe::random_bf16(8 * 128, random);
  Runner runner(GetParam(), shape, weights.views, 8);
  const std::vector<float> clean = runner.run(routing.view(), bf16_view(x, 8, 128));
  std::fill(x.begin() + 5 * 128, x.end(), uint16_t{0x7FC0});  // rows 5 to 7 become NaN
  for (bool valid_ids : {true, false}) {
    if (!valid_ids) std::fill(routing.ids.begin() + 5 * 2, routing.ids.end(), -1);
    const std::vector<float> y = runner.run(routing.view(), bf16_view(x, 8, 128));
    EXPECT_TRUE(std::equal(y.begin(), y.begin() + 5 * 128, clean.begin()));
    for (size_t i = 5 * 128; i < y.size(); ++i)
      EXPECT_TRUE(valid_ids ? std::isnan(y[i]) : y[i] == 0.0f);
  }
}

// A slot that is not here has a weight all the same: it must not matter, not even as a NaN.
TEST_P(MoeFaults, WeightOfASkippedSlotIsIgnored) {
  const MoeShape shape = constant_shape(2, 2);
  const StoredExperts experts = constant_experts(shape, {{1, 1, 1}, {1, 1, 1}});
  const int32_t ids[] = {-1, 1};
  const float weights[] = {std::numeric_limits<float>::quiet_NaN(), 1};
  EXPECT_NEAR(double{run_constant(GetParam(), shape, experts, {ids, weights, 1})[0]}, 0.73105858,
              kBf16);
}

// Weight 0 or id -1: an expert full of NaN changes nothing.
TEST_P(MoeFaults, SkippedExpertsMayGiveNan) {
  std::mt19937 random(77);
  MoeShape shape = constant_shape(2, 2);
  shape.weights = WeightFormat::kBf16;
  if (!testing_moe::can_run(GetParam(), shape)) return;  // hopper has no BF16 weights
  StoredExperts experts = testing_moe::random_experts(shape, random);
  for (size_t m = 3; m < 6; ++m)  // expert 1
    std::fill(experts.matrices[m].values.begin(), experts.matrices[m].values.end(), uint8_t{0xFF});
  std::vector<uint16_t> x = testing_moe::random_bf16(128, random);
  Runner runner(GetParam(), shape, experts.views, 1);
  const auto run = [&](int32_t second, float weight) {
    const int32_t ids[] = {0, second};
    const float weights[] = {0.5f, weight};
    return runner.run({ids, weights, 1}, bf16_view(x, 1, 128));
  };
  const std::vector<float> alone = run(-1, 0.5f);
  EXPECT_FALSE(std::isnan(alone[0]));
  EXPECT_EQ(run(1, 0), alone);
  EXPECT_TRUE(std::isnan(run(1, 0.5f)[0]));
}

// --- G. Determinism

TEST_P(MoeFaults, B71_B72_RunsAreBitwiseTheSame) {
  std::mt19937 random(71);
  MoeShape shape = constant_shape(16, 6, {.kind = ActivationKind::kSitu});
  StoredExperts weights = testing_moe::random_experts(shape, random);
  // Neighbouring experts differ by 2^8.
  for (size_t e = 0; e < weights.views.size(); e += 2) weights.views[e].down.global_scale *= 256;
  const StoredRouting routing = testing_moe::random_routing(shape, 64, random);
  std::vector<uint16_t> x = testing_moe::random_bf16(64 * 128, random);
  Runner runner(GetParam(), shape, weights.views, 64);
  const std::vector<float> expected = runner.run(routing.view(), bf16_view(x, 64, 128));
  for (int run = 0; run < (GetParam() == "ref" ? 2 : 50); ++run)
    ASSERT_EQ(runner.run(routing.view(), bf16_view(x, 64, 128)), expected);
}

// --- H. Widths

TEST_P(MoeFaults, B20_B75_B76_B77_WidthsThatAreNoMultipleOf64) {
  std::mt19937 random(75);
  for (ActivationKind kind : {ActivationKind::kSitu, ActivationKind::kRelu2})
    for (int width : {16, 48, 80, 96, 112, 160, 208, 352}) {
      MoeShape shape = constant_shape(3, 2, {.kind = kind});
      shape.hidden = 144;
      shape.intermediate = width;
      const StoredExperts weights = testing_moe::random_experts(shape, random);
      const StoredRouting routing = testing_moe::random_routing(shape, 5, random);
      std::vector<uint16_t> x = testing_moe::random_bf16(5 * 144, random);
      Runner reference("ref", shape, weights.views, 5);
      Runner runner(GetParam(), shape, weights.views, 5);
      EXPECT_LT(relative_l2(runner.run(routing.view(), bf16_view(x, 5, 144)),
                            reference.run(routing.view(), bf16_view(x, 5, 144))),
                2e-4)
          << name_of(kind) << " " << width;
    }
}

// SiTU is bounded, so an infinite x gives a finite y; the zero weights that fill up the last tile
// of an odd width must not turn it into NaN.
TEST_P(MoeFaults, FillingUpATileDoesNotSpreadInfinity) {
  std::mt19937 random(37);
  MoeShape shape = constant_shape(2, 2, {.kind = ActivationKind::kSitu});
  shape.weights = WeightFormat::kBf16;
  shape.hidden = 40;
  shape.intermediate = 37;
  if (!testing_moe::can_run(GetParam(), shape)) return;  // hopper has no BF16 weights
  const StoredExperts weights = testing_moe::random_experts(shape, random);
  const StoredRouting routing = testing_moe::random_routing(shape, 3, random);
  std::vector<uint16_t> x = testing_moe::random_bf16(3 * 40, random);
  x[40] = float_to_bf16(std::numeric_limits<float>::infinity());
  const auto run = [&](const std::string& device) {
    Runner runner(device, shape, weights.views, 3);
    return runner.run(routing.view(), bf16_view(x, 3, 40));
  };
  const std::vector<float> y = run(GetParam());
  for (float value : y) ASSERT_TRUE(std::isfinite(value));
  EXPECT_LT(relative_l2(y, run("ref")), 2e-4);
}

INSTANTIATE_TEST_SUITE_P(Devices, MoeFaults, ::testing::ValuesIn(testing_moe::device_names()),
                         testing_moe::device_test_name);
INSTANTIATE_TEST_SUITE_P(Gpu, MoeFaults, ::testing::ValuesIn(testing_moe::gpu_device_names()),
                         testing_moe::device_test_name);

// B59: more than 2^31 bytes between the first and the last row of x and y.
TEST(MoeFaultsLarge, B59_RowOffsetsAreWide) {
  const MoeShape shape = [] {
    MoeShape s = constant_shape(2, 1);
    s.hidden = 128;
    s.intermediate = 16;
    return s;
  }();
  const StoredExperts experts = constant_experts(shape, {{1, 1, 1}, {2, 3, 1}});
  CpuDevice device(best_simd_level(), {.threads = 2}, {});
  const auto plan = plan_moe(shape, {.max_tokens = 3}, device);
  Buffer packed = device.allocate(plan->layout().packed_bytes);
  pack_experts([&](int e) { return experts.views[static_cast<size_t>(e)]; }, *plan,
               {static_cast<std::byte*>(packed.data()), packed.bytes()});
  const auto layer = plan->bind(packed.data(), packed.bytes());
  // Three rows, 2^31 elements apart: only the touched pages become memory.
  const int64_t stride = int64_t{1} << 31;
  Buffer x = device.allocate(static_cast<size_t>(2 * stride + 128) * 2);
  Buffer y = device.allocate(static_cast<size_t>(2 * stride + 128) * 4);
  TensorView x_view{x.data(), DType::kBf16, 3, 128, stride};
  TensorView y_view{y.data(), DType::kF32, 3, 128, stride};
  for (int t = 0; t < 3; ++t) std::fill_n(x_view.row<uint16_t>(t), 128, float_to_bf16(1.0f / 128));
  const int32_t ids[] = {0, 0, 1};
  const float weights[] = {1, 1, 1};
  Buffer workspace = device.allocate(plan->workspace_bytes());
  layer->run({ids, weights, 3}, x_view, y_view, workspace.data());
  EXPECT_NEAR(double{y_view.row<float>(1)[127]}, 0.73105858, kBf16);
  EXPECT_NEAR(double{y_view.row<float>(2)[127]}, 5.284782, kBf16 * 5.3);
}

}  // namespace
}  // namespace halfbyte

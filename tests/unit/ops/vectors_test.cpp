// The unit vectors of the specification (11.4), on every device: computed there in fp64.
#include <gtest/gtest.h>

#include "ops/ops.h"
#include "support/arrays.h"

namespace halfbyte {
namespace {

class SpecVectors : public ::testing::TestWithParam<std::string> {
 protected:
  SpecVectors() : device_(open_device(GetParam())), ops_(device_->ops()) {}

  // The vectors have 8 decimals; fp32 keeps about 7 digits of values near 1.
  void expect_near(const std::vector<float>& ours, const std::vector<double>& expected) {
    ASSERT_EQ(ours.size(), expected.size());
    const double tolerance = GetParam() == "ref" ? 2e-7 : 1e-6;
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], expected[i], tolerance) << i;
  }

  std::unique_ptr<Device> device_;
  Ops& ops_;
};

TEST_P(SpecVectors, KimiDeltaAttentionTwoSteps) {
  KdaShape shape{.heads = 1, .head_dim = 2, .gate_lower_bound = -5.0f, .max_tokens = 2};
  const float log_decay = 0.2f, decay_bias[] = {0.1f, -0.3f};
  std::vector<float> state = {0.5f, -0.25f, 0.125f, 1.0f};
  Buffer workspace = device_->allocate(ops_.kda_workspace_bytes(shape));

  const auto step = [&](std::vector<float> q, std::vector<float> k, std::vector<float> v,
                        std::vector<float> f, float b) {
    Array aq = Array::f32(1, 2, q), ak = Array::f32(1, 2, k), av = Array::f32(1, 2, v);
    Array af = Array::f32(1, 2, f), ab = Array::f32(1, 1, {b}), o = Array::f32(1, 2);
    ops_.kda(shape, {&log_decay, decay_bias},
             {aq.view(), ak.view(), av.view(), af.view(), ab.view()}, state.data(), o.view(),
             workspace.data());
    return o.values();
  };
  expect_near(step({1, 2}, {0.5f, -1}, {1, -2}, {0.25f, -0.75f}, 0.5f), {-0.23683056, 0.6567152});
  expect_near(state, {0.3101091, -0.48328046, -0.52951657, 1.27999823});
  expect_near(step({-1, 0.5f}, {2, 1}, {0.5f, 0.25f}, {-1.5f, 1}, -1), {-0.13935083, 0.10473535});
  expect_near(state, {0.23514204, -0.12034078, 0.02961789, 0.09052084});
}

TEST_P(SpecVectors, AttentionResidual) {
  Array a = Array::f32(1, 4, {1, -2, 0.5f, 3}), b = Array::f32(1, 4, {0.25f, 0.75f, -1.5f, 2});
  Array prefix = Array::f32(1, 4, {-1, 1, 2, -0.5f}), y = Array::f32(1, 4);
  const float norm[] = {1, 0.9f, 1.1f, 1.2f}, projection[] = {0.3f, -0.2f, 0.5f, 0.1f};
  float weight[4];
  for (int i = 0; i < 4; ++i) weight[i] = norm[i] * projection[i];
  const TensorView candidates[] = {a.view(), b.view(), prefix.view()};
  ops_.residual_mix(candidates, weight, 1e-5f, y.view());
  expect_near(y.values(), {0.13781076, -0.46803026, 0.77025265, 1.53706996});
}

TEST_P(SpecVectors, Router) {
  Array logits = Array::f32(1, 4, {0.5f, -1, 2, 0.1f});
  const float bias[] = {0, 0.6f, -0.4f, 0.05f};
  int32_t ids[2];
  float weights[2];
  ops_.route(logits.view(), bias, {.num_experts = 4, .top_k = 2}, ids, weights);
  EXPECT_EQ(ids[0], 0);
  EXPECT_EQ(ids[1], 1);
  expect_near({weights[0], weights[1]}, {0.69829348, 0.30170652});
}

INSTANTIATE_TEST_SUITE_P(, SpecVectors, ::testing::ValuesIn(available_devices()),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (c == '.') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace halfbyte

#include "ops/router.h"

#include <gtest/gtest.h>

#include <vector>

namespace halfbyte {
namespace {

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed route(const std::vector<float>& logits, const std::vector<float>& bias, RouterRule rule) {
  rule.num_experts = static_cast<int>(logits.size());
  Routed routed{std::vector<int32_t>(rule.top_k), std::vector<float>(rule.top_k)};
  route_token<double>(logits.data(), bias.data(), rule, routed.ids.data(), routed.weights.data());
  return routed;
}

// The vector of the specification, 11.4: the expert with the largest sigmoid is not chosen.
TEST(Router, ChoosesByBiasedScoresAndWeighsByUnbiasedOnes) {
  const Routed r = route({0.5f, -1, 2, 0.1f}, {0, 0.6f, -0.4f, 0.05f}, {.top_k = 2});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{0, 1}));
  EXPECT_NEAR(r.weights[0], 0.69829348, 1e-7);
  EXPECT_NEAR(r.weights[1], 0.30170652, 1e-7);
}

TEST(Router, TheBiasDecides) {
  EXPECT_EQ(route({0.5f, -1, 2, 0.1f}, {0, 0, 0, 0}, {.top_k = 2}).ids,
            (std::vector<int32_t>{2, 0}));
}

TEST(Router, ScalesAfterRenormalising) {
  const RouterRule rule{.top_k = 2, .scale = 2.446f};
  const Routed r = route({0.5f, -1, 2, 0.1f}, {0, 0.6f, -0.4f, 0.05f}, rule);
  EXPECT_NEAR(r.weights[0] + r.weights[1], 2.446, 1e-6);
  const Routed raw =
      route({0, 0, -50, -50}, {0, 0, 0, 0}, {.top_k = 2, .renormalise = false, .scale = 3});
  EXPECT_NEAR(raw.weights[0], 1.5, 1e-6);
}

TEST(Router, TheLowerIndexOfEqualsFirst) {
  const Routed r = route({1, 1, 1, 1}, {0, 0, 0, 0}, {.top_k = 3});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{0, 1, 2}));
}

TEST(Router, GroupsCountTheirTwoLargest) {
  // Group 0 has the largest single score, group 1 the larger sum of two.
  const std::vector<float> logits = {5, -9, -9, 2, 2, -9};
  const RouterRule rule{.top_k = 2, .groups = 2, .chosen_groups = 1};
  EXPECT_EQ(route(logits, std::vector<float>(6), rule).ids, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(route(logits, std::vector<float>(6), {.top_k = 2}).ids, (std::vector<int32_t>{0, 3}));
}

TEST(Router, NanLogitsStillGiveIdsInRange) {
  const Routed r = route({NAN, 1, NAN, 0}, {0, 0, 0, 0}, {.top_k = 2});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{1, 3}));
}

}  // namespace
}  // namespace halfbyte

#include "moe/draw_routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "halfbyte/error.h"

namespace halfbyte {
namespace {

std::vector<int> counts(const DrawnRouting& routing, int num_experts) {
  std::vector<int> count(static_cast<size_t>(num_experts));
  for (int32_t id : routing.ids)
    if (id >= 0) ++count[static_cast<size_t>(id)];
  return count;
}

TEST(DrawRouting, TokensNameDifferentExperts) {
  std::mt19937_64 random(1);
  for (RoutingKind kind : {RoutingKind::kUniform, RoutingKind::kZipf}) {
    const DrawnRouting routing = draw_routing(kind, 50, 16, 24, 24, random);
    ASSERT_EQ(routing.ids.size(), 50u * 16u);
    for (int t = 0; t < 50; ++t) {
      const std::set<int32_t> ids(routing.ids.begin() + t * 16, routing.ids.begin() + (t + 1) * 16);
      EXPECT_EQ(ids.size(), 16u);
      EXPECT_GE(*ids.begin(), 0);
      EXPECT_LT(*ids.rbegin(), 24);
    }
    EXPECT_EQ(routing.weights, std::vector<float>(50 * 16, 1.0f / 16));
  }
}

// One choice a token: shares are 1/E, or 1/(rank H_E). Five standard deviations of slack.
TEST(DrawRouting, SharesAreThoseOfTheLaw) {
  std::mt19937_64 random(2);
  constexpr int kTokens = 40000, kExperts = 10;
  for (int count : counts(
           draw_routing(RoutingKind::kUniform, kTokens, 1, kExperts, kExperts, random), kExperts))
    EXPECT_NEAR(count, kTokens / 10, 5 * 60);
  std::vector<int> zipf =
      counts(draw_routing(RoutingKind::kZipf, kTokens, 1, kExperts, kExperts, random), kExperts);
  std::sort(zipf.rbegin(), zipf.rend());
  EXPECT_NEAR(zipf[0], kTokens / 2.928968, 5 * 95);
  EXPECT_NEAR(zipf[1], kTokens / 2.928968 / 2, 5 * 75);
  EXPECT_NEAR(zipf[9], kTokens / 2.928968 / 10, 5 * 36);
}

TEST(DrawRouting, OneExpertTakesAll) {
  std::mt19937_64 random(3);
  const DrawnRouting routing = draw_routing(RoutingKind::kOne, 7, 4, 100, 5, random);
  EXPECT_EQ(std::count(routing.ids.begin(), routing.ids.end(), routing.ids[0]), 28);
  EXPECT_LT(routing.ids[0], 5);
}

TEST(DrawRouting, ExpertsElsewhereAreMinusOne) {
  std::mt19937_64 random(4);
  const DrawnRouting routing = draw_routing(RoutingKind::kUniform, 2000, 8, 64, 8, random);
  const auto away = std::count(routing.ids.begin(), routing.ids.end(), -1);
  EXPECT_NEAR(static_cast<double>(away), 2000 * 7.0, 5 * 42);
  EXPECT_LT(*std::max_element(routing.ids.begin(), routing.ids.end()), 8);
}

TEST(DrawRouting, MoreChoicesThanExpertsRepeat) {
  std::mt19937_64 random(5);
  for (RoutingKind kind : {RoutingKind::kUniform, RoutingKind::kZipf}) {
    const DrawnRouting routing = draw_routing(kind, 3, 5, 2, 2, random);
    EXPECT_EQ(std::set<int32_t>(routing.ids.begin(), routing.ids.begin() + 5).size(), 2u);
  }
}

TEST(DrawRouting, Names) {
  for (RoutingKind kind : {RoutingKind::kUniform, RoutingKind::kZipf, RoutingKind::kOne})
    EXPECT_EQ(parse_routing_kind(name_of(kind)), kind);
  EXPECT_THROW(parse_routing_kind("even"), Error);
}

}  // namespace
}  // namespace halfbyte

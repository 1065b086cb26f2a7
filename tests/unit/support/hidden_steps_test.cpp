// What HiddenSteps says a BF16 step of hidden values does, against what it does: columns of `down`
// are made larger by 2^-7 one at a time, which is the same.
#include "support/hidden_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "formats/bf16.h"
#include "support/moe.h"

namespace halfbyte {
namespace {

using testing_moe::bf16_view;

TEST(HiddenSteps, AreWhatLargerColumnsOfDownDo) {
  std::mt19937 random(1);
  MoeShape shape;
  shape.num_experts = 3;
  shape.top_k = 2;
  shape.hidden = 32;
  shape.intermediate = 16;
  shape.weights = WeightFormat::kBf16;
  shape.activation.kind = ActivationKind::kRelu2;
  testing_moe::StoredExperts experts = testing_moe::random_experts(shape, random);
  // Powers of two: a step more is a BF16 number, too.
  for (size_t i = 1; i < experts.matrices.size(); i += 2)
    for (size_t at = 0; at < experts.matrices[i].values.size(); at += 2) {
      const uint16_t value = float_to_bf16(
          std::ldexp(random() % 2 == 0 ? 1.0f : -1.0f, -static_cast<int>(random() % 4)));
      std::memcpy(&experts.matrices[i].values[at], &value, 2);
    }
  const int tokens = 2;
  const std::vector<int32_t> ids = {0, 2, 2, 0};
  const std::vector<float> weights = {0.75f, 0.25f, 1, -0.5f};
  const Routing routing{ids.data(), weights.data(), tokens};
  std::vector<uint16_t> x = testing_moe::random_bf16(size_t{tokens} * 32, random);
  const testing_moe::HiddenSteps steps(shape, experts.views, routing, x.data());
  const auto run = [&] {
    testing_moe::Runner runner("ref", shape, experts.views, tokens, 1);
    return runner.run(routing, bf16_view(x, tokens, 32));
  };

  // Of each token, expert and f: how far y moves.
  std::vector<std::vector<double>> moves(static_cast<size_t>(tokens) * 32);
  std::vector<double> squares;
  const std::vector<float> y = run();
  for (int expert : {0, 2}) {
    std::vector<uint8_t>& down = experts.matrices[static_cast<size_t>(expert) * 2 + 1].values;
    for (size_t f = 0; f < 16; ++f) {
      const std::vector<uint8_t> kept = down;
      for (size_t l = 0; l < 32; ++l) ++down[(l * 16 + f) * 2];  // the last place of a BF16 number
      const std::vector<float> moved = run();
      down = kept;
      for (size_t t = 0; t < 2; ++t) {
        double square = 0;
        for (size_t l = 0; l < 32; ++l) {
          const double move = std::fabs(double{moved[t * 32 + l]} - double{y[t * 32 + l]});
          moves[t * 32 + l].push_back(move);
          square += move * move;
        }
        squares.push_back(square);
      }
    }
  }
  const auto two_largest = [](std::vector<double> v) {
    std::partial_sort(v.begin(), v.begin() + 2, v.end(), std::greater<>());
    return v[0] + v[1];
  };
  // Hidden values are rounded to BF16 in y: off by 2^-8 at most.
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t l = 0; l < 32; ++l) {
      const double expected = two_largest(moves[static_cast<size_t>(t * 32 + l)]);
      EXPECT_GT(expected, 0);
      EXPECT_NEAR(steps.of_element(t, l), expected, expected * 0x1p-7) << t << " " << l;
    }
  const double expected = std::sqrt(two_largest(squares));
  EXPECT_NEAR(steps.of_all(), expected, expected * 0x1p-7);
}

}  // namespace
}  // namespace halfbyte

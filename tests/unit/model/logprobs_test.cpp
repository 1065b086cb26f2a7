#include "model/logprobs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "support/golden_model.h"

namespace halfbyte {
namespace {

TEST(Logprobs, OfOneRow) {
  const std::vector<float> logits = {1000, 1000 + std::log(3.0f), -1000};
  EXPECT_NEAR(log_probability(logits, 0), std::log(0.25), 1e-4);  // logits near 1000: ulp 6e-5
  EXPECT_NEAR(log_probability(logits, 1), std::log(0.75), 1e-4);
  EXPECT_NEAR(log_probability(logits, 2), -2001.386, 1e-3);
}

TEST(Logprobs, Differences) {
  const PromptLogprobs a{{-1, -2, -3}, 5}, b{{-1, -2.5, -2}, 5};
  LogprobDifference all = difference_of(a, b);
  EXPECT_EQ(all.count, 3);
  EXPECT_DOUBLE_EQ(all.mean(), 0.5);
  EXPECT_DOUBLE_EQ(all.max, 1.0);
  all.add({1, 4, 4});
  EXPECT_DOUBLE_EQ(all.mean(), 5.5 / 4);
  EXPECT_DOUBLE_EQ(all.max, 4);
  EXPECT_DOUBLE_EQ(difference_of({}, {}).mean(), 0);
}

// A logprob is a logit less a log-sum-exp: an error of e in each logit makes at most 2e of it.
TEST(Logprobs, OfTheGoldenPromptsOnRef) {
  const GoldenModel golden("k3-tiny-bf16");
  const auto device = open_device("ref");
  const auto model = Model::open(golden.directory, *device);
  for (const GoldenPrompt& prompt : golden.prompts) {
    const PromptLogprobs ours = prompt_logprobs(*model, prompt.ids);
    ASSERT_EQ(ours.values.size(), prompt.ids.size() - 1);
    for (size_t t = 1; t < prompt.ids.size(); ++t)
      ASSERT_NEAR(ours.values[t - 1], prompt.logprobs[t], 2 * golden.tolerances.fp32_logits_max_abs)
          << prompt.name << " " << t;
    EXPECT_EQ(ours.first_token, prompt.greedy[0]);
  }
}

}  // namespace
}  // namespace halfbyte

#include "model/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/philox.h"
#include "halfbyte/error.h"

namespace halfbyte {
namespace {

std::vector<float> random_logits(size_t count, uint64_t seed) {
  std::vector<float> logits(count);
  for (size_t i = 0; i < count; ++i)
    logits[i] = static_cast<float>(6 * philox_uniform(seed, i) - 3);
  return logits;
}

// Probabilities by definition: sorted, cut by top-k, softmax, cut by top-p, scaled to 1.
std::vector<double> probabilities(const std::vector<float>& logits,
                                  const SamplingOptions& options) {
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(options.top_k)));
  std::vector<double> p(logits.size());
  double sum = 0;
  for (const int32_t id : order)
    sum += p[id] = std::exp(static_cast<double>(logits[id]) / options.temperature);
  double kept = 0;
  for (const int32_t id : order) {
    if (kept >= options.top_p * sum) p[id] = 0;
    kept += p[id];
  }
  for (double& value : p) value /= kept;
  return p;
}

// Pearson's statistic of many draws against `p`; about the number of possible ids when they agree.
double chi_square(const std::vector<float>& logits, const SamplingOptions& options,
                  const std::vector<double>& p, int draws) {
  std::vector<int> seen(logits.size());
  for (int i = 0; i < draws; ++i) ++seen[sample(logits, options, i)];
  double statistic = 0;
  for (size_t id = 0; id < p.size(); ++id) {
    if (p[id] == 0 && seen[id] > 0) return std::numeric_limits<double>::infinity();
    if (p[id] > 0) statistic += std::pow(seen[id] - draws * p[id], 2) / (draws * p[id]);
  }
  return statistic;
}

TEST(Sampler, TheLargestLogitAndTheLowestIdOfTies) {
  EXPECT_EQ(argmax(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(argmax(std::vector<float>{-0.0f, 0.0f}), 0);
  EXPECT_EQ(argmax(std::vector<float>{-INFINITY, -INFINITY}), 0);
  const std::vector<float> tied = {0, 2, 1, 2};
  EXPECT_EQ(sample(tied, {}, 0), 1);
  for (uint64_t draw = 0; draw < 100; ++draw) {
    EXPECT_EQ(sample(tied, {.temperature = 1, .top_k = 1}, draw), 1);
    EXPECT_EQ(sample(tied, {.temperature = 1, .top_p = 1e-6f}, draw), 1);
    EXPECT_EQ(sample(tied, {.temperature = 1e-6f}, draw) % 2, 1);  // 1 or 3
  }
}

TEST(Sampler, DrawsFollowTheDistribution) {
  const std::vector<float> logits = random_logits(40, 3);
  const int draws = 40'000;
  for (const SamplingOptions options :
       {SamplingOptions{.temperature = 1.0f, .seed = 1},
        SamplingOptions{.temperature = 0.7f, .seed = 2},
        SamplingOptions{.temperature = 1.0f, .top_k = 7, .seed = 3},
        SamplingOptions{.temperature = 1.3f, .top_p = 0.8f, .seed = 4},
        SamplingOptions{1.0f, 0.6f, 12, 5}}) {
    const std::vector<double> p = probabilities(logits, options);
    const double ids = static_cast<double>(p.size() - std::count(p.begin(), p.end(), 0.0));
    // Mean ids - 1, variance 2 (ids - 1); seeds are fixed, so this passes or fails for good.
    EXPECT_LT(chi_square(logits, options, p, draws), ids + 6 * std::sqrt(2 * ids));
    // Teeth: another temperature, or half of the ids.
    SamplingOptions other = options;
    other.temperature *= 1.1f;
    EXPECT_GT(chi_square(logits, other, p, draws), ids + 6 * std::sqrt(2 * ids));
    other = options;
    other.top_k = static_cast<int32_t>(ids) / 2;
    other.top_p = 1;
    EXPECT_GT(chi_square(logits, other, p, draws), ids + 6 * std::sqrt(2 * ids));
  }
}

TEST(Sampler, ADrawDependsOnSeedAndItsNumberAlone) {
  const std::vector<float> logits = random_logits(1000, 4);
  const SamplingOptions options{.temperature = 1, .top_p = 0.9f, .seed = 11};
  std::vector<int32_t> forwards, backwards;
  for (uint64_t i = 0; i < 50; ++i) forwards.push_back(sample(logits, options, i));
  for (uint64_t i = 50; i-- > 0;) backwards.insert(backwards.begin(), sample(logits, options, i));
  EXPECT_EQ(forwards, backwards);
  SamplingOptions other = options;
  other.seed = 12;
  std::vector<int32_t> different;
  for (uint64_t i = 0; i < 50; ++i) different.push_back(sample(logits, other, i));
  EXPECT_NE(forwards, different);
}

TEST(Sampler, WhatCannotBeSampledIsRefused) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NO_THROW(check_sampling({}));
  for (const SamplingOptions bad :
       {SamplingOptions{.temperature = -1}, SamplingOptions{.temperature = nan},
        SamplingOptions{.temperature = INFINITY}, SamplingOptions{.top_p = 0},
        SamplingOptions{.top_p = 1.5f}, SamplingOptions{.top_p = nan},
        SamplingOptions{.top_k = -1}})
    EXPECT_THROW(check_sampling(bad), Error);
  EXPECT_THROW(sample(std::vector<float>{1, nan}, {}, 0), Error);
}

}  // namespace
}  // namespace halfbyte

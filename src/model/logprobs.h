// What a model thinks of a given text: log probabilities of its tokens, and how two models differ.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"

namespace halfbyte {

// log softmax(logits)[id], in double. logits (V)
double log_probability(std::span<const float> logits, int32_t id);

struct PromptLogprobs {
  std::vector<double> values;  // (T-1): of ids[t] given ids[0..t), t from 1, in nats
  int32_t first_token = -1;    // the most probable continuation
};

// Throws Error{kInput} as Model::forward. Keeps logits of at most a few positions at a time.
PromptLogprobs prompt_logprobs(Model& model, std::span<const int32_t> ids);

struct LogprobDifference {
  int64_t count = 0;
  double sum = 0;  // of |a - b|
  double max = 0;

  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
  void add(const LogprobDifference& other);
};

// a, b: of the same prompt.
LogprobDifference difference_of(const PromptLogprobs& a, const PromptLogprobs& b);

}  // namespace halfbyte

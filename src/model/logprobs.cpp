#include "model/logprobs.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "model/sampler.h"

namespace halfbyte {

double log_probability(std::span<const float> logits, int32_t id) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return logits[static_cast<size_t>(id)] - top - std::log(sum);
}

PromptLogprobs prompt_logprobs(Model& model, std::span<const int32_t> ids) {
  // Rows of logits at a time: 64 of K3's vocabulary are 42 MB.
  constexpr size_t kRows = 64;
  const size_t vocab = static_cast<size_t>(model.config().vocab_size);
  Sequence sequence = model.new_sequence(static_cast<int64_t>(ids.size()));
  PromptLogprobs result;
  // NOTE: one forward even for no ids, so that it is refused where all else is.
  for (size_t begin = 0; begin == 0 || begin < ids.size(); begin += kRows) {
    const auto piece = ids.subspan(begin, std::min(kRows, ids.size() - begin));
    const std::span<const float> logits = model.forward(piece, sequence, LogitRows::kAll);
    for (size_t row = 0; row < piece.size(); ++row) {
      const auto here = logits.subspan(row * vocab, vocab);
      const size_t next = begin + row + 1;
      if (next < ids.size())
        result.values.push_back(log_probability(here, ids[next]));
      else
        result.first_token = argmax(here);
    }
  }
  return result;
}

void LogprobDifference::add(const LogprobDifference& other) {
  count += other.count;
  sum += other.sum;
  max = std::max(max, other.max);
}

LogprobDifference difference_of(const PromptLogprobs& a, const PromptLogprobs& b) {
  HB_CHECK(a.values.size() == b.values.size());
  LogprobDifference difference;
  for (size_t i = 0; i < a.values.size(); ++i) {
    const double distance = std::abs(a.values[i] - b.values[i]);
    difference.add({1, distance, distance});
  }
  return difference;
}

}  // namespace halfbyte

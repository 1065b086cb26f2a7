// Logits -> the next token.
//
// Temperature 0 takes the largest logit. Otherwise p = softmax(logits / temperature), over the
// top_k largest logits if top_k is set; then the fewest of the largest p whose sum reaches top_p
// stay, and one of those is drawn. Ties go to the lowest id, everywhere. Draw number i of a
// sequence depends on (seed, i) and the logits alone. Sums are in double, in a fixed order.
#pragma once

#include <cstdint>
#include <span>

namespace halfbyte {

struct SamplingOptions {
  float temperature = 0.0f;  // 0: the most probable token
  float top_p = 1.0f;        // (0, 1]
  int32_t top_k = 0;         // 0: all
  uint64_t seed = 0;
};

void check_sampling(const SamplingOptions& options);  // throws Error{kInput} naming the option

// logits (V), V > 0; `draw` counts the tokens of a sequence. Throws Error{kInternal} for NaN.
int32_t sample(std::span<const float> logits, const SamplingOptions& options, uint64_t draw);

int32_t argmax(std::span<const float> logits);  // the lowest id of the largest

}  // namespace halfbyte

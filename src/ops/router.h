// The routing rule for one token (RouterRule in ops.h), in the precision of T.
//
// Used by every device whose router runs on the host: with 896 experts it is a rounding error of a
// step. Checked: tests/unit/ops/router_test.cpp.
#pragma once

#include <limits>

#include "ops/activation.h"
#include "ops/ops.h"

namespace halfbyte {

inline constexpr int kMaxExperts = 4096;

// logits (E), bias (E) -> ids (K), weights (K).
template <class T>
void route_token(const float* logits, const float* bias, const RouterRule& rule, int32_t* ids,
                 float* weights) {
  T score[kMaxExperts], choice[kMaxExperts];
  const int experts = rule.num_experts;
  for (int e = 0; e < experts; ++e) {
    score[e] = sigmoid(T{logits[e]});
    choice[e] = score[e] + T{bias[e]};
  }
  constexpr T kNever = -std::numeric_limits<T>::infinity();
  // The index of the largest value; the lowest of equals. NaNs lose against everything.
  const auto largest = [](const T* values, int count) {
    int best = 0;
    for (int i = 1; i < count; ++i)
      if (!(values[best] >= values[i]) && values[i] == values[i]) best = i;
    return best;
  };

  // Groups: keep the best, by the sum of their two largest.
  if (rule.groups > rule.chosen_groups) {
    const int size = experts / rule.groups;
    T group_score[kMaxExperts];
    bool keep[kMaxExperts] = {};
    for (int g = 0; g < rule.groups; ++g) {
      T first = kNever, second = kNever;
      for (int e = g * size; e < (g + 1) * size; ++e) {
        if (choice[e] > first) {
          second = first;
          first = choice[e];
        } else if (choice[e] > second) {
          second = choice[e];
        }
      }
      group_score[g] = first + second;
    }
    for (int n = 0; n < rule.chosen_groups; ++n) {
      const int g = largest(group_score, rule.groups);
      keep[g] = true;
      group_score[g] = kNever;
    }
    for (int e = 0; e < experts; ++e)
      if (!keep[e / size]) choice[e] = kNever;
  }

  // The K largest, then in order of falling weight.
  T total = 0;
  for (int k = 0; k < rule.top_k; ++k) {
    const int e = largest(choice, experts);
    choice[e] = kNever;
    int slot = k;
    for (; slot > 0; --slot) {
      const int before = ids[slot - 1];
      if (score[before] > score[e] || (score[before] == score[e] && before < e)) break;
      ids[slot] = before;
    }
    ids[slot] = e;
    total += score[e];
  }
  for (int k = 0; k < rule.top_k; ++k) {
    const T weight = rule.renormalise ? score[ids[k]] / (total + T(1e-20)) : score[ids[k]];
    weights[k] = static_cast<float>(weight * T{rule.scale});
  }
}

}  // namespace halfbyte

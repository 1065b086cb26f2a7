// How far two right implementations may be apart because they round hidden values to BF16: an fp32
// sum that lies near a boundary goes to either side (docs/numerics.md). It happens to about one
// value in 2000, so to three of a few large ones practically never: here, the two values of a call
// whose steps weigh most are each off by a whole step.
//
//   y[t][l] = sum over pairs (token t, expert e), f of   w h[f] W_down[l][f]
//   a step of h[f] is 2^-7 h[f] at most
#pragma once

#include <cstdint>
#include <vector>

#include "halfbyte/moe.h"

namespace halfbyte::testing_moe {

class HiddenSteps {
 public:
  // x: BF16 (T, L). All three must outlive it. In double, from the stored weights; slow.
  HiddenSteps(const MoeShape& shape, const std::vector<ExpertWeights>& experts,
              const Routing& routing, const uint16_t* x);

  // |y'[t][l] - y[t][l]|
  double of_element(int64_t t, int64_t l) const;
  // The root of the sum of squares of all y' - y.
  double of_all() const;

 private:
  struct Pair {
    int64_t token;
    int32_t expert;
    double weight;
    std::vector<double> hidden;
  };
  const std::vector<ExpertWeights>& experts_;
  std::vector<Pair> pairs_;
};

}  // namespace halfbyte::testing_moe

// Stored weights and activations at random, for benchmarks.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "halfbyte/moe.h"

namespace halfbyte {

// A stored matrix of random codes, weights of about unit gain.
class RandomMatrix {
 public:
  RandomMatrix(WeightFormat format, int64_t rows, int64_t cols, std::mt19937_64& random);
  const MatrixView& view() const { return view_; }

 private:
  std::vector<uint64_t> values_;
  std::vector<uint8_t> scales_;
  MatrixView view_;
};

// An expert that owns its matrices.
class RandomExpert {
 public:
  RandomExpert(const MoeShape& shape, std::mt19937_64& random);
  ExpertWeights view() const;

 private:
  std::vector<RandomMatrix> matrices_;  // gate if there is one, up, down
};

// BF16 values from N(0, 1).
std::vector<uint16_t> random_activations(size_t count, std::mt19937_64& random);

}  // namespace halfbyte

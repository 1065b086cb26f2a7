// What tests of the MoE operation share: devices by name, a plan with packed weights ready to run
// in poisoned memory, random experts, and an error measure.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "halfbyte/moe.h"
#include "simd/cpu_device.h"

namespace halfbyte::testing_moe {

// "ref" (the backend "reference") and "cpu.LEVEL" for every level that this machine has.
std::vector<std::string> device_names();
std::string device_test_name(const ::testing::TestParamInfo<std::string>& info);

double relative_l2(const std::vector<float>& value, const std::vector<float>& expected);

// A bound layer. `run` gives it a workspace and an output full of NaN.
class Runner {
 public:
  Runner(const std::string& device, const MoeShape& shape,
         const std::vector<ExpertWeights>& experts, int max_tokens, int threads = 2);
  std::vector<float> run(const Routing& routing, TensorView x, DType y_dtype = DType::kF32);

  const MoePlan& plan() const { return *plan_; }
  const std::byte* packed() const { return static_cast<const std::byte*>(packed_.data()); }

 private:
  std::unique_ptr<CpuDevice> device_;
  std::unique_ptr<MoePlan> plan_;
  Buffer packed_;
  Buffer workspace_;
  std::unique_ptr<MoeLayer> layer_;
};

// Experts that own their stored weights.
struct StoredMatrix {
  std::vector<uint8_t> values, scales;
  MatrixView view;
};
struct StoredExperts {
  std::vector<StoredMatrix> matrices;
  std::vector<ExpertWeights> views;
};

// Codes and scales at random: products of order one, so that outputs are of order one.
StoredMatrix random_matrix(WeightFormat format, int64_t rows, int64_t cols, std::mt19937& random);
StoredExperts random_experts(const MoeShape& shape, std::mt19937& random);

// BF16 values from N(0, 1).
std::vector<uint16_t> random_bf16(size_t count, std::mt19937& random);
// T x K ids, distinct within a token where E >= K, and weights that sum to one.
struct StoredRouting {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  int num_tokens = 0;
  Routing view() const { return {ids.data(), weights.data(), num_tokens}; }
};
StoredRouting random_routing(const MoeShape& shape, int num_tokens, std::mt19937& random);

inline TensorView bf16_view(std::vector<uint16_t>& values, int64_t rows, int64_t cols) {
  return TensorView::of(values.data(), DType::kBf16, rows, cols);
}

}  // namespace halfbyte::testing_moe

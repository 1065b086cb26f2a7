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
// "cuda.BACKEND" for the backends of GPUs; none without CUDA. Their tests are named Gpu/... and
// skip themselves on a machine without a GPU.
std::vector<std::string> gpu_device_names();
std::string device_test_name(const ::testing::TestParamInfo<std::string>& info);

// Why the test of this device cannot run here; empty if it can.
std::string why_not_here(const std::string& device);

// What tests of every device derive from.
class DeviceTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not_here(GetParam()); !reason.empty())
      GTEST_SKIP() << reason;
  }
};
// For a test whose layer not every backend can run.
bool can_run(const std::string& device, const MoeShape& shape);

double relative_l2(const std::vector<float>& value, const std::vector<float>& expected);

// A bound layer. `run` takes and gives host memory, on a GPU by way of copies. It gives the layer a
// workspace and an output full of NaN, and expects what lies around both to stay as it was.
class Runner {
 public:
  Runner(const std::string& device, const MoeShape& shape,
         const std::vector<ExpertWeights>& experts, int max_tokens, int threads = 2,
         int num_global_experts = 0);
  std::vector<float> run(const Routing& routing, TensorView x, DType y_dtype = DType::kF32);

  // The parts of `run`, for tests that do something between them.
  void prepare(const Routing& routing, TensorView x, DType y_dtype = DType::kF32);
  void queue();  // the run alone; what a CUDA graph captures
  std::vector<float> result();

  Device& device() { return *device_; }
  const MoePlan& plan() const { return *plan_; }
  void* packed() const { return packed_.data(); }  // device memory
  // Packs other weights of the same shape into the same memory. Experts with the same stored values
  // are taken for the same.
  void repack(const std::vector<ExpertWeights>& experts);

 private:
  // Memory between two guards, all filled with one byte.
  struct Guarded {
    Buffer buffer;
    size_t bytes = 0;
    void* data() const;
  };
  Guarded poisoned(size_t bytes);
  void expect_guards(const Guarded& memory, const char* name);

  std::unique_ptr<Device> device_;
  std::unique_ptr<MoePlan> plan_;
  Buffer packed_;
  Guarded workspace_;
  std::unique_ptr<MoeLayer> layer_;

  // Of the call. Memory is kept while it is large enough, so that captured pointers stay right.
  Buffer ids_, weights_, x_;
  Guarded y_;
  Routing routing_;
  TensorView x_view_, y_view_;
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

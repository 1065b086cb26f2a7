// Every case of tests/golden/moe-op on every device. Expected values and tolerances come from the
// independent double-precision script described in tests/golden/moe-op/README.md; the derivation of
// our side is in docs/numerics.md.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "formats/bf16.h"
#include "moe/case_file.h"
#include "support/moe.h"

namespace halfbyte {
namespace {

std::vector<std::string> case_files() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(HALFBYTE_TEST_DATA "/moe-op"))
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<float> floats(const StoredTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = tensor.dtype == DType::kF32 ? tensor.as<float>()[i]
                                            : bf16_to_float(tensor.as<uint16_t>()[i]);
  return values;
}

std::vector<float> run(const MoeCase& c, const MoeShape& shape, const std::string& device,
                       DType y_dtype) {
  testing_moe::Runner runner(device, shape, c.experts, c.routing.num_tokens);
  return runner.run(c.routing, c.x, y_dtype);
}

class MoeOp : public testing_moe::DeviceTest {};

TEST_P(MoeOp, FindsTheNineCases) { EXPECT_EQ(case_files().size(), 9u); }

TEST_P(MoeOp, Fp32OutputAgrees) {
  for (const std::string& path : case_files()) {
    const MoeCase c(path);
    const std::vector<float> y = run(c, c.shape, GetParam(), DType::kF32);
    EXPECT_LE(testing_moe::relative_l2(y, floats(c.file.get("expected_h_bf16"))), 2e-4) << path;
  }
}

TEST_P(MoeOp, Bf16OutputAgrees) {
  for (const std::string& path : case_files()) {
    const MoeCase c(path);
    const std::vector<float> y = run(c, c.shape, GetParam(), DType::kBf16);
    EXPECT_LE(testing_moe::relative_l2(y, floats(c.file.get("expected_h_bf16"))), 4e-3) << path;
  }
}

// `expected_contract_a` rounds each slot's output to BF16 before the sum; we do not. Each of K
// slots is then off by at most half a BF16 step of the largest of them, and the two results are
// rounded once more; their own step may be twice or four times that of the largest term.
TEST_P(MoeOp, Bf16OutputIsWithinStepsOfContractA) {
  for (const std::string& path : case_files()) {
    const MoeCase c(path);
    const int top_k = c.shape.top_k;
    const std::vector<float> contract = floats(c.file.get("expected_contract_a"));
    const std::vector<float> y = run(c, c.shape, GetParam(), DType::kBf16);
    // |weight o| of each slot, from the definition with the other slots taken out.
    std::vector<float> largest(y.size());
    for (int k = 0; k < top_k; ++k) {
      std::vector<int32_t> ids(c.routing.topk_ids, c.routing.topk_ids + c.x.rows * top_k);
      for (size_t slot = 0; slot < ids.size(); ++slot)
        if (static_cast<int>(slot) % top_k != k) ids[slot] = -1;
      testing_moe::Runner runner("ref", c.shape, c.experts, c.routing.num_tokens);
      const std::vector<float> term =
          runner.run({ids.data(), c.routing.topk_weights, c.routing.num_tokens}, c.x, DType::kF32);
      for (size_t i = 0; i < term.size(); ++i)
        largest[i] = std::max(largest[i], std::fabs(term[i]));
    }
    for (size_t i = 0; i < y.size(); ++i) {
      const double step = largest[i] > 0 ? std::ldexp(1, std::ilogb(largest[i]) - 7) : 0;
      ASSERT_LE(std::fabs(double{y[i]} - double{contract[i]}), (top_k / 2.0 + 4) * step)
          << path << " element " << i;
    }
  }
}

TEST_P(MoeOp, RowsWithoutExpertsAreExactlyZero) {
  int rows = 0;
  for (const std::string& path : case_files()) {
    const MoeCase c(path);
    const std::vector<float> y = run(c, c.shape, GetParam(), DType::kF32);
    for (int t = 0; t < c.routing.num_tokens; ++t) {
      bool has_expert = false;
      for (int k = 0; k < c.shape.top_k; ++k)
        has_expert = has_expert || c.routing.topk_ids[t * c.shape.top_k + k] >= 0;
      if (has_expert) continue;
      ++rows;
      for (int l = 0; l < c.shape.hidden; ++l)
        EXPECT_EQ(y[static_cast<size_t>(t * c.shape.hidden + l)], 0.0f) << path << " token " << t;
    }
  }
  EXPECT_GT(rows, 0);
}

// Teeth: every mistake that the README lists must leave the tolerance of the same test.
TEST_P(MoeOp, SwappedGateAndUpIsCaught) {
  for (const std::string& path : case_files()) {
    MoeCase c(path);
    if (!c.shape.activation.gated()) continue;
    for (ExpertWeights& expert : c.experts) std::swap(expert.gate, expert.up);
    const std::vector<float> y = run(c, c.shape, GetParam(), DType::kF32);
    EXPECT_GT(testing_moe::relative_l2(y, floats(c.file.get("expected_h_bf16"))), 0.1) << path;
  }
}

TEST_P(MoeOp, SiluForSituIsCaught) {
  int cases = 0;
  for (const std::string& path : case_files()) {
    const MoeCase c(path);
    if (c.shape.activation.kind != ActivationKind::kSitu) continue;
    ++cases;
    MoeShape shape = c.shape;
    shape.activation.kind = ActivationKind::kSwiglu;
    const std::vector<float> y = run(c, shape, GetParam(), DType::kF32);
    EXPECT_GT(testing_moe::relative_l2(y, floats(c.file.get("expected_h_bf16"))), 0.5) << path;
  }
  EXPECT_EQ(cases, 3);
}

// The same as a direction: a model that runs on the wrong activation still answers.
TEST_P(MoeOp, SiluForSituPointsElsewhere) {
  const MoeCase c(HALFBYTE_TEST_DATA "/moe-op/situ_t7.safetensors");
  const std::vector<float> expected = floats(c.file.get("expected_h_bf16"));
  MoeShape silu = c.shape;
  silu.activation.kind = ActivationKind::kSwiglu;
  const auto cosine = [&](const std::vector<float>& y) {
    double dot = 0, yy = 0, ee = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      dot += double{y[i]} * double{expected[i]};
      yy += double{y[i]} * double{y[i]};
      ee += double{expected[i]} * double{expected[i]};
    }
    return dot / std::sqrt(yy * ee);
  };
  EXPECT_GT(cosine(run(c, c.shape, GetParam(), DType::kBf16)), 0.9999);
  EXPECT_LT(cosine(run(c, silu, GetParam(), DType::kBf16)), 0.99);
}

TEST_P(MoeOp, GateScaleForBothHalvesIsCaught) {
  MoeCase c(HALFBYTE_TEST_DATA "/moe-op/situ_unequal_t33.safetensors");
  for (ExpertWeights& expert : c.experts) expert.up.global_scale = expert.gate.global_scale;
  const std::vector<float> y = run(c, c.shape, GetParam(), DType::kF32);
  EXPECT_GT(testing_moe::relative_l2(y, floats(c.file.get("expected_h_bf16"))), 0.1);
}

TEST_P(MoeOp, FlippedNibbleScaleOrRouteIsCaught) {
  const MoeCase c(HALFBYTE_TEST_DATA "/moe-op/swiglu_t1.safetensors");
  const std::vector<float> expected = floats(c.file.get("expected_h_bf16"));
  const int32_t used = c.routing.topk_ids[0];
  {  // The sign of one code of the up matrix.
    std::vector<ExpertWeights> experts = c.experts;
    MatrixView& up = experts[static_cast<size_t>(used)].up;
    std::vector<uint8_t> codes(static_cast<const uint8_t*>(up.values),
                               static_cast<const uint8_t*>(up.values) + up.rows * up.cols / 2);
    size_t i = 0;
    while ((codes[i] & 7) < 5) ++i;  // a large one
    codes[i] ^= 8;
    up.values = codes.data();
    testing_moe::Runner runner(GetParam(), c.shape, experts, 1);
    EXPECT_GT(testing_moe::relative_l2(runner.run(c.routing, c.x, DType::kF32), expected), 2e-4);
  }
  {  // One block scale of the down matrix, doubled.
    std::vector<ExpertWeights> experts = c.experts;
    MatrixView& down = experts[static_cast<size_t>(used)].down;
    std::vector<uint8_t> scales(
        static_cast<const uint8_t*>(down.scales),
        static_cast<const uint8_t*>(down.scales) + down.rows * down.cols / 16);
    scales[0] = static_cast<uint8_t>(scales[0] + 8);
    down.scales = scales.data();
    testing_moe::Runner runner(GetParam(), c.shape, experts, 1);
    EXPECT_GT(testing_moe::relative_l2(runner.run(c.routing, c.x, DType::kF32), expected), 2e-4);
  }
  {  // One slot sent to another expert.
    std::vector<int32_t> ids(c.routing.topk_ids, c.routing.topk_ids + c.shape.top_k);
    ids[0] = (ids[0] + 1) % c.shape.num_experts;
    testing_moe::Runner runner(GetParam(), c.shape, c.experts, 1);
    const Routing routing{ids.data(), c.routing.topk_weights, 1};
    EXPECT_GT(testing_moe::relative_l2(runner.run(routing, c.x, DType::kF32), expected), 0.1);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, MoeOp, ::testing::ValuesIn(testing_moe::device_names()),
                         testing_moe::device_test_name);
INSTANTIATE_TEST_SUITE_P(Gpu, MoeOp, ::testing::ValuesIn(testing_moe::gpu_device_names()),
                         testing_moe::device_test_name);

}  // namespace
}  // namespace halfbyte

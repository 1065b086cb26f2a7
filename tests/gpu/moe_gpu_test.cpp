// The MoE operation on a GPU: what the tests of every device (MoeOp, MoeFaults) do not ask. Each
// backend agrees with `ref` and the two with each other, gives the same bits whenever it is asked
// the same, and works when it is captured in a CUDA graph.
//
//   HALFBYTE_STRESS=10000      random calls of GpuMoeStress, instead of a few
//   HALFBYTE_STRESS_SEED=1000  of the first layer: processes with other seeds share the work
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cuda_device.h"
#include "cuda/graph.h"
#include "formats/bf16.h"
#include "halfbyte/error.h"
#include "support/hidden_steps.h"
#include "support/moe.h"

namespace halfbyte {
namespace {

using testing_moe::bf16_view;
using testing_moe::HiddenSteps;
using testing_moe::random_bf16;
using testing_moe::random_experts;
using testing_moe::random_routing;
using testing_moe::relative_l2;
using testing_moe::Runner;
using testing_moe::StoredExperts;
using testing_moe::StoredRouting;

// Two implementations in fp32 may each round an h to a neighbour: 4e-4 in the mean of many
// (docs/numerics.md). With n hidden values in all, a few of them weigh more: room for eight, each
// off by one BF16 step of 2^-7.
double tolerance(double hidden_values) {
  return 4e-4 + 0x1p-7 * std::sqrt(8.0 / std::max(hidden_values, 8.0));
}

// From 65 tokens on, hopper keeps the weighted outputs of slots in BF16, which has 8 significant
// bits: each is off by 2^-8 at most, and by less than 2^-9 in the L2 mean; so is the sum of a
// token's, unless they cancel.
double slot_rounding(const std::string& device, int tokens) {
  return device == "cuda.hopper" && tokens > 64 ? 0x1p-9 : 0;
}

// A layer and inputs of one call.
struct Problem {
  MoeShape shape;
  StoredExperts experts;
  StoredRouting routing;
  std::vector<uint16_t> x;

  TensorView view() { return bf16_view(x, routing.num_tokens, shape.hidden); }
  double hidden_values() const {
    return static_cast<double>(
               std::count_if(routing.ids.begin(), routing.ids.end(),
                             [&](int32_t id) { return id >= 0 && id < shape.num_experts; })) *
           shape.intermediate;
  }
};

MoeShape shape_of(int experts, int top_k, int hidden, int intermediate,
                  ActivationKind kind = ActivationKind::kSitu) {
  MoeShape shape;
  shape.num_experts = experts;
  shape.top_k = top_k;
  shape.hidden = hidden;
  shape.intermediate = intermediate;
  shape.activation.kind = kind;
  return shape;
}

void draw_inputs(Problem& p, int tokens, std::mt19937& random) {
  p.routing = random_routing(p.shape, tokens, random);
  p.x = random_bf16(static_cast<size_t>(tokens) * static_cast<size_t>(p.shape.hidden), random);
}

Problem problem_of(const MoeShape& shape, int tokens, uint32_t seed) {
  std::mt19937 random(seed);
  Problem p;
  p.shape = shape;
  p.experts = random_experts(shape, random);
  draw_inputs(p, tokens, random);
  return p;
}

template <class T>
T pick(std::mt19937& random, std::initializer_list<T> of) {
  return of.begin()[random() % of.size()];
}

MoeShape random_shape(std::mt19937& random) {
  MoeShape shape;
  shape.weights = pick(random, {WeightFormat::kNvfp4, WeightFormat::kNvfp4, WeightFormat::kMxfp4});
  const int group = shape.weights == WeightFormat::kMxfp4 ? 32 : 16;
  const auto positive = [&](int most) {
    return 1 + static_cast<int>(random() % static_cast<unsigned>(most));
  };
  shape.hidden = group * positive(random() % 4 == 0 ? 1024 / group : 384 / group);
  shape.intermediate = group * positive(random() % 4 == 0 ? 768 / group : 256 / group);
  shape.num_experts = positive(random() % 4 == 0 ? 96 : 16);
  shape.top_k = positive(std::min(shape.num_experts + 2, 18));
  shape.activation.kind = pick(
      random, {ActivationKind::kSitu, ActivationKind::kSitu, ActivationKind::kSwiglu,
               ActivationKind::kSwigluClamped, ActivationKind::kGegluTanh, ActivationKind::kRelu2});
  if (random() % 4 == 0) shape.activation.linear_beta.reset();
  return shape;
}

// Routings as they come in practice and as they should not.
void spoil(StoredRouting& routing, const MoeShape& shape, std::mt19937& random) {
  switch (random() % 6) {
    case 0:  // expert parallelism, with stale ids and weights that are no numbers
      for (size_t i = 0; i < routing.ids.size(); ++i)
        if (random() % 2 == 0) {
          routing.ids[i] = pick<int32_t>(random, {-1, -1, shape.num_experts, INT32_MAX, INT32_MIN});
          routing.weights[i] = pick(random, {routing.weights[i], std::nanf("")});
        }
      break;
    case 1:  // weights of zero
      for (float& weight : routing.weights)
        if (random() % 3 == 0) weight = 0;
      break;
    case 2:  // one expert
      std::fill(routing.ids.begin(), routing.ids.end(),
                static_cast<int32_t>(random() % static_cast<unsigned>(shape.num_experts)));
      break;
    case 3:  // no expert at all
      if (random() % 4 == 0) std::fill(routing.ids.begin(), routing.ids.end(), -1);
      break;
    case 4:  // skewed, repeating
      for (int32_t& id : routing.ids)
        id = static_cast<int32_t>(random() %
                                  (1 + random() % static_cast<unsigned>(shape.num_experts)));
      break;
    default:
      break;
  }
}

// Close in the mean, and nowhere far off: a single wrong element hides in a mean. `limit` holds for
// hidden values of which none stands out; where it is exceeded, those of the call itself say what
// two of them may do (`problem`).
void expect_close(const std::vector<float>& y, const std::vector<float>& expected, double limit,
                  const std::string& what, const Problem* problem = nullptr) {
  ASSERT_EQ(y.size(), expected.size()) << what;
  std::unique_ptr<HiddenSteps> steps;
  const auto allowed = [&]() -> const HiddenSteps& {
    if (steps == nullptr)
      steps = std::make_unique<HiddenSteps>(problem->shape, problem->experts.views,
                                            problem->routing.view(), problem->x.data());
    return *steps;
  };
  double square = 0;
  for (float value : expected) square += double{value} * double{value};
  const double rms = std::sqrt(square / static_cast<double>(std::max<size_t>(expected.size(), 1)));
  const double error = relative_l2(y, expected);
  if (!(error <= limit)) {
    const double more =
        problem == nullptr || square == 0 ? 0 : allowed().of_all() / std::sqrt(square);
    EXPECT_LE(error, limit + more) << what;
  }
  for (size_t i = 0; i < y.size(); ++i) {
    const double difference = std::fabs(double{y[i]} - double{expected[i]});
    const double most = limit * 20 * std::max(rms, std::fabs(double{expected[i]}));
    if (difference <= most) continue;
    const auto row = static_cast<int64_t>(problem == nullptr ? 1 : problem->shape.hidden);
    const auto at = static_cast<int64_t>(i);
    const double more = problem == nullptr ? 0 : allowed().of_element(at / row, at % row);
    ASSERT_LE(difference, most + more)
        << what << ", element " << i << ": " << y[i] << " and " << expected[i];
  }
}

cudaStream_t stream_of(Runner& runner) {
  return static_cast<cudaStream_t>(dynamic_cast<CudaDevice&>(runner.device()).stream());
}

// Queues what `runner` has prepared by way of a CUDA graph.
void queue_as_graph(Runner& runner) {
  const CudaGraph graph(stream_of(runner), [&] { runner.queue(); });
  graph.launch(stream_of(runner));
  runner.device().wait();
}

const auto kBackends = ::testing::ValuesIn(testing_moe::gpu_device_names());
// Without dequant, which reads the routing back and is what others are compared with.
const auto kFusedBackends = ::testing::Values("cuda.hopper");

class GpuMoe : public testing_moe::DeviceTest {};
class GpuMoeFull : public testing_moe::DeviceTest {};   // sizes of real models
class GpuMoeGraph : public testing_moe::DeviceTest {};  // CUDA graphs
class GpuMoeStress : public testing_moe::DeviceTest {};

// --- Right

TEST_P(GpuMoe, AgreesWithRefOnRandomShapes) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    Problem p;
    p.shape = random_shape(random);
    p.experts = random_experts(p.shape, random);
    draw_inputs(p, 1 + static_cast<int>(random() % (seed % 4 == 0 ? 80 : 12)), random);
    spoil(p.routing, p.shape, random);
    Runner reference("ref", p.shape, p.experts.views, p.routing.num_tokens);
    Runner runner(GetParam(), p.shape, p.experts.views, p.routing.num_tokens);
    const std::vector<float> expected = reference.run(p.routing.view(), p.view());
    const std::string what = "seed " + std::to_string(seed);
    const double limit =
        tolerance(p.hidden_values()) + slot_rounding(GetParam(), p.routing.num_tokens);
    expect_close(runner.run(p.routing.view(), p.view()), expected, limit, what, &p);
    // One more rounding of y, and perhaps of each slot: 4e-3 (docs/numerics.md).
    EXPECT_LE(relative_l2(runner.run(p.routing.view(), p.view(), DType::kBf16), expected),
              4e-3 + tolerance(p.hidden_values()))
        << what;
  }
}

// Each path, each kernel of wgmma and route with and without its cluster, small enough for
// compute-sanitizer. F = 160: the last tile of `up` has no neighbour.
TEST_P(GpuMoe, EveryKernelOnASmallLayer) {
  for (const auto& [kind, format] : std::vector<std::pair<ActivationKind, WeightFormat>>{
           {ActivationKind::kSitu, WeightFormat::kNvfp4},
           {ActivationKind::kRelu2, WeightFormat::kNvfp4},
           {ActivationKind::kSitu, WeightFormat::kMxfp4},
           {ActivationKind::kRelu2, WeightFormat::kMxfp4}}) {
    for (const auto& [experts, tokens] : std::vector<std::pair<int, int>>{
             {16, 2}, {16, 20}, {16, 66}, {4, 66}, {4, 100}, {4, 180}, {4, 400}, {4, 2100}}) {
      MoeShape shape = shape_of(experts, 2, 256, 160, kind);
      shape.weights = format;
      Problem p = problem_of(shape, tokens, 5);
      Runner reference("ref", p.shape, p.experts.views, tokens);
      Runner runner(GetParam(), p.shape, p.experts.views, tokens);
      expect_close(runner.run(p.routing.view(), p.view()),
                   reference.run(p.routing.view(), p.view()),
                   tolerance(p.hidden_values()) + slot_rounding(GetParam(), tokens),
                   std::to_string(experts) + " experts, " + std::to_string(tokens) + " tokens", &p);
    }
  }
}

// The widths of real models with few experts, every way through the kernels.
TEST_P(GpuMoeStress, AgreesWithDequantAtRealWidths) {
  MoeShape gpt_oss = shape_of(10, 4, 2880, 960, ActivationKind::kSwigluClamped);
  gpt_oss.weights = WeightFormat::kMxfp4;
  MoeShape k3_mxfp4 = shape_of(20, 16, 3584, 384);
  k3_mxfp4.weights = WeightFormat::kMxfp4;
  const std::vector<int> all = {1,  2,  3,  4,  5,   7,   8,   9,   12,  16,  17,   24,  32,
                                33, 48, 64, 65, 100, 128, 200, 256, 300, 512, 1000, 4096};
  const std::vector<int> some = {1, 2, 8, 9, 40, 300, 1500};
  const std::vector<std::pair<MoeShape, std::vector<int>>> cases = {
      {shape_of(20, 16, 3584, 384), all},  // K3, eight ranks
      {shape_of(20, 16, 3584, 768), all},  // four
      {k3_mxfp4, some},
      {shape_of(10, 8, 7168, 256, ActivationKind::kSwiglu), some},  // Kimi K2, eight
      {shape_of(10, 8, 2048, 768, ActivationKind::kSwiglu), some},  // Qwen3-30B-A3B
      {gpt_oss, some},
  };
  for (const auto& [shape, tokens_of_case] : cases) {
    const int most = tokens_of_case.back();
    Problem p = problem_of(shape, most, 3);
    Runner other("cuda.dequant", shape, p.experts.views, most);
    Runner runner(GetParam(), shape, p.experts.views, most);
    for (int tokens : tokens_of_case) {
      StoredRouting routing = p.routing;
      routing.num_tokens = tokens;
      const TensorView x = p.view().row_slice(0, tokens);
      expect_close(runner.run(routing.view(), x), other.run(routing.view(), x),
                   tolerance(1.0 * tokens * shape.top_k * shape.intermediate) +
                       slot_rounding(GetParam(), tokens),
                   std::to_string(tokens) + " tokens, " + std::to_string(shape.hidden) + " x " +
                       std::to_string(shape.intermediate));
    }
  }
}

// A whole layer of Kimi K3 on one of eight ranks; every eighth expert is the same.
TEST_P(GpuMoeStress, AgreesWithDequantOnALayerOfK3) {
  constexpr int kExperts = 896, kDifferent = 8, kMost = 4096;
  Problem p = problem_of(shape_of(kDifferent, 16, 3584, 384), 1, 896);
  p.shape.num_experts = kExperts;
  for (int e = kDifferent; e < kExperts; ++e)
    p.experts.views.push_back(p.experts.views[static_cast<size_t>(e % kDifferent)]);
  Runner other("cuda.dequant", p.shape, p.experts.views, kMost);
  Runner runner(GetParam(), p.shape, p.experts.views, kMost);
  std::mt19937 random(897);
  draw_inputs(p, kMost, random);
  for (int tokens : {1, 2, 5, 8, 9, 16, 64, 500, 2048, 4096}) {
    StoredRouting routing = p.routing;
    routing.num_tokens = tokens;
    const TensorView x = p.view().row_slice(0, tokens);
    expect_close(
        runner.run(routing.view(), x), other.run(routing.view(), x),
        tolerance(16.0 * tokens * p.shape.intermediate) + slot_rounding(GetParam(), tokens),
        std::to_string(tokens) + " tokens");
  }
}

// B45, B65, B67: every expert's own constant, whatever E and T.
TEST_P(GpuMoeFull, B65_B67_EverySlotFindsItsExpert) {
  const auto constant = [](int expert) { return 1 + expert * 7 % 13; };
  for (int experts : {5, 127, 128, 129, 512, 897}) {
    std::mt19937 random(65);
    const MoeShape shape = shape_of(experts, 2, 16, 32, ActivationKind::kRelu2);
    StoredExperts stored = random_experts(shape, random);
    // up: codes 1.0, scale 1, so that up(x) = sum x = 1; down: codes 1.0 times the constant.
    for (size_t i = 0; i < stored.matrices.size(); ++i) {
      testing_moe::StoredMatrix& m = stored.matrices[i];
      std::fill(m.values.begin(), m.values.end(), uint8_t{0x22});
      std::fill(m.scales.begin(), m.scales.end(), uint8_t{0x38});
      MatrixView& view = i % 2 == 0 ? stored.views[i / 2].up : stored.views[i / 2].down;
      view.global_scale =
          i % 2 == 0 ? 1.0f : static_cast<float>(constant(static_cast<int>(i / 2))) / 32;
    }
    Runner runner(GetParam(), shape, stored.views, 513);
    for (int tokens : {1, 15, 16, 17, 255, 256, 257, 511, 513}) {
      StoredRouting routing = random_routing(shape, tokens, random);
      std::vector<uint16_t> x(static_cast<size_t>(tokens) * 16, float_to_bf16(1.0f / 16));
      const std::vector<float> y = runner.run(routing.view(), bf16_view(x, tokens, 16));
      for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
        double expected = 0;
        for (size_t k = 0; k < 2; ++k)
          expected += double{routing.weights[2 * t + k]} * constant(routing.ids[2 * t + k]);
        // Everything but the weights and their sum is exact.
        for (size_t l = 0; l < 16; ++l)
          ASSERT_NEAR(double{y[t * 16 + l]}, expected,
                      (1e-6 + 2 * slot_rounding(GetParam(), tokens)) * expected)
              << experts << " experts, " << tokens << " tokens, token " << t;
      }
    }
  }
}

TEST_P(GpuMoeFull, B64_AllTokensToTheLastExpert) {
  constexpr int kTokens = 4096;
  Problem p = problem_of(shape_of(4, 4, 128, 128), kTokens, 64);
  Runner runner(GetParam(), p.shape, p.experts.views, kTokens);
  Runner one("ref", p.shape, p.experts.views, 1);
  for (int other : {-1, 1}) {
    std::fill(p.routing.ids.begin(), p.routing.ids.end(), 3);
    if (other >= 0) std::fill_n(p.routing.ids.begin() + 4 * 77, 4, other);
    const std::vector<float> y = runner.run(p.routing.view(), p.view());
    for (int t : {0, 1, 76, 77, 78, 191, 192, 2047, 4095}) {
      const Routing alone{p.routing.ids.data() + 4 * t, p.routing.weights.data() + 4 * t, 1};
      const std::vector<float> row(y.begin() + t * 128, y.begin() + (t + 1) * 128);
      expect_close(row, one.run(alone, p.view().row_slice(t, 1)),
                   tolerance(128) + slot_rounding(GetParam(), kTokens),
                   "token " + std::to_string(t));
    }
  }
}

// More than 2^31 elements in the rows of all slots.
TEST_P(GpuMoeFull, B59_RowOffsetsAreWide) {
  constexpr int kTokens = 65536, kTopK = 10, kHidden = 4096;
  const MoeShape shape = shape_of(12, kTopK, kHidden, 32, ActivationKind::kRelu2);
  std::mt19937 random(59);
  const StoredExperts experts = random_experts(shape, random);
  StoredRouting routing = random_routing(shape, kTokens, random);
  // Rows repeat after 100, so that few of them need a reference.
  std::vector<uint16_t> x = random_bf16(100 * kHidden, random);
  x.resize(size_t{kTokens} * kHidden);
  for (size_t t = 100; t < kTokens; t *= 2)
    std::memcpy(x.data() + t * kHidden, x.data(), std::min<size_t>(t, kTokens - t) * kHidden * 2);
  const int first = kTokens - 100;
  Runner runner(GetParam(), shape, experts.views, kTokens);
  const std::vector<float> y =
      runner.run(routing.view(), bf16_view(x, kTokens, kHidden), DType::kBf16);
  Runner few(GetParam(), shape, experts.views, 100);
  const Routing last{routing.ids.data() + first * kTopK, routing.weights.data() + first * kTopK,
                     100};
  const std::vector<float> expected =
      few.run(last, bf16_view(x, kTokens, kHidden).row_slice(first, 100), DType::kBf16);
  const std::vector<float> tail(y.end() - 100 * kHidden, y.end());
  EXPECT_LE(relative_l2(tail, expected), 4e-3 + 4e-4);
}

// B68: eight ranks with an eighth of the experts each add up to the whole.
TEST_P(GpuMoe, B68_RanksAddUp) {
  constexpr int kRanks = 8, kLocal = 48;
  Problem p = problem_of(shape_of(kRanks * kLocal, 8, 128, 64), 60, 68);
  Runner all(GetParam(), p.shape, p.experts.views, 60);
  const std::vector<float> expected = all.run(p.routing.view(), p.view());
  std::vector<float> sum(expected.size());
  MoeShape local = p.shape;
  local.num_experts = kLocal;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::vector<int32_t> ids = p.routing.ids;
    for (int32_t& id : ids) id = id / kLocal == rank ? id % kLocal : -1;
    const auto begin = p.experts.views.begin() + rank * kLocal;
    Runner runner(GetParam(), local, {begin, begin + kLocal}, 60, 2, kRanks * kLocal);
    const std::vector<float> part =
        runner.run({ids.data(), p.routing.weights.data(), 60}, p.view());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  expect_close(sum, expected, tolerance(p.hidden_values()), "sum of ranks");
}

// --- The same bits

TEST_P(GpuMoe, B72_EveryRunGivesTheSameBits) {
  for (int tokens : {1, 4, 8, 9, 40, 300}) {
    Problem p = problem_of(shape_of(64, 6, 512, 256), tokens, 72);
    Runner runner(GetParam(), p.shape, p.experts.views, tokens);
    for (DType dtype : {DType::kBf16, DType::kF32}) {
      const std::vector<float> expected = runner.run(p.routing.view(), p.view(), dtype);
      for (int run = 0; run < 20; ++run)
        ASSERT_EQ(runner.run(p.routing.view(), p.view(), dtype), expected) << tokens << " tokens";
    }
  }
}

// Neighbouring experts differ by 2^8: a tile that used its neighbour's scales would show.
TEST_P(GpuMoeFull, B71_ManyRunsOfALargeCallGiveTheSameBits) {
  constexpr int kTokens = 8192;
  Problem p = problem_of(shape_of(256, 6, 128, 128), kTokens, 71);
  for (size_t e = 0; e < p.experts.views.size(); e += 2)
    p.experts.views[e].down.global_scale *= 256;
  Runner runner(GetParam(), p.shape, p.experts.views, kTokens);
  const std::vector<float> expected = runner.run(p.routing.view(), p.view());
  if (GetParam() != "cuda.dequant") {
    Runner other("cuda.dequant", p.shape, p.experts.views, kTokens);
    expect_close(expected, other.run(p.routing.view(), p.view()),
                 tolerance(p.hidden_values()) + slot_rounding(GetParam(), kTokens), "first run");
  }
  for (int run = 0; run < (GetParam() == "cuda.dequant" ? 5 : 200); ++run)
    ASSERT_EQ(runner.run(p.routing.view(), p.view()), expected) << "run " << run;
}

TEST_P(GpuMoe, PermutedTokensPermuteOutputs) {
  for (int tokens : {3, 8, 30, 200, 700}) {
    Problem p = problem_of(shape_of(12, 4, 256, 128), tokens, 11);
    std::vector<size_t> order(static_cast<size_t>(tokens));
    std::iota(order.begin(), order.end(), 0u);
    std::mt19937 random(12);
    std::shuffle(order.begin(), order.end(), random);
    Problem permuted;
    permuted.shape = p.shape;
    permuted.routing.num_tokens = tokens;
    const auto append = [](auto& to, const auto& from, size_t row, size_t width) {
      const auto begin = from.begin() + static_cast<std::ptrdiff_t>(row * width);
      to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
    };
    std::vector<float> expected;
    Runner runner(GetParam(), p.shape, p.experts.views, tokens);
    const std::vector<float> y = runner.run(p.routing.view(), p.view(), DType::kBf16);
    for (size_t t : order) {
      append(permuted.routing.ids, p.routing.ids, t, 4);
      append(permuted.routing.weights, p.routing.weights, t, 4);
      append(permuted.x, p.x, t, 256);
      append(expected, y, t, 256);
    }
    EXPECT_EQ(runner.run(permuted.routing.view(), permuted.view(), DType::kBf16), expected)
        << tokens << " tokens";
  }
}

// --- Memory

TEST_P(GpuMoe, UnusedExpertsMayBeAnything) {
  for (int tokens : {1, 9, 200}) {
    Problem p = problem_of(shape_of(8, 3, 256, 128), tokens, 8);
    for (int32_t& id : p.routing.ids)  // of experts 1, 4 and 6 only, or none
      id = id % 4 == 0 ? -1 : std::vector<int32_t>{1, 4, 6}[static_cast<size_t>(id % 3)];
    Runner runner(GetParam(), p.shape, p.experts.views, tokens);
    const std::vector<float> expected = runner.run(p.routing.view(), p.view());
    const size_t expert_bytes = runner.plan().layout().expert_bytes;
    const std::vector<std::byte> poison(expert_bytes, std::byte{0xFF});
    const auto spoil_expert = [&](size_t e) {
      runner.device().copy_to_device(static_cast<std::byte*>(runner.packed()) + e * expert_bytes,
                                     poison.data(), expert_bytes);
    };
    for (size_t e : {0u, 2u, 3u, 5u, 7u}) spoil_expert(e);
    EXPECT_EQ(runner.run(p.routing.view(), p.view()), expected) << tokens << " tokens";
    if (std::count(p.routing.ids.begin(), p.routing.ids.end(), 4) == 0) continue;
    spoil_expert(4);  // teeth
    const std::vector<float> y = runner.run(p.routing.view(), p.view());
    EXPECT_TRUE(std::any_of(y.begin(), y.end(), [](float v) { return std::isnan(v); }));
  }
}

// Rows of x and y may be further apart than they are long; what lies between stays as it is.
TEST_P(GpuMoe, RowsMayBeFurtherApart) {
  for (int tokens : {3, 20, 300}) {
    Problem p = problem_of(shape_of(6, 2, 128, 64), tokens, 31);
    Runner runner(GetParam(), p.shape, p.experts.views, tokens);
    const std::vector<float> expected = runner.run(p.routing.view(), p.view());
    Device& device = runner.device();
    constexpr size_t kXStride = 128 + 24, kYStride = 128 + 40;
    const auto rows = static_cast<size_t>(tokens);
    std::vector<uint16_t> x(rows * kXStride, 0x7FC0);
    for (size_t t = 0; t < rows; ++t) std::copy_n(p.x.data() + t * 128, 128, &x[t * kXStride]);
    std::vector<float> y(rows * kYStride, -7.0f);
    const auto upload = [&](const void* from, size_t bytes) {
      Buffer buffer = device.allocate(bytes);
      device.copy_to_device(buffer.data(), from, bytes);
      return buffer;
    };
    const Buffer device_x = upload(x.data(), x.size() * 2),
                 device_y = upload(y.data(), y.size() * 4),
                 ids = upload(p.routing.ids.data(), p.routing.ids.size() * 4),
                 weights = upload(p.routing.weights.data(), p.routing.weights.size() * 4),
                 workspace = device.allocate(std::max<size_t>(runner.plan().workspace_bytes(), 1));
    const auto layer = runner.plan().bind(runner.packed(), runner.plan().layout().packed_bytes);
    layer->run({static_cast<const int32_t*>(ids.data()), static_cast<const float*>(weights.data()),
                tokens},
               {device_x.data(), DType::kBf16, tokens, 128, kXStride},
               {device_y.data(), DType::kF32, tokens, 128, kYStride}, workspace.data());
    device.wait();
    device.copy_to_host(y.data(), device_y.data(), y.size() * 4);
    for (size_t t = 0; t < rows; ++t) {
      const auto row = y.begin() + static_cast<std::ptrdiff_t>(t * kYStride);
      EXPECT_TRUE(
          std::equal(row, row + 128, expected.begin() + static_cast<std::ptrdiff_t>(t * 128)))
          << tokens << " tokens, token " << t;
      EXPECT_EQ(std::count(row + 128, row + kYStride, -7.0f), 40) << tokens << " tokens";
    }
  }
}

// 56 pairs of slabs of y and 2 blocks along K in all: less than a GPU has multiprocessors. Then an
// ordinary call of the same layer, which must find its counters as new.
TEST_P(GpuMoe, OneExpertLeavesLittleToShare) {
  Problem one = problem_of(shape_of(20, 16, 896, 256), 8, 41);
  Problem many = one;
  std::fill(one.routing.ids.begin(), one.routing.ids.end(), 13);
  Runner reference("ref", one.shape, one.experts.views, 8);
  Runner runner(GetParam(), one.shape, one.experts.views, 8);
  for (Problem* p : {&one, &many, &one})
    expect_close(runner.run(p->routing.view(), p->view()),
                 reference.run(p->routing.view(), p->view()), tolerance(p->hidden_values()),
                 p == &one ? "one expert" : "all experts");
}

// The workspace of a plan serves any number of tokens up to its most: here 4 need more than 5.
TEST_P(GpuMoe, AWorkspaceServesFewerTokens) {
  const Problem five = problem_of(shape_of(4, 16, 128, 12288), 5, 42);
  Runner reference("ref", five.shape, five.experts.views, 5);
  Runner runner(GetParam(), five.shape, five.experts.views, 5);
  for (int tokens : {4, 5, 1}) {
    Problem p = five;
    p.routing.ids.resize(static_cast<size_t>(tokens) * 16);
    p.routing.weights.resize(p.routing.ids.size());
    p.routing.num_tokens = tokens;
    p.x.resize(static_cast<size_t>(tokens) * 128);
    expect_close(runner.run(p.routing.view(), p.view()), reference.run(p.routing.view(), p.view()),
                 tolerance(p.hidden_values()), std::to_string(tokens) + " tokens");
  }
}

TEST_P(GpuMoe, WantsBf16Activations) {
  const Problem p = problem_of(shape_of(2, 1, 128, 64), 1, 43);
  EXPECT_FALSE(Runner(GetParam(), p.shape, p.experts.views, 1).plan().takes_f32_x());
}

// A weight of zero: the expert's NaN stays out.
TEST_P(GpuMoe, WeightZeroSkipsAnExpertOfNan) {
  for (int tokens : {1, 9, 100}) {
    Problem p = problem_of(shape_of(2, 2, 256, 128), tokens, 9);
    Runner runner(GetParam(), p.shape, p.experts.views, tokens);
    for (size_t i = 0; i < p.routing.ids.size(); i += 2) {
      p.routing.ids[i] = 0;
      p.routing.ids[i + 1] = 1;
      p.routing.weights[i + 1] = 0;
    }
    const std::vector<float> expected = runner.run(p.routing.view(), p.view());
    const size_t expert_bytes = runner.plan().layout().expert_bytes;
    const std::vector<std::byte> poison(expert_bytes, std::byte{0xFF});
    runner.device().copy_to_device(static_cast<std::byte*>(runner.packed()) + expert_bytes,
                                   poison.data(), expert_bytes);
    EXPECT_EQ(runner.run(p.routing.view(), p.view()), expected) << tokens << " tokens";
  }
}

// --- CUDA graphs

TEST_P(GpuMoeGraph, AGraphServesOtherRoutings) {
  for (int tokens : {1, 4, 8, 9, 33, 200, 1500}) {
    Problem p = problem_of(shape_of(32, 4, 256, 128), tokens, 5);
    Runner runner(GetParam(), p.shape, p.experts.views, tokens);
    const std::vector<float> first = runner.run(p.routing.view(), p.view(), DType::kBf16);
    runner.prepare(p.routing.view(), p.view(), DType::kBf16);
    const CudaGraph graph(stream_of(runner), [&] { runner.queue(); });
    graph.launch(stream_of(runner));
    EXPECT_EQ(runner.result(), first) << tokens << " tokens";
    std::mt19937 random(6);
    for (int replay = 0; replay < 6; ++replay) {
      draw_inputs(p, tokens, random);
      if (replay > 0) spoil(p.routing, p.shape, random);
      runner.prepare(p.routing.view(), p.view(), DType::kBf16);
      graph.launch(stream_of(runner));
      const std::vector<float> replayed = runner.result();
      EXPECT_EQ(replayed, runner.run(p.routing.view(), p.view(), DType::kBf16))
          << tokens << " tokens, replay " << replay;
    }
  }
}

// Back to back without a wait between, as a model's layers are.
TEST_P(GpuMoeGraph, ReplaysMayFollowEachOther) {
  for (int tokens : {1, 8, 64}) {
    Problem p = problem_of(shape_of(32, 4, 256, 128), tokens, 7);
    Runner runner(GetParam(), p.shape, p.experts.views, tokens);
    const std::vector<float> expected = runner.run(p.routing.view(), p.view());
    runner.prepare(p.routing.view(), p.view());
    const CudaGraph graph(stream_of(runner), [&] {
      for (int i = 0; i < 10; ++i) runner.queue();
    });
    for (int i = 0; i < 20; ++i) graph.launch(stream_of(runner));
    EXPECT_EQ(runner.result(), expected) << tokens << " tokens";
  }
}

TEST_P(GpuMoeGraph, B62_NoTokensInAGraph) {
  const Problem p = problem_of(shape_of(4, 2, 128, 64), 1, 62);
  Runner runner(GetParam(), p.shape, p.experts.views, 8);
  runner.prepare({nullptr, nullptr, 0}, TensorView::of(nullptr, DType::kBf16, 0, 128));
  const CudaGraph graph(stream_of(runner), [&] { runner.queue(); });
  graph.launch(stream_of(runner));
  EXPECT_TRUE(runner.result().empty());
}

TEST_P(GpuMoeGraph, B69_RowsOfPaddingLeaveTheOthersAlone) {
  for (int tokens : {8, 40}) {
    Problem p = problem_of(shape_of(6, 2, 128, 128), tokens, 69);
    const int real = tokens * 5 / 8;
    Runner runner(GetParam(), p.shape, p.experts.views, tokens);
    const std::vector<float> clean = runner.run(p.routing.view(), p.view());
    std::fill(p.x.begin() + real * 128, p.x.end(), uint16_t{0x7FC0});  // NaN
    for (bool valid_ids : {true, false}) {
      if (!valid_ids) std::fill(p.routing.ids.begin() + real * 2, p.routing.ids.end(), -1);
      runner.prepare(p.routing.view(), p.view());
      queue_as_graph(runner);
      const std::vector<float> y = runner.result();
      EXPECT_TRUE(std::equal(y.begin(), y.begin() + real * 128, clean.begin())) << valid_ids;
      for (size_t i = static_cast<size_t>(real) * 128; i < y.size(); ++i)
        ASSERT_TRUE(valid_ids ? std::isnan(y[i]) : y[i] == 0.0f) << y[i];
    }
  }
}

// A reload in place reaches a captured graph.
TEST_P(GpuMoeGraph, B73_NewWeightsReachACapturedGraph) {
  for (int tokens : {2, 50}) {
    Problem a = problem_of(shape_of(8, 2, 256, 128), tokens, 73);
    const Problem b = problem_of(a.shape, tokens, 74);
    Runner runner(GetParam(), a.shape, a.experts.views, tokens);
    const std::vector<float> with_a = runner.run(a.routing.view(), a.view());
    Runner fresh(GetParam(), a.shape, b.experts.views, tokens);
    const std::vector<float> with_b = fresh.run(a.routing.view(), a.view());
    EXPECT_NE(with_a, with_b);
    runner.prepare(a.routing.view(), a.view());
    const CudaGraph graph(stream_of(runner), [&] { runner.queue(); });
    for (int load = 0; load < 2; ++load) {
      runner.repack(load == 0 ? b.experts.views : a.experts.views);
      runner.prepare(a.routing.view(), a.view());
      graph.launch(stream_of(runner));
      EXPECT_EQ(runner.result(), load == 0 ? with_b : with_a);
    }
  }
}

// Hidden values that are infinite (ReLU^2 of 3e19) do not become finite outputs. (Infinite ones may
// become NaN: docs/numerics.md.)
TEST_P(GpuMoe, AnInfiniteHiddenValueIsSeen) {
  for (int tokens : {2, 30, 100}) {
    Problem p = problem_of(shape_of(2, 1, 128, 320, ActivationKind::kRelu2), tokens, 23);
    for (int c = 0; c < 128; ++c) p.x[static_cast<size_t>(128 + c)] = float_to_bf16(3e19f);
    Runner reference("ref", p.shape, p.experts.views, tokens);
    Runner runner(GetParam(), p.shape, p.experts.views, tokens);
    const std::vector<float> expected = reference.run(p.routing.view(), p.view());
    const std::vector<float> y = runner.run(p.routing.view(), p.view());
    for (size_t i = 0; i < y.size(); ++i)
      ASSERT_EQ(std::isfinite(y[i]), std::isfinite(expected[i])) << tokens << " tokens, " << i;
  }
}

// SiTU is bounded and BF16 tokens may be infinite: a token's own row at most.
TEST_P(GpuMoe, AnInfiniteTokenStaysAlone) {
  for (int tokens : {4, 40, 100}) {
    Problem p = problem_of(shape_of(4, 2, 256, 128), tokens, 21);
    Runner runner(GetParam(), p.shape, p.experts.views, tokens);
    const std::vector<float> clean = runner.run(p.routing.view(), p.view());
    p.x[256 + 17] = float_to_bf16(std::numeric_limits<float>::infinity());
    const std::vector<float> y = runner.run(p.routing.view(), p.view());
    EXPECT_TRUE(std::equal(y.begin(), y.begin() + 256, clean.begin()));
    EXPECT_TRUE(std::equal(y.begin() + 512, y.end(), clean.begin() + 512));
  }
}

TEST(GpuMoeDequant, SaysThatItCannotBeCaptured) {
  if (const std::string reason = testing_moe::why_not_here("cuda.dequant"); !reason.empty())
    GTEST_SKIP() << reason;
  Problem p = problem_of(shape_of(4, 2, 128, 64), 2, 1);
  Runner runner("cuda.dequant", p.shape, p.experts.views, 2);
  const std::vector<float> expected = runner.run(p.routing.view(), p.view());
  runner.prepare(p.routing.view(), p.view());
  try {
    const CudaGraph graph(stream_of(runner), [&] { runner.queue(); });
    FAIL() << "was captured";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(error.message().find("captured"), std::string::npos) << error.message();
  }
  EXPECT_EQ(runner.run(p.routing.view(), p.view()), expected);  // the stream is well
}

// --- Long

// Random layers, twenty calls each, one of them from a graph, against dequant.
TEST_P(GpuMoeStress, AgreesWithDequant) {
  const char* wanted = std::getenv("HALFBYTE_STRESS");
  const int calls = wanted != nullptr ? std::atoi(wanted) : 60;
  constexpr int kCallsPerLayer = 20;
  const char* first_seed = std::getenv("HALFBYTE_STRESS_SEED");
  uint32_t seed = first_seed != nullptr ? static_cast<uint32_t>(std::atoi(first_seed)) : 1000;
  for (int left = calls; left > 0; ++seed) {
    std::mt19937 random(seed);
    Problem p;
    p.shape = random_shape(random);
    p.experts = random_experts(p.shape, random);
    const int most = random() % 8 == 0 ? 3000 : 300;
    // A plan that expects few rows an expert must cope with many.
    const int global_experts =
        random() % 3 == 0 ? p.shape.num_experts * (1 + static_cast<int>(random() % 8)) : 0;
    Runner runner(GetParam(), p.shape, p.experts.views, most, 2, global_experts);
    Runner other("cuda.dequant", p.shape, p.experts.views, most);
    for (int i = 0; i < kCallsPerLayer && left > 0; ++i, --left) {
      // As many small calls as large ones.
      const double scale = std::uniform_real_distribution<double>(0, 1)(random);
      draw_inputs(p, std::max(1, static_cast<int>(std::pow(most, scale))), random);
      spoil(p.routing, p.shape, random);
      runner.prepare(p.routing.view(), p.view());
      if (i > 0 && random() % 4 == 0)
        queue_as_graph(runner);
      else
        runner.queue();
      const std::vector<float> y = runner.result();
      expect_close(y, other.run(p.routing.view(), p.view()),
                   tolerance(p.hidden_values()) + slot_rounding(GetParam(), p.routing.num_tokens),
                   "seed " + std::to_string(seed) + ", call " + std::to_string(i) + ", " +
                       std::to_string(p.routing.num_tokens) + " tokens",
                   &p);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GpuMoe, kBackends, testing_moe::device_test_name);
INSTANTIATE_TEST_SUITE_P(Backends, GpuMoeFull, kBackends, testing_moe::device_test_name);
INSTANTIATE_TEST_SUITE_P(Backends, GpuMoeGraph, kFusedBackends, testing_moe::device_test_name);
INSTANTIATE_TEST_SUITE_P(Backends, GpuMoeStress, kFusedBackends, testing_moe::device_test_name);

// So that a run without a GPU does not look like one with.
TEST(Gpu, IsHere) {
  const std::string reason = testing_moe::why_not_here("cuda.hopper");
  if (!reason.empty()) GTEST_SKIP() << reason << " (nor do the others named Gpu)";
}

}  // namespace
}  // namespace halfbyte

// Every dense operation of the CPU levels against "ref", over sizes with and without whole vectors.
//
// Tolerances, u = 2^-24: elementwise results differ by the roundings of a handful of fp32
// operations, 16 u relative to the terms; a sum of n products by at most n u times the sum of their
// sizes, in practice far less: bounded by 64 u sqrt(n) here. BF16 results by one rounding more,
// 2^-8.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "halfbyte/error.h"
#include "ops/ops.h"
#include "support/arrays.h"

namespace halfbyte {
namespace {

constexpr double kU = 0x1p-24;

void expect_close(const std::vector<float>& ours, const std::vector<float>& expected,
                  double absolute, double relative, const std::string& what) {
  ASSERT_EQ(ours.size(), expected.size()) << what;
  int shown = 0;
  for (size_t i = 0; i < ours.size() && shown < 3; ++i) {
    const double allowed = absolute + relative * std::abs(double{expected[i]});
    if (!(std::abs(double{ours[i]} - expected[i]) <= allowed)) {
      ++shown;
      ADD_FAILURE() << what << ": element " << i << " is " << ours[i] << ", expected "
                    << expected[i] << " +- " << allowed;
    }
  }
}

double largest(const std::vector<float>& values) {
  double max = 0;
  for (const float value : values) max = std::max(max, std::abs(double{value}));
  return max;
}

MatrixView bf16_matrix(Array& values) {
  const TensorView view = values.view();
  MatrixView matrix;
  matrix.format = WeightFormat::kBf16;
  matrix.rows = view.rows;
  matrix.cols = view.cols;
  matrix.values = view.data;
  matrix.name = "test";
  return matrix;
}

class CpuOps : public ::testing::TestWithParam<std::string> {
 protected:
  CpuOps()
      : device_(open_device(GetParam(), {.threads = 3})),
        ref_device_(open_device("ref")),
        ops_(device_->ops()),
        ref_(ref_device_->ops()) {}

  std::unique_ptr<Device> device_, ref_device_;
  Ops &ops_, &ref_;
  std::mt19937 generator_{7};
};

const std::vector<std::pair<int64_t, int64_t>> kShapes = {{0, 64},  {1, 1},   {1, 7168}, {2, 17},
                                                          {3, 160}, {5, 100}, {40, 515}};

TEST_P(CpuOps, Norms) {
  for (const auto& [rows, cols] : kShapes) {
    Array x = Array::random(generator_, rows, cols, 3), gain = Array::random(generator_, 1, cols);
    Array ours = Array::f32(rows, cols), expected = Array::f32(rows, cols);
    Array halves(DType::kBf16, rows, cols);
    ops_.rmsnorm(x.view(), gain.data(), 1e-5f, ours.view());
    ref_.rmsnorm(x.view(), gain.data(), 1e-5f, expected.view());
    expect_close(ours.values(), expected.values(), 1e-9, 64 * kU, "rmsnorm");
    ops_.rmsnorm(x.view(), gain.data(), 1e-5f, halves.view());
    expect_close(halves.values(), expected.values(), 1e-9, 0x1p-8, "rmsnorm to BF16");
  }
}

TEST_P(CpuOps, GatedHeadNorm) {
  for (const int head_dim : {2, 32, 100, 128}) {
    const int64_t cols = 11 * head_dim;
    Array o = Array::random(generator_, 5, cols), gate = Array::random(generator_, 5, cols, 4);
    Array gain = Array::random(generator_, 1, head_dim);
    Array ours(DType::kBf16, 5, cols), expected = Array::f32(5, cols);
    ops_.gated_head_norm(o.view(), gate.view(), gain.data(), head_dim, 1e-5f, ours.view());
    ref_.gated_head_norm(o.view(), gate.view(), gain.data(), head_dim, 1e-5f, expected.view());
    expect_close(ours.values(), expected.values(), 1e-9, 0x1p-8, "gated_head_norm");
  }
}

TEST_P(CpuOps, ResidualMix) {
  for (const auto& [rows, cols] : kShapes)
    for (const size_t count : {1, 2, 9}) {
      std::vector<Array> arrays;
      std::vector<TensorView> candidates;
      for (size_t j = 0; j < count; ++j) arrays.push_back(Array::random(generator_, rows, cols, 2));
      for (Array& array : arrays) candidates.push_back(array.view());
      Array weight = Array::random(generator_, 1, cols, 1 / std::sqrt(static_cast<float>(cols)));
      Array ours = Array::f32(rows, cols), expected = Array::f32(rows, cols);
      ops_.residual_mix(candidates, weight.data(), 1e-5f, ours.view());
      ref_.residual_mix(candidates, weight.data(), 1e-5f, expected.view());
      expect_close(ours.values(), expected.values(), 256 * kU * largest(expected.values()), 0,
                   "residual_mix");
    }
}

TEST_P(CpuOps, Elementwise) {
  for (const auto& [rows, cols] : kShapes) {
    Array x = Array::random(generator_, rows, cols, 6),
          g = Array::random(generator_, rows, cols, 6);
    Array expected = Array::f32(rows, cols), ours = Array::f32(rows, cols);
    Array halves(DType::kBf16, rows, cols);
    ops_.sigmoid_gate(x.view(), g.view(), ours.view());
    ref_.sigmoid_gate(x.view(), g.view(), expected.view());
    expect_close(ours.values(), expected.values(), 1e-30, 16 * kU, "sigmoid_gate");

    for (const ActivationKind kind : {ActivationKind::kSwiglu, ActivationKind::kSitu,
                                      ActivationKind::kGegluTanh, ActivationKind::kSwigluClamped}) {
      ops_.activate(g.view(), x.view(), {.kind = kind}, ours.view());
      ref_.activate(g.view(), x.view(), {.kind = kind}, expected.view());
      // NOTE: far out on the negative side geglu is a difference of nearly equal numbers.
      const double absolute = kind == ActivationKind::kGegluTanh ? 1e-5 : 1e-30;
      expect_close(ours.values(), expected.values(), absolute, 32 * kU, name_of(kind));
      ops_.activate(g.view(), x.view(), {.kind = kind}, halves.view());
      expect_close(halves.values(), expected.values(), absolute, 0x1p-8, name_of(kind));
    }

    Array sum = x, ref_sum = x;
    ops_.add(g.view(), sum.view());
    ref_.add(g.view(), ref_sum.view());
    EXPECT_EQ(sum.values(), ref_sum.values());
    ops_.copy(x.view(), halves.view());
    EXPECT_EQ(halves.values(), x.as_bf16().values());
    ops_.copy(halves.view(), ours.view());
    EXPECT_EQ(ours.values(), halves.values());
  }
}

// Small and large arguments, and what must not be swallowed.
TEST_P(CpuOps, ActivationsAtTheEdges) {
  std::vector<float> points = {0,    -0.0f, 1e-30f, -1e-30f, 1e-4f, -1e-4f, 1e-3f,
                               0.3f, 4,     -4,     25,      -25,   60,     -60,
                               88,   -88,   1000,   -1000,   1e30f, -1e30f};
  const int64_t n = static_cast<int64_t>(points.size());
  Array g = Array::f32(n, n), u = Array::f32(n, n), ours = Array::f32(n, n), ref = Array::f32(n, n);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      g.data()[i * n + j] = points[i];
      u.data()[i * n + j] = points[j];
    }
  const Activation situ{.kind = ActivationKind::kSitu};
  ops_.activate(g.view(), u.view(), situ, ours.view());
  ref_.activate(g.view(), u.view(), situ, ref.view());
  // e^-87 is where exp stops: below 2^-120 only the size matters.
  expect_close(ours.values(), ref.values(), 0x1p-118, 32 * kU, "situ");

  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [gate, up] : {std::pair{nan, 1.0f}, std::pair{1.0f, nan}}) {
    Array one = Array::f32(1, 1, {gate}), other = Array::f32(1, 1, {up}), y = Array::f32(1, 1);
    for (const ActivationKind kind : {ActivationKind::kSwiglu, ActivationKind::kSitu}) {
      ops_.activate(one.view(), other.view(), {.kind = kind}, y.view());
      EXPECT_TRUE(std::isnan(y.values()[0])) << name_of(kind);
    }
  }
}

TEST_P(CpuOps, EmbedRoute) {
  Array table = Array::random(generator_, 50, 100).as_bf16();
  const std::vector<int32_t> ids = {49, 0, 7, 7};
  Array ours = Array::f32(4, 100), expected = Array::f32(4, 100);
  ops_.embed(table.view(), ids.data(), ours.view());
  ref_.embed(table.view(), ids.data(), expected.view());
  EXPECT_EQ(ours.values(), expected.values());

  Array logits = Array::random(generator_, 70, 896), bias = Array::random(generator_, 1, 896, 0.1f);
  const RouterRule rule{.num_experts = 896, .top_k = 16, .scale = 2.5f};
  std::vector<int32_t> our_ids(70 * 16), ref_ids(70 * 16);
  std::vector<float> our_weights(70 * 16), ref_weights(70 * 16);
  ops_.route(logits.view(), bias.data(), rule, our_ids.data(), our_weights.data());
  ref_.route(logits.view(), bias.data(), rule, ref_ids.data(), ref_weights.data());
  EXPECT_EQ(our_ids, ref_ids);
  expect_close(our_weights, ref_weights, 0, 64 * kU, "router weights");
}

TEST_P(CpuOps, ShortConvolutionInPieces) {
  for (const int width : {2, 4, 8})
    for (const int64_t cols : {1, 100, 1536}) {
      Array u = Array::random(generator_, 9, cols), taps = Array::random(generator_, width, cols);
      Array state = Array::random(generator_, width - 1, cols), ref_state = state;
      Array ours = Array::f32(9, cols), expected = Array::f32(9, cols);
      for (const auto& [begin, count] : {std::pair{0, 1}, std::pair{1, 2}, std::pair{3, 6}})
        ops_.short_conv(u.view().row_slice(begin, count), taps.data(), width, state.view(),
                        ours.view().row_slice(begin, count));
      ref_.short_conv(u.view(), taps.data(), width, ref_state.view(), expected.view());
      expect_close(ours.values(), expected.values(), 32 * kU * largest(expected.values()), 0,
                   "short_conv");
      EXPECT_EQ(state.values(), ref_state.values());
    }
}

// The chunked form and the step-by-step form against the recurrence of "ref", from a state that is
// not zero. Gates: bounded; unbounded and gentle; unbounded and so strong that exp(-G) would
// overflow within a block.
TEST_P(CpuOps, KimiDeltaAttention) {
  struct Gate {
    std::optional<float> bound;
    float log_decay, decay_mean;
  };
  for (const int dim : {2, 32, 40, 128})
    for (const Gate& gate : {Gate{-5.0f, 0.5f, 0}, Gate{-5.0f, 2.7f, 2}, Gate{std::nullopt, 0, -3},
                             Gate{std::nullopt, 2.7f, 2}})
      for (const int64_t tokens : {1, 3, 4, 15, 16, 17, 63, 64, 65, 130}) {
        const KdaShape shape{
            .heads = 3, .head_dim = dim, .gate_lower_bound = gate.bound, .max_tokens = tokens};
        const int64_t width = shape.width();
        const auto random = [&](float scale, float mean = 0) {
          return Array::random(generator_, tokens, width, scale, mean);
        };
        Array q = random(1), k = random(1, 0.3f), v = random(1), r = random(1, gate.decay_mean);
        Array strength = Array::random(generator_, tokens, 3);
        Array bias = Array::random(generator_, 1, width, 0.3f);
        const std::vector<float> log_decay = {gate.log_decay, gate.log_decay / 2, -0.5f};
        Array state = Array::random(generator_, width, dim, 0.3f), ref_state = state;
        Array o = Array::f32(tokens, width), ref_o = Array::f32(tokens, width);
        const KdaInputs inputs{q.view(), k.view(), v.view(), r.view(), strength.view()};
        const KdaWeights weights{log_decay.data(), bias.data()};
        Buffer work = device_->allocate(ops_.kda_workspace_bytes(shape));
        Buffer ref_work = ref_device_->allocate(ref_.kda_workspace_bytes(shape));
        ops_.kda(shape, weights, inputs, state.data(), o.view(), work.data());
        ref_.kda(shape, weights, inputs, ref_state.data(), ref_o.view(), ref_work.data());
        const std::string what = "kda, D " + std::to_string(dim) + ", T " + std::to_string(tokens) +
                                 (gate.bound ? ", bounded" : ", unbounded");
        // About 2 D + 3 T products meet in an output; log decays of up to T |g| are summed in fp32.
        const double strongest = gate.bound ? 5 : std::exp(gate.log_decay) * (gate.decay_mean + 4);
        const double terms = 2.0 * dim + 3.0 * static_cast<double>(tokens) + 16 * strongest;
        expect_close(o.values(), ref_o.values(), 4 * kU * terms * (1 + largest(ref_o.values())), 0,
                     what);
        expect_close(state.values(), ref_state.values(),
                     4 * kU * terms * (1 + largest(ref_state.values())), 0, what + ", state");
      }
}

// Absorbed (few queries) and direct (many) form, behind a cache of any length.
TEST_P(CpuOps, LatentAttention) {
  const LatentAttentionShape shape{.heads = 3,
                                   .latent = 40,
                                   .key_dim = 24,
                                   .shared_key_dim = 8,
                                   .value_dim = 20,
                                   .max_queries = 140};
  Array kv_b = Array::random(generator_, 3 * 44, 40, 0.3f).as_bf16();
  const MatrixView weight = bf16_matrix(kv_b);
  const auto ours = ops_.load_latent_attention(weight, shape);
  const auto ref = ref_.load_latent_attention(weight, shape);
  Buffer work = device_->allocate(ours->workspace_bytes());
  for (const int64_t past : {0, 1, 100, 300})
    for (const int64_t tokens : {1, 3, 4, 5, 33, 140}) {
      Array cache = Array::random(generator_, past + tokens, 48).as_bf16();
      Array ref_cache = cache.as_f32();
      Array q = Array::random(generator_, tokens, 3 * 32);
      Array o = Array::f32(tokens, 60), expected = Array::f32(tokens, 60);
      ours->run(q.view(), cache.view(), o.view(), work.data());
      ref->run(q.view(), ref_cache.view(), expected.view(), nullptr);
      // A score is a sum of 40 + 32 products of size up to about 30; its error is that of exp.
      expect_close(o.values(), expected.values(), 30 * 72 * kU * (1 + largest(expected.values())),
                   0, "attention, past " + std::to_string(past) + ", T " + std::to_string(tokens));
    }
}

// Teeth: what the comparisons above would say to a query that saw one key too many.
TEST_P(CpuOps, LatentAttentionOverOneKeyMoreIsSeen) {
  const LatentAttentionShape shape{.heads = 1,
                                   .latent = 16,
                                   .key_dim = 16,
                                   .shared_key_dim = 16,
                                   .value_dim = 16,
                                   .max_queries = 8};
  Array kv_b = Array::random(generator_, 32, 16, 0.3f).as_bf16();
  const MatrixView weight = bf16_matrix(kv_b);
  const auto attention = ops_.load_latent_attention(weight, shape);
  Buffer work = device_->allocate(attention->workspace_bytes());
  Array cache = Array::random(generator_, 9, 32).as_bf16();
  Array q = Array::random(generator_, 8, 32), o = Array::f32(8, 16), shifted = Array::f32(8, 16);
  attention->run(q.view(), cache.view().row_slice(0, 8), o.view(), work.data());
  attention->run(q.view(), cache.view(), shifted.view(), work.data());
  for (int64_t t = 0; t < 8; ++t) {
    double difference = 0;
    for (int64_t i = 0; i < 16; ++i)
      difference = std::max<double>(
          difference, std::abs(o.values()[t * 16 + i] - shifted.values()[t * 16 + i]));
    EXPECT_GT(difference, 1e-3) << t;
  }
}

TEST_P(CpuOps, AnyNumberOfThreadsGivesTheSameBits) {
  const KdaShape shape{.heads = 7, .head_dim = 32, .gate_lower_bound = -5.0f, .max_tokens = 70};
  Array q = Array::random(generator_, 70, 224), r = Array::random(generator_, 70, 224);
  Array strength = Array::random(generator_, 70, 7), bias = Array::random(generator_, 1, 224);
  Array gain = Array::random(generator_, 1, 224);
  const std::vector<float> log_decay(7, 0.3f);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 5}) {
    const auto device = open_device(GetParam(), {.threads = threads});
    Buffer work = device->allocate(device->ops().kda_workspace_bytes(shape));
    Array state = Array::f32(224, 32), o = Array::f32(70, 224), y(DType::kBf16, 70, 224);
    device->ops().kda(shape, {log_decay.data(), bias.data()},
                      {q.view(), q.view(), q.view(), r.view(), strength.view()}, state.data(),
                      o.view(), work.data());
    device->ops().rmsnorm(o.view(), gain.data(), 1e-5f, y.view());
    results.push_back(y.values());
    for (const float value : state.values()) results.back().push_back(value);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

std::vector<std::string> cpu_levels() {
  std::vector<std::string> names;
  for (const std::string& name : available_devices())
    if (name.starts_with("cpu.")) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(, CpuOps, ::testing::ValuesIn(cpu_levels()), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name)
    if (c == '.') c = '_';
  return name;
});

}  // namespace
}  // namespace halfbyte

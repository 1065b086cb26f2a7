#include "moe/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <functional>
#include <random>

#include "base/memory.h"
#include "halfbyte/error.h"
#include "moe/bench_weights.h"
#include "moe/cost.h"
#include "moe/draw_routing.h"
#include "ops/ops.h"

namespace halfbyte {

namespace {

constexpr Activation kSitu{.kind = ActivationKind::kSitu};
constexpr Activation kSwiglu{.kind = ActivationKind::kSwiglu};
constexpr Activation kOai{.kind = ActivationKind::kSwigluClamped};

MoeShape shape_of(int hidden, int intermediate, int experts, int top_k,
                  const Activation& activation, WeightFormat weights = WeightFormat::kNvfp4) {
  return {.num_experts = experts,
          .top_k = top_k,
          .hidden = hidden,
          .intermediate = intermediate,
          .activation = activation,
          .weights = weights};
}

// "3584x3072x32x16" -> numbers; empty if it is not `count` positive numbers.
std::vector<int> parse_sizes(std::string_view text, size_t count) {
  std::vector<int> sizes;
  while (!text.empty()) {
    int size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc{} || size <= 0) return {};
    sizes.push_back(size);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (text.empty()) break;
    if (text.front() != 'x') return {};
    text.remove_prefix(1);
  }
  return sizes.size() == count ? sizes : std::vector<int>{};
}

double bytes_of_weight(WeightFormat format) {
  return format == WeightFormat::kF32        ? 4
         : format == WeightFormat::kBf16     ? 2
         : format == WeightFormat::kFp8Block ? 1
                                             : 9.0 / 16;
}

// What one call must move and compute.
struct Call {
  double bytes = 0, flops = 0;
};

// Repeats `prepare`, then the timed `run`, between readings of the probe.
BenchLine measure(Roof& roof, const BenchOptions& options, const std::function<Call()>& prepare,
                  const std::function<void()>& run) {
  BenchLine line;
  std::vector<double> seconds, bytes, flops, probes, peaks, of_probe, of_roof;
  prepare();
  run();  // first touch
  double before = roof.read_bandwidth();
  const double began = seconds_now();
  for (int i = 0; i < options.repetitions; ++i) {
    if (i >= 3 && seconds_now() - began > options.max_seconds) break;
    const Call call = prepare();
    const double start = seconds_now();
    run();
    const double time = seconds_now() - start;
    const double after = roof.read_bandwidth();
    const double probe = (before + after) / 2, peak = roof.peak_flops();
    before = after;
    seconds.push_back(time);
    bytes.push_back(call.bytes);
    flops.push_back(call.flops);
    probes.push_back(probe);
    peaks.push_back(peak);
    of_probe.push_back(call.bytes / time / probe);
    of_roof.push_back(std::max(call.bytes / probe, call.flops / peak) / time);
  }
  line.repetitions = static_cast<int>(seconds.size());
  line.seconds = spread_of(seconds);
  line.bytes = spread_of(bytes).median;
  line.flops = spread_of(flops).median;
  line.probes = spread_of(probes);
  line.peak = spread_of(peaks).median;
  line.of_probe = spread_of(of_probe).median;
  line.of_roof = spread_of(of_roof).median;
  return line;
}

}  // namespace

bool is_disturbed(const BenchLine& line) {
  constexpr double kSpread = 1.25, kShare = 1.03;
  return line.probes.p90 > kSpread * line.probes.p10 || line.of_probe > kShare ||
         line.of_roof > kShare;
}

BenchShape find_bench_shape(std::string_view name) {
  const std::array<BenchShape, 8> known = {{
      {"k3", shape_of(3584, 3072, 896, 16, kSitu)},
      {"k3-tp4", shape_of(3584, 768, 896, 16, kSitu)},
      {"k3-tp8", shape_of(3584, 384, 896, 16, kSitu)},
      {"k3-ep8", shape_of(3584, 3072, 112, 16, kSitu), 896},
      {"kimi-k2", shape_of(7168, 2048, 384, 8, kSwiglu)},
      {"kimi-linear", shape_of(2304, 1024, 256, 8, kSwiglu)},
      {"qwen3-30b", shape_of(2048, 768, 128, 8, kSwiglu)},
      {"gpt-oss", shape_of(2880, 2880, 128, 4, kOai, WeightFormat::kMxfp4)},
  }};
  for (const BenchShape& shape : known)
    if (shape.name == name) return shape;
  const std::vector<int> sizes = parse_sizes(name, 4);
  if (sizes.empty())
    throw Error(ErrorKind::kInput, "shape",
                fmt::format("\"{}\": expected k3, k3-tp4, k3-tp8, k3-ep8, kimi-k2, kimi-linear, "
                            "qwen3-30b, gpt-oss or LATENTxINNERxEXPERTSxTOP_K",
                            name));
  return {std::string(name), shape_of(sizes[0], sizes[1], sizes[2], sizes[3], kSwiglu)};
}

DenseShape find_dense_shape(std::string_view name) {
  if (name == "k3") return {"k3", 7168, 33792, WeightFormat::kBf16};
  if (name == "kimi-linear") return {"kimi-linear", 2304, 9216, WeightFormat::kBf16};
  const std::vector<int> sizes = parse_sizes(name, 2);
  if (sizes.empty())
    throw Error(ErrorKind::kInput, "shape",
                fmt::format("\"{}\": expected k3, kimi-linear or WIDTHxINNER", name));
  return {std::string(name), sizes[0], sizes[1], WeightFormat::kBf16};
}

std::vector<BenchLine> bench_moe(CpuDevice& device, const BenchShape& shape,
                                 const BenchOptions& options) {
  const int most_tokens = *std::max_element(options.tokens.begin(), options.tokens.end());
  const MoeShape& moe = shape.moe;
  const auto plan = plan_moe(moe, {.max_tokens = most_tokens}, device);
  const size_t expert_bytes = plan->layout().expert_bytes;
  const double widths = 4.0 * most_tokens * moe.hidden;  // x and y
  require_memory("bench moe",
                 static_cast<double>(plan->layout().packed_bytes + plan->workspace_bytes()) +
                     static_cast<double>(2 * expert_bytes + Roof::kProbeBytes) + widths,
                 "fewer --experts or --tokens");
  std::mt19937_64 random(1);

  // One expert packed, the others copies in memory of their own: reading cannot tell.
  Buffer packed = device.allocate(plan->layout().packed_bytes);
  auto* bytes = static_cast<std::byte*>(packed.data());
  plan->pack_expert(RandomExpert(moe, random).view(), {bytes, expert_bytes});
  for (int e = 1; e < moe.num_experts; ++e)
    std::memcpy(bytes + static_cast<size_t>(e) * expert_bytes, bytes, expert_bytes);
  const auto layer = plan->bind(packed.data(), packed.bytes());
  Buffer workspace = device.allocate(plan->workspace_bytes());
  Roof roof(device);

  std::vector<BenchLine> lines;
  for (int tokens : options.tokens) {
    const auto count = static_cast<size_t>(tokens) * static_cast<size_t>(moe.hidden);
    std::vector<uint16_t> x = random_activations(count, random), y(count);
    DrawnRouting routing;
    const auto redraw = [&] {
      routing = draw_routing(RoutingKind::kUniform, tokens, moe.top_k, shape.routed_experts(),
                             moe.num_experts, random);
      const MoeCost cost =
          moe_cost(moe, plan->layout(), routing.view(), DType::kBf16, DType::kBf16);
      return Call{cost.bytes, cost.flops};
    };
    const auto run = [&] {
      layer->run(routing.view(), TensorView::of(x.data(), DType::kBf16, tokens, moe.hidden),
                 TensorView::of(y.data(), DType::kBf16, tokens, moe.hidden), workspace.data());
      device.wait();
    };
    BenchLine line = measure(roof, options, redraw, run);
    line.what = "moe";
    line.shape = shape.name;
    line.weights = name_of(moe.weights);
    line.tokens = tokens;
    lines.push_back(line);
  }
  return lines;
}

std::vector<BenchLine> bench_dense(CpuDevice& device, const DenseShape& shape,
                                   const BenchOptions& options) {
  const double matrix_bytes =
      static_cast<double>(shape.width) * shape.inner * bytes_of_weight(shape.weights);
  require_memory("bench dense", 4 * matrix_bytes + static_cast<double>(Roof::kProbeBytes),
                 "a smaller --shape");
  std::mt19937_64 random(1);
  std::vector<std::unique_ptr<Linear>> matrices;
  for (int i = 0; i < 3; ++i) {
    const bool down = i == 2;
    const RandomMatrix matrix(shape.weights, down ? shape.width : shape.inner,
                              down ? shape.inner : shape.width, random);
    matrices.push_back(device.ops().load_linear(matrix.view()));
  }
  Roof roof(device);
  std::vector<BenchLine> lines;
  for (int tokens : options.tokens) {
    const auto rows = static_cast<size_t>(tokens);
    std::vector<uint16_t> x = random_activations(rows * static_cast<size_t>(shape.width), random);
    std::vector<uint16_t> h = random_activations(rows * static_cast<size_t>(shape.inner), random);
    std::vector<uint16_t> y(std::max(x.size(), h.size()));
    const auto run = [&] {
      for (const auto& matrix : matrices) {
        const bool down = matrix->in_features() != shape.width || matrix == matrices.back();
        matrix->run(
            TensorView::of(down ? h.data() : x.data(), DType::kBf16, tokens, matrix->in_features()),
            TensorView::of(y.data(), DType::kBf16, tokens, matrix->out_features()));
      }
      device.wait();
    };
    Call call;
    for (const auto& matrix : matrices) {
      call.bytes +=
          static_cast<double>(matrix->weight_bytes()) +
          2.0 * tokens * static_cast<double>(matrix->in_features() + matrix->out_features());
      call.flops += 2.0 * tokens * static_cast<double>(matrix->in_features()) *
                    static_cast<double>(matrix->out_features());
    }
    BenchLine line = measure(
        roof, options, [&] { return call; }, run);
    line.what = "dense";
    line.shape = shape.name;
    line.weights = name_of(shape.weights);
    line.tokens = tokens;
    lines.push_back(line);
  }
  return lines;
}

}  // namespace halfbyte

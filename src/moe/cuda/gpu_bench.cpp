#include "moe/gpu_bench.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "cuda/check.h"
#include "cuda/cuda_device.h"
#include "cuda/graph.h"
#include "formats/bf16.h"
#include "halfbyte/error.h"
#include "moe/bench_weights.h"
#include "moe/cost.h"

namespace halfbyte {
namespace {

constexpr int kDifferentExperts = 2;  // the others are copies of these
constexpr double kLayerBytes = 48e9;  // of all layers in memory, at most

cudaStream_t stream_of(const CudaDevice& device) {
  return static_cast<cudaStream_t>(device.stream());
}

// A layer's weights in device memory, `count` times over.
class Layers {
 public:
  Layers(CudaDevice& device, const MoePlan& plan, int count) {
    const size_t expert_bytes = plan.layout().expert_bytes;
    std::mt19937_64 random(1);
    std::vector<std::byte> packed(expert_bytes);
    for (int e = 0; e < kDifferentExperts; ++e) {
      plan.pack_expert(RandomExpert(plan.shape(), random).view(), packed);
      experts_.push_back(device.allocate(expert_bytes));
      device.copy_to_device(experts_.back().data(), packed.data(), expert_bytes);
    }
    for (int i = 0; i < count; ++i) {
      Buffer layer = device.allocate(plan.layout().packed_bytes);
      for (int e = 0; e < plan.shape().num_experts; ++e)
        HB_CUDA(cudaMemcpyAsync(
            static_cast<std::byte*>(layer.data()) + static_cast<size_t>(e) * expert_bytes,
            experts_[static_cast<size_t>(e % kDifferentExperts)].data(), expert_bytes,
            cudaMemcpyDeviceToDevice, stream_of(device)));
      layers_.push_back(plan.bind(layer.data(), layer.bytes()));
      packed_.push_back(std::move(layer));
    }
    device.wait();
  }
  const MoeLayer& operator[](int i) const {
    return *layers_[static_cast<size_t>(i) % layers_.size()];
  }

 private:
  std::vector<Buffer> experts_, packed_;
  std::vector<std::unique_ptr<MoeLayer>> layers_;
};

// Mean number of experts with a token, for independent choices.
double expected_experts(const BenchShape& shape, RoutingKind routing, int tokens) {
  if (routing == RoutingKind::kOne) return 1;
  const double share = std::min(1.0, static_cast<double>(shape.moe.top_k) / shape.routed_experts());
  return std::max(1.0, shape.moe.num_experts * (1 - std::pow(1 - share, tokens)));
}

// How many routings are drawn at least: they differ the less, and take the longer, the more tokens
// there are.
int different_routings(int tokens) { return tokens <= 64 ? 8 : tokens <= 1024 ? 4 : 2; }

bool is_plausible(CudaDevice& device, const Buffer& y, size_t elements) {
  std::vector<uint16_t> values(elements);
  device.copy_to_host(values.data(), y.data(), elements * 2);
  bool any = false;
  for (uint16_t value : values) {
    if (!std::isfinite(bf16_to_float(value))) return false;
    any = any || (value & 0x7FFF) != 0;
  }
  return any;
}

int round_up(int value, int to) { return (value + to - 1) / to * to; }

// A routing in device memory.
struct DeviceRouting {
  Buffer ids, weights;
  Routing view;

  DeviceRouting(CudaDevice& device, const DrawnRouting& drawn)
      : ids(device.allocate(drawn.ids.size() * sizeof(int32_t))),
        weights(device.allocate(drawn.weights.size() * sizeof(float))),
        view{static_cast<const int32_t*>(ids.data()), static_cast<const float*>(weights.data()),
             drawn.num_tokens} {
    device.copy_to_device(ids.data(), drawn.ids.data(), ids.bytes());
    device.copy_to_device(weights.data(), drawn.weights.data(), weights.bytes());
  }
};

}  // namespace

void bench_moe_gpu(Device& any_device, const BenchShape& shape, const GpuBenchOptions& options,
                   const GpuRoof& roof,
                   const std::function<void(const GpuBenchSetup&, const GpuBenchLine&)>& report) {
  CudaDevice& device = dynamic_cast<CudaDevice&>(any_device);
  device.make_current();
  const Board board(device.index());
  const MoeShape& moe = shape.moe;
  const auto [fewest, most] = std::minmax_element(options.tokens.begin(), options.tokens.end());
  const auto plan = plan_moe(moe, {.max_tokens = *most, .num_global_experts = shape.all_experts},
                             device, options.backend);
  const auto expert_bytes = static_cast<double>(plan->layout().expert_bytes);
  const auto layer_bytes = static_cast<double>(plan->layout().packed_bytes);

  // Three times L2 must pass before a layer is used again.
  int l2_bytes = 0;
  HB_CUDA(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device.index()));
  const double wanted = 3.0 * l2_bytes;
  const auto times_touched = [&](int tokens) {
    return wanted / (expected_experts(shape, options.routing, tokens) * expert_bytes);
  };
  const double most_layers = std::max(1.0, std::floor(kLayerBytes / layer_bytes));
  const double wanted_layers =  // kOne goes through all experts of a layer
      options.routing == RoutingKind::kOne ? wanted / layer_bytes : times_touched(*fewest);
  const int num_layers = static_cast<int>(std::clamp(std::ceil(wanted_layers), 1.0, most_layers));
  const Layers layers(device, *plan, num_layers);
  const Buffer workspace = device.allocate(std::max<size_t>(plan->workspace_bytes(), 1));
  const size_t most_elements = static_cast<size_t>(*most) * static_cast<size_t>(moe.hidden);
  const Buffer x = device.allocate(most_elements * 2), y = device.allocate(most_elements * 2);
  fill_random_bf16(x.data(), most_elements, 3, stream_of(device));

  const GpuBenchSetup setup{plan->describe(), plan->layout().name, num_layers};
  std::mt19937_64 random(2);
  for (int tokens : options.tokens) {
    // Routings, a whole number of graphs.
    int calls = std::max(different_routings(tokens),
                         static_cast<int>(std::ceil(times_touched(tokens))) + 1);
    if (times_touched(tokens) > 1) calls = round_up(calls, num_layers);
    calls = round_up(calls, options.calls_per_graph);
    GpuBenchLine line;
    line.tokens = tokens;
    std::vector<DeviceRouting> routings;
    const int first_expert = static_cast<int>(random() % static_cast<uint64_t>(moe.num_experts));
    for (int i = 0; i < calls; ++i) {
      DrawnRouting drawn = draw_routing(options.routing, tokens, moe.top_k, shape.routed_experts(),
                                        moe.num_experts, random);
      if (options.routing == RoutingKind::kOne)  // another one each time
        std::fill(drawn.ids.begin(), drawn.ids.end(), (first_expert + i) % moe.num_experts);
      const MoeCost cost = moe_cost(moe, plan->layout(), drawn.view(), DType::kBf16, DType::kBf16);
      line.active_experts += static_cast<double>(cost.active_experts);
      line.active_slots += static_cast<double>(cost.active_slots);
      line.bytes += cost.bytes;
      line.flops += cost.flops;
      routings.emplace_back(device, drawn);
    }
    for (double* sum : {&line.active_experts, &line.active_slots, &line.bytes, &line.flops})
      *sum /= calls;
    const TensorView x_view = TensorView::of(x.data(), DType::kBf16, tokens, moe.hidden),
                     y_view = TensorView::of(y.data(), DType::kBf16, tokens, moe.hidden);
    const auto run = [&](int call) {
      layers[call].run(routings[static_cast<size_t>(call)].view, x_view, y_view, workspace.data());
    };

    // Once plainly, so that kernels are loaded; then captured, if that is possible.
    run(0);
    device.wait();
    line.plausible =
        is_plausible(device, y, static_cast<size_t>(tokens) * static_cast<size_t>(moe.hidden));
    std::vector<CudaGraph> graphs;
    try {
      for (int call = 0; call < calls; call += options.calls_per_graph)
        graphs.emplace_back(stream_of(device), [&] {
          for (int i = 0; i < options.calls_per_graph; ++i) run(call + i);
        });
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnsupported) throw;
      graphs.clear();
    }
    line.captured = !graphs.empty();
    const int calls_at_once = line.captured ? options.calls_per_graph : 1;
    line.timing = time_calls(stream_of(device), board,
                             {.cycle = calls / calls_at_once, .sustained_seconds = options.seconds},
                             [&](int i) {
                               if (line.captured)
                                 graphs[static_cast<size_t>(i)].launch(stream_of(device));
                               else
                                 run(i);
                             });
    line.timing.burst /= calls_at_once;
    line.timing.sustained /= calls_at_once;
    line.burst_of_roof = roof.burst_seconds(line.bytes, line.flops) / line.timing.burst;
    if (line.timing.sustained > 0)
      line.sustained_of_roof =
          roof.sustained_seconds(line.bytes, line.flops) / line.timing.sustained;
    report(setup, line);
  }
}

}  // namespace halfbyte

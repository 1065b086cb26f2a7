// Timing the MoE operation on a GPU against the roof of the machine.
//
// A call is captured in a CUDA graph and replayed; every graph has a routing of its own, and as
// many layers lie in memory as it takes for a call to find none of its weights in L2 from the calls
// before. Work that cannot be captured (backend "dequant") is queued as it is.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cuda/roof.h"
#include "moe/bench.h"
#include "moe/draw_routing.h"

namespace halfbyte {

struct GpuBenchOptions {
  std::vector<int> tokens = {1, 8, 64};
  std::string backend = "auto";
  RoutingKind routing = RoutingKind::kUniform;
  double seconds = 2;       // of the sustained measurement of a line; 0: bursts only
  int calls_per_graph = 1;  // more: as in a model, whose layers share one graph
};

// One line of a table: means over the routings that were replayed.
struct GpuBenchLine {
  int tokens = 0;
  double active_experts = 0, active_slots = 0;
  double bytes = 0, flops = 0;                      // of one call (moe/cost.h)
  Timing timing;                                    // of one call
  double burst_of_roof = 0, sustained_of_roof = 0;  // max(bytes/read, flops/dense) / seconds
  bool captured = false;
  bool plausible = false;  // y is finite and not zero everywhere: the calls did something
};

// What all lines share.
struct GpuBenchSetup {
  std::string plan, layout;  // MoePlan::describe(), MoeLayout::name
  int layers = 0;            // in memory
};

// Measures a line for each of options.tokens and hands it to `report` when it is done. `device` is
// a CUDA device.
void bench_moe_gpu(Device& device, const BenchShape& shape, const GpuBenchOptions& options,
                   const GpuRoof& roof,
                   const std::function<void(const GpuBenchSetup&, const GpuBenchLine&)>& report);

}  // namespace halfbyte

// Timing the MoE operation, and the dense product beside it, against the roof of the machine.
//
// Weights are random and larger than the caches; each repetition draws a new routing and stands
// between two readings of the probe.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "halfbyte/moe.h"
#include "simd/roof.h"

namespace halfbyte {

struct BenchShape {
  std::string name;
  MoeShape moe;
  int all_experts = 0;  // among which tokens choose, if more than moe.num_experts are here

  int routed_experts() const { return std::max(all_experts, moe.num_experts); }
};

// "k3" (a layer of Kimi K3), "k3-tp4" and "k3-tp8" (a quarter, an eighth of the width of each of
// its experts), "k3-ep8" (an eighth of its experts), "kimi-k2", "kimi-linear", "qwen3-30b",
// "gpt-oss", or LxFxExK (docs/architecture.md). Throws Error{kInput}.
BenchShape find_bench_shape(std::string_view name);

struct BenchOptions {
  std::vector<int> tokens = {1, 8, 64};
  int repetitions = 15;
  double max_seconds = 10;  // for one line: fewer repetitions of what is slow, but at least three
};

// One line of a table.
struct BenchLine {
  std::string what;  // "moe" or "dense"
  std::string shape, weights;
  int tokens = 0;
  int repetitions = 0;
  Spread seconds;
  double bytes = 0, flops = 0;  // of one call, medians
  Spread probes;                // bytes a second, of the readings beside the calls
  double peak = 0;              // operations a second
  double of_probe = 0;          // median of bandwidth / probe, each call with its own reading
  double of_roof = 0;           // median of max(bytes/probe, flops/peak) / seconds
};

// Whether other work on the machine has spoilt a line: the probe varied by more than a quarter, or
// a share is above 103 %, so that the limits were measured at other times than the calls.
bool is_disturbed(const BenchLine& line);

// `shape.moe.num_experts` experts are held in memory. Throws Error{kResource} if there is too
// little.
std::vector<BenchLine> bench_moe(CpuDevice& device, const BenchShape& shape,
                                 const BenchOptions& options);

// The matrices of a gated MLP with BF16, FP8, NVFP4 or MXFP4 weights: two of (inner, width), one of
// (width, inner), one after the other.
struct DenseShape {
  std::string name;
  int width = 0, inner = 0;
  WeightFormat weights = WeightFormat::kBf16;
};
DenseShape find_dense_shape(std::string_view name);  // "k3", "kimi-linear" or WxI
std::vector<BenchLine> bench_dense(CpuDevice& device, const DenseShape& shape,
                                   const BenchOptions& options);

}  // namespace halfbyte

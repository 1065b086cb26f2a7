// What the parts of `halfbyte bench` share: its options, and the measurements on a GPU.
#pragma once

#include <string>

#include "halfbyte/device.h"
#include "moe/bench.h"

namespace halfbyte {

struct BenchArguments {
  std::string what, shape = "k3", device = "cpu", weights, activation;
  std::string tokens = "1,8,64";  // becomes options.tokens
  BenchOptions options;
  int experts = 0;
  int threads = 0;
  bool json = false;

  // Of a GPU, where shape, backend and routing may be lists, with commas.
  std::string backend = "auto", routing = "uniform", commit, records;
  double seconds = 2;
  int calls_per_graph = 1;
};

// The shape with what --weights and --activation change.
BenchShape bench_shape(const BenchArguments& arguments);

// One line about a shape.
std::string describe(const BenchShape& shape);

// `bench roof` and `bench moe` on a CUDA device.
void run_gpu_bench(const BenchArguments& arguments, Device& device);

}  // namespace halfbyte

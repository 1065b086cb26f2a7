// What this machine can do at most, measured now: the roof under which kernels are judged.
//
// Other work on the machine changes both limits from second to second, so a benchmark measures them
// between its own repetitions, in the same threads, and compares with those.
#pragma once

#include <vector>

#include "simd/kernels.h"

namespace halfbyte {

class Roof {
 public:
  explicit Roof(CpuDevice& device);  // allocates kProbeBytes

  // Bytes a second that all threads together read from memory, each its own part of a buffer much
  // larger than the caches, in ascending order.
  double read_bandwidth();
  // Operations a second of all threads in registers, with the instruction that the kernels use for
  // BF16 activations.
  double peak_flops();

  static constexpr size_t kProbeBytes = size_t{384} << 20;

 private:
  CpuDevice& device_;
  const Kernels& kernels_;
  Buffer buffer_;
};

// Of repeated measurements.
struct Spread {
  double p10 = 0, median = 0, p90 = 0;
};
Spread spread_of(std::vector<double> values);  // at least one value

double seconds_now();  // of a steady clock

}  // namespace halfbyte

// What a GPU can do at most, measured now: the roof under which its kernels are judged.
//
//   read   bytes a second that a plain kernel reads of 8 GiB, 16 bytes a load, eight loads in
//   flight
//          a thread
//   dense  operations a second of cuBLASLt, BF16 (8192, 8192) x (8192, 8192), fp32 accumulation,
//   the
//          fastest of the algorithms that it proposes
// All data are random: power, and with it the clock, depends on them.
#pragma once

#include <string>

#include "cuda/timing.h"
#include "halfbyte/device.h"

namespace halfbyte {

struct Rate {
  double burst = 0, sustained = 0;  // a second
  BoardState board;                 // sustained
};

struct GpuRoof {
  Rate read;   // bytes
  Rate dense;  // operations; 0 without cuBLASLt
  std::string why_no_dense;

  // Seconds that `bytes` or `flops` take at least.
  double burst_seconds(double bytes, double flops) const;
  double sustained_seconds(double bytes, double flops) const;
};

// `device` is a CUDA device. Takes about three times `sustained_seconds`, and 8.6 GB of its memory.
GpuRoof measure_gpu_roof(Device& device, double sustained_seconds);

// Random numbers in device memory: bits, or BF16 values of about N(0, 1). Queues.
void fill_random_bits(void* data, size_t bytes, uint32_t seed, cudaStream_t stream);
void fill_random_bf16(void* data, size_t count, uint32_t seed, cudaStream_t stream);

}  // namespace halfbyte

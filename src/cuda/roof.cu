#include <cuda_bf16.h>

#include <algorithm>

#include "cuda/check.h"
#include "cuda/cublaslt.h"
#include "cuda/cuda_device.h"
#include "cuda/graph.h"
#include "cuda/roof.h"
#include "halfbyte/error.h"

namespace halfbyte {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 8;  // of 16 bytes, in flight a thread

// A counter's hash (the finaliser of MurmurHash3).
__device__ uint32_t hash(uint64_t index, uint32_t seed) {
  uint32_t x = static_cast<uint32_t>(index) ^ (static_cast<uint32_t>(index >> 32) * 0x9E3779B9u) ^
               (seed * 0x85EBCA6Bu);
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

__global__ void fill_bits_kernel(uint32_t* words, size_t count, uint32_t seed) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    words[i] = hash(i, seed);
}

// The sum of four uniform bytes, centred and scaled to variance 1.
__global__ void fill_bf16_kernel(__nv_bfloat16* values, size_t count, uint32_t seed) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint32_t x = hash(i, seed);
    const int sum = static_cast<int>((x & 255) + ((x >> 8) & 255) + ((x >> 16) & 255) + (x >> 24));
    values[i] = __float2bfloat16((static_cast<float>(sum) - 510.0f) * (1.0f / 147.8f));
  }
}

__device__ uint4 load_once(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// `count` is a multiple of kThreads * kLoads.
__global__ void __launch_bounds__(kThreads)
    read_kernel(const uint4* data, size_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const size_t piece = size_t{kThreads} * kLoads;
  for (size_t at = blockIdx.x * piece; at < count; at += gridDim.x * piece) {
    uint4 v[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) v[i] = load_once(data + at + i * kThreads + threadIdx.x);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  }
  if (sum == 0x12345678u) *sink = sum;  // so that the loads are not dropped
}

cudaStream_t stream_of(const CudaDevice& device) {
  return static_cast<cudaStream_t>(device.stream());
}

Rate rate_of(const Timing& timing, double work) {
  return {work / timing.burst, timing.sustained > 0 ? work / timing.sustained : 0, timing.board};
}

Rate measure_read(CudaDevice& device, const Board& board, double seconds) {
  constexpr size_t kBytes = size_t{8} << 30;
  static_assert(kBytes % (16 * kThreads * kLoads) == 0);
  const Buffer buffer = device.allocate(kBytes + 16);
  auto* sink = reinterpret_cast<uint32_t*>(static_cast<char*>(buffer.data()) + kBytes);
  fill_random_bits(buffer.data(), kBytes, 1, stream_of(device));
  const int blocks = device.num_sms() * (2048 / kThreads);
  return rate_of(time_calls(stream_of(device), board, {.sustained_seconds = seconds},
                            [&](int) {
                              read_kernel<<<blocks, kThreads, 0, stream_of(device)>>>(
                                  static_cast<const uint4*>(buffer.data()), kBytes / 16, sink);
                              HB_CUDA(cudaGetLastError());
                            }),
                 static_cast<double>(kBytes));
}

Rate measure_dense(CudaDevice& device, const Board& board, double seconds) {
  constexpr int64_t kSize = 8192;
  constexpr size_t kCount = size_t{kSize} * kSize, kWorkspace = size_t{64} << 20;
  const CublasProduct product({kSize, kSize, kSize, DType::kBf16}, kWorkspace);
  const Buffer a = device.allocate(kCount * 2), w = device.allocate(kCount * 2),
               c = device.allocate(kCount * 2), workspace = device.allocate(kWorkspace);
  const cudaStream_t stream = stream_of(device);
  fill_random_bf16(a.data(), kCount, 1, stream);
  fill_random_bf16(w.data(), kCount, 2, stream);
  const auto run = [&](int algorithm) {
    product.run(a.data(), w.data(), c.data(), workspace.data(), stream, algorithm);
  };
  int best = 0;
  double best_seconds = 1e9;
  CudaEvent begin, end;
  for (int algorithm = 0; algorithm < product.num_algorithms(); ++algorithm) {
    run(algorithm);
    begin.record(stream);
    for (int i = 0; i < 3; ++i) run(algorithm);
    end.record(stream);
    end.wait();
    if (const double taken = end.seconds_since(begin); taken < best_seconds) {
      best = algorithm;
      best_seconds = taken;
    }
  }
  const double flops = 2.0 * kSize * kSize * kSize;
  return rate_of(time_calls(stream, board, {.sustained_seconds = seconds}, [&](int) { run(best); }),
                 flops);
}

double seconds_of(double bytes, double read, double flops, double dense) {
  return std::max(bytes / read, dense > 0 ? flops / dense : 0);
}

int blocks_for(size_t count) {
  return static_cast<int>(std::min<size_t>((count + kThreads - 1) / kThreads, 132 * 64));
}

}  // namespace

double GpuRoof::burst_seconds(double bytes, double flops) const {
  return seconds_of(bytes, read.burst, flops, dense.burst);
}

double GpuRoof::sustained_seconds(double bytes, double flops) const {
  return seconds_of(bytes, read.sustained, flops, dense.sustained);
}

GpuRoof measure_gpu_roof(Device& device, double sustained_seconds) {
  CudaDevice& cuda = dynamic_cast<CudaDevice&>(device);
  cuda.make_current();
  const Board board(cuda.index());
  GpuRoof roof;
  roof.read = measure_read(cuda, board, sustained_seconds);
  try {
    roof.dense = measure_dense(cuda, board, sustained_seconds);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    roof.why_no_dense = error.what();
  }
  return roof;
}

void fill_random_bits(void* data, size_t bytes, uint32_t seed, cudaStream_t stream) {
  const size_t count = bytes / 4;
  if (count == 0) return;
  fill_bits_kernel<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<uint32_t*>(data), count,
                                                               seed);
  HB_CUDA(cudaGetLastError());
}

void fill_random_bf16(void* data, size_t count, uint32_t seed, cudaStream_t stream) {
  if (count == 0) return;
  fill_bf16_kernel<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<__nv_bfloat16*>(data),
                                                               count, seed);
  HB_CUDA(cudaGetLastError());
}

}  // namespace halfbyte

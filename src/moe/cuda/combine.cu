// y[t] = sum of the slots of token t, in fp32, in the order of the slots; 0 if it has none.
#include "moe/cuda/kernels.h"
#include "moe/cuda/launch.h"
#include "moe/cuda/output.cuh"

namespace halfbyte::hopper {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 8;  // of a thread

__device__ __forceinline__ void add_slot(float (&sum)[kColumns], const float* slot) {
  const float4 a = __ldcs(reinterpret_cast<const float4*>(slot));
  const float4 b = __ldcs(reinterpret_cast<const float4*>(slot) + 1);
  const float v[kColumns] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < kColumns; ++i) sum[i] += v[i];
}
__device__ __forceinline__ void add_slot(float (&sum)[kColumns], const __nv_bfloat16* slot) {
  const uint4 v = __ldcs(reinterpret_cast<const uint4*>(slot));
  const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[2 * i] += __uint_as_float(pairs[i] << 16);
    sum[2 * i + 1] += __uint_as_float(pairs[i] & 0xFFFF0000u);
  }
}

template <class Slot>
__global__ void __launch_bounds__(kThreads) combine_kernel(const __grid_constant__ Call call) {
  const Sizes& sizes = call.sizes;
  const int token = static_cast<int>(blockIdx.x);
  const int column =
      (static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x)) * kColumns;
  wait_for_previous_kernel();
  if (column < sizes.hidden) {
    float sum[kColumns] = {};
    const int64_t first = static_cast<int64_t>(token) * sizes.top_k;
#pragma unroll 4
    for (int k = 0; k < sizes.top_k; ++k) {
      const int id = call.topk_ids[first + k];
      if (id >= 0 && id < sizes.num_experts && call.topk_weights[first + k] != 0)
        add_slot(sum, static_cast<const Slot*>(call.slots) + (first + k) * sizes.hidden + column);
    }
    const int64_t at = token * call.y_stride + column;
    if (call.y_is_f32) {
      auto* y = static_cast<float4*>(static_cast<void*>(static_cast<float*>(call.y) + at));
      y[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
      y[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
    } else {
      __nv_bfloat162 pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(call.y) + at) =
          *reinterpret_cast<const uint4*>(pairs);
    }
  }
  let_next_kernel_start();
}

}  // namespace

cudaError_t launch_combine(const Call& call, const LaunchOptions& options) {
  const dim3 grid(static_cast<unsigned>(call.num_tokens),
                  static_cast<unsigned>(ceil_div(call.sizes.hidden, kThreads * kColumns)));
  return call.slots_are_f32
             ? launch_overlapped(combine_kernel<float>, grid, kThreads, 0, options.stream, call)
             : launch_overlapped(combine_kernel<__nv_bfloat16>, grid, kThreads, 0, options.stream,
                                 call);
}

}  // namespace halfbyte::hopper

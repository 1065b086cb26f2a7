// Slots in the order of their experts, and each expert's rows cut into chunks: one block, by
// counting.
//
//   count[e] -> first row and first chunk of each expert (prefix sums) -> chunks; rows
//
// The order of an expert's rows is whatever the atomics give; no result may depend on it.
#include "moe/cuda/kernels.h"
#include "moe/cuda/launch.h"
#include "moe/cuda/ptx.cuh"

namespace halfbyte::hopper {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

// Exclusive prefix sums over the block of two counts a thread.
__device__ int2 prefix_sums(int2 value, int2& total) {
  __shared__ int2 warp_sums[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto add_up = [lane](int2 v) {
    for (int step = 1; step < 32; step *= 2) {
      const int x = __shfl_up_sync(~0u, v.x, step), y = __shfl_up_sync(~0u, v.y, step);
      if (lane >= step) {
        v.x += x;
        v.y += y;
      }
    }
    return v;
  };
  const int2 within = add_up(value);
  if (lane == 31) warp_sums[warp] = within;
  __syncthreads();
  if (warp == 0) warp_sums[lane] = add_up(warp_sums[lane]);
  __syncthreads();
  const int2 before = warp == 0 ? make_int2(0, 0) : warp_sums[warp - 1];
  total = warp_sums[kWarps - 1];
  return make_int2(before.x + within.x - value.x, before.y + within.y - value.y);
}

__global__ void __launch_bounds__(kThreads, 1)
    route_kernel(const __grid_constant__ Call call, int max_rows) {
  extern __shared__ int counts[];  // [E], then where the next row of an expert goes
  const Sizes& sizes = call.sizes;
  const int num_slots = call.num_tokens * sizes.top_k;
  for (int e = threadIdx.x; e < sizes.num_experts; e += kThreads) counts[e] = 0;
  wait_for_previous_kernel();
  __syncthreads();
  const auto expert_of = [&](int slot, float& weight) {
    const int id = call.topk_ids[slot];
    weight = call.topk_weights[slot];
    return id >= 0 && id < sizes.num_experts && weight != 0 ? id : -1;
  };
  // The first slot of a thread stays in registers: small calls have no other.
  float first_weight = 0;
  int first_expert = -1;
  if (static_cast<int>(threadIdx.x) < num_slots)
    first_expert = expert_of(threadIdx.x, first_weight);
  if (first_expert >= 0) atomicAdd(&counts[first_expert], 1);
  for (int slot = threadIdx.x + kThreads; slot < num_slots; slot += kThreads) {
    float weight;
    const int e = expert_of(slot, weight);
    if (e >= 0) atomicAdd(&counts[e], 1);
  }
  __syncthreads();

  // Each thread cares for a stretch of experts.
  const int stretch = (sizes.num_experts + kThreads - 1) / kThreads;
  const int begin = threadIdx.x * stretch, end = min(begin + stretch, sizes.num_experts);
  int2 mine = make_int2(0, 0);
  for (int e = begin; e < end; ++e) {
    mine.x += counts[e];
    mine.y += (counts[e] + max_rows - 1) / max_rows;
  }
  int2 total;
  int2 at = prefix_sums(mine, total);
  for (int e = begin; e < end; ++e) {
    const int rows = counts[e], chunks = (rows + max_rows - 1) / max_rows;
    int row = at.x;
    for (int i = 0; i < chunks; ++i) {
      const int num_rows = rows / chunks + (i < rows % chunks);
      call.lists.chunks[at.y + i] = {e, row, num_rows, chunks == 1};
      row += num_rows;
    }
    counts[e] = at.x;
    at.x += rows;
    at.y += chunks;
  }
  if (threadIdx.x == 0) *call.lists.num_chunks = total.y;
  __syncthreads();

  const auto place = [&](int slot, int e, float weight) {
    if (e < 0) return;
    const int row = atomicAdd(&counts[e], 1);
    call.lists.row_slots[row] = slot;
    call.lists.row_weights[row] = weight;
  };
  place(threadIdx.x, first_expert, first_weight);
  for (int slot = threadIdx.x + kThreads; slot < num_slots; slot += kThreads) {
    float weight;
    const int e = expert_of(slot, weight);
    place(slot, e, weight);
  }
  let_next_kernel_start();
}

}  // namespace

bool route_fits(const Sizes& sizes) { return sizes.num_experts <= 16384; }

cudaError_t launch_route(const Call& call, int max_chunk_rows, const LaunchOptions& options) {
  const size_t shared = static_cast<size_t>(call.sizes.num_experts) * sizeof(int);
  const cudaError_t error = cudaFuncSetAttribute(
      route_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  if (error != cudaSuccess) return error;
  return launch_overlapped(route_kernel, dim3(1), kThreads, shared, options.stream, call,
                           max_chunk_rows);
}

}  // namespace halfbyte::hopper

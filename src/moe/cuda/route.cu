// Slots in the order of their experts, and each expert's rows cut into chunks, by counting: one
// block, or a cluster of them with a stretch of the slots each.
//
//   count[e] -> first row and first chunk of each expert (prefix sums) -> chunks; rows
//
// Every block does the prefix sums, over the counts of all; the first one writes the chunks.
// The order of an expert's rows is whatever the atomics give; no result may depend on it.
#include <cooperative_groups.h>

#include "moe/cuda/kernels.h"
#include "moe/cuda/launch.h"
#include "moe/cuda/ptx.cuh"

namespace halfbyte::hopper {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kCluster = 8;
constexpr int kBatch = 8;  // slots of a thread that are read together

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

// The slots first, first + kThreads, ...; expert -1: none, or not to be computed.
struct Batch {
  int experts[kBatch];
  float weights[kBatch];

  __device__ __forceinline__ void load(const Call& call, int first, int end) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int slot = first + i * kThreads;
      experts[i] = slot < end ? call.topk_ids[slot] : -1;
      weights[i] = slot < end ? call.topk_weights[slot] : 0;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (experts[i] < 0 || experts[i] >= call.sizes.num_experts || weights[i] == 0)
        experts[i] = -1;
  }
};

__global__ void __launch_bounds__(kThreads, 1)
    route_kernel(const __grid_constant__ Call call, int max_rows) {
  extern __shared__ int counts[];  // [E] of this block's slots
  const Sizes& sizes = call.sizes;
  // [E]: first, all rows of the expert; then where this block's next slot of it goes.
  int* const next_row = counts + sizes.num_experts;
  const auto cluster = cooperative_groups::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const int num_blocks = static_cast<int>(cluster.num_blocks());
  for (int e = threadIdx.x; e < sizes.num_experts; e += kThreads) counts[e] = 0;
  wait_for_previous_kernel();
  // NOTE: only now: `permute` reads x and writes its workspace without waiting itself.
  let_next_kernel_start();
  __syncthreads();
  const int num_slots = call.num_tokens * sizes.top_k;
  const int share = (num_slots + num_blocks - 1) / num_blocks;
  const int end = min(num_slots, (rank + 1) * share);
  const int first_slot = rank * share + static_cast<int>(threadIdx.x);

  const auto count = [&](const Batch& batch) {
#pragma unroll
    for (int e : batch.experts)
      if (e >= 0) atomicAdd(&counts[e], 1);
  };
  // The first batch stays in registers: most calls have no other.
  Batch first;
  first.load(call, first_slot, end);
  count(first);
  for (int slot = first_slot + kBatch * kThreads; slot < end; slot += kBatch * kThreads) {
    Batch batch;
    batch.load(call, slot, end);
    count(batch);
  }
  cluster.sync();

  // Each thread cares for a stretch of experts.
  const auto count_before = [&](int e, int block) {
    int n = 0;
    for (int b = 0; b < block; ++b) n += cluster.map_shared_rank(counts, b)[e];
    return n;
  };
  const int stretch = (sizes.num_experts + kThreads - 1) / kThreads;
  const int begin_expert = threadIdx.x * stretch;
  const int end_expert = min(begin_expert + stretch, sizes.num_experts);
  int2 mine = make_int2(0, 0);
  for (int e = begin_expert; e < end_expert; ++e) {
    const int rows = count_before(e, num_blocks);
    next_row[e] = rows;
    mine.x += rows;
    mine.y += (rows + max_rows - 1) / max_rows;
  }
  int2 total;
  int2 at = prefix_sums(mine, total);
  for (int e = begin_expert; e < end_expert; ++e) {
    const int rows = next_row[e], chunks = (rows + max_rows - 1) / max_rows;
    int row = at.x;
    for (int i = 0; i < chunks; ++i) {
      const int num_rows = rows / chunks + (i < rows % chunks);
      if (rank == 0) call.lists.chunks[at.y + i] = {e, row, num_rows, chunks == 1};
      row += num_rows;
    }
    next_row[e] = at.x + count_before(e, rank);
    at.x += rows;
    at.y += chunks;
  }
  if (rank == 0 && threadIdx.x == 0) *call.lists.num_chunks = total.y;
  cluster.sync();  // before a block leaves whose counts others read

  const auto place = [&](const Batch& batch, int slot) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (batch.experts[i] < 0) continue;
      const int row = atomicAdd(&next_row[batch.experts[i]], 1);
      call.lists.row_slots[row] = slot + i * kThreads;
      call.lists.row_weights[row] = batch.weights[i];
    }
  };
  place(first, first_slot);
  for (int slot = first_slot + kBatch * kThreads; slot < end; slot += kBatch * kThreads) {
    Batch batch;
    batch.load(call, slot, end);
    place(batch, slot);
  }
}

}  // namespace

bool route_fits(const Sizes& sizes) { return sizes.num_experts <= 16384; }

cudaError_t launch_route(const Call& call, int max_chunk_rows, const LaunchOptions& options) {
  const size_t shared = static_cast<size_t>(call.sizes.num_experts) * 2 * sizeof(int);
  const cudaError_t error = cudaFuncSetAttribute(
      route_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  if (error != cudaSuccess) return error;
  const int cluster = call.num_tokens * call.sizes.top_k > kThreads * kBatch / 2 ? kCluster : 1;
  return launch_clusters(route_kernel, cluster, dim3(static_cast<unsigned>(cluster)), kThreads,
                         shared, options.stream, call, max_chunk_rows);
}

}  // namespace halfbyte::hopper

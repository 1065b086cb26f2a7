// Grouped products for memory-bound calls: every weight passes once from memory through the tensor
// cores (mma.sync), at most kStreamRows rows of an expert beside it.
//
//   up:   h[r][F]     = act(gate, up)(x[token of r])      rows r in the order of the routing lists
//   down: slots[s][L] = weight[r] * down(h[r])            slot s of row r
//
// A unit is one 64-row tile of an expert's matrix and one chunk of its rows. Units lie chunk by
// chunk in one list, and every thread block gets an equal stretch of it. Of each chunk, its warps
// share out the blocks along K of all units evenly, so that all end together; each has a ring of
// weights of its own (weight_ring.cuh). Where a unit falls to several warps, the first adds the
// parts of the others, in their order. One more warp brings the rows of coming chunks into a pool
// in shared memory:
//
//   chunk c uses entry c % kQueue: `filled` when its rows are there, `emptied` by each other warp;
//   its rows are placed one after the other, around the end of the pool
//
// A row's result depends on the row and on how its chunk is cut. Checked by tests/gpu.
#include "moe/cuda/kernels.h"
#include "moe/cuda/launch.h"
#include "moe/cuda/output.cuh"
#include "moe/cuda/weight_ring.cuh"

namespace halfbyte::hopper {
namespace {

// And the one that brings rows: 4 for each scheduler, 128 registers each.
constexpr int kMaxWarps = 15;
constexpr int kMaxThreads = 32 * (kMaxWarps + 1);
constexpr int kMaxStages = kMaxRingSlabs / kTileSlabs;
constexpr int kQueue = 4;

constexpr int kPart = kTileSlabs * 32;  // float4 of a part of a unit

struct Barriers {
  uint64_t weights[kMaxWarps][kMaxRingSlabs];
  uint64_t filled[kQueue], emptied[kQueue];
};
constexpr int kBarrierBytes = (sizeof(Barriers) + 127) / 128 * 128;

// What differs between the two products.
struct Product {
  int tiles = 0, blocks = 0;   // of the matrix
  uint32_t matrix_offset = 0;  // in an expert
  int columns = 0;             // K, of a row
  const __nv_bfloat16* rows = nullptr;
  int64_t row_stride = 0;
};

struct Room {
  int warps = 0, ring_stages = 0, pool_rows = 0, row_pitch = 0;
};

// The stretch [begin, end) of the list of units that this block works on.
struct Stretch {
  int begin, end;
  __device__ Stretch(int num_units)
      : begin(static_cast<int>(static_cast<int64_t>(num_units) * blockIdx.x / gridDim.x)),
        end(static_cast<int>(static_cast<int64_t>(num_units) * (blockIdx.x + 1) / gridDim.x)) {}
};

template <bool kUp>
__device__ void bring_rows(const Call& call, const Product& product, const Room& room,
                           const Stretch& stretch, Barriers& barriers, uint32_t pool, int lane) {
  const int first_chunk = stretch.begin / product.tiles;
  const int last_chunk = (stretch.end - 1) / product.tiles;
  int oldest = first_chunk, free_rows = room.pool_rows, at = 0;
  for (int c = first_chunk; c <= last_chunk; ++c) {
    const Chunk chunk = call.lists.chunks[c];
    while (c - oldest >= kQueue || free_rows < chunk.num_rows) {
      const int n = oldest - first_chunk;
      barrier_wait(shared_address(&barriers.emptied[n % kQueue]), n / kQueue % 2);
      free_rows += call.lists.chunks[oldest].num_rows;
      ++oldest;
    }
    const uint32_t filled = shared_address(&barriers.filled[(c - first_chunk) % kQueue]);
    if (lane == 0) barrier_arrive_expect(filled, chunk.num_rows * product.columns * 2);
    __syncwarp();
    if (lane < chunk.num_rows) {
      const int r = chunk.first_row + lane;
      const int64_t row = kUp ? call.lists.row_slots[r] / call.sizes.top_k : r;
      copy_bulk(pool + (at + lane) % room.pool_rows * room.row_pitch,
                product.rows + row * product.row_stride, product.columns * 2, filled);
    }
    at = (at + chunk.num_rows) % room.pool_rows;
    free_rows -= chunk.num_rows;
  }
}

// Blocks [block, end) of a tile times kColumns * 8 columns; rows[n] is 0 where the chunk has no
// row.
template <int kColumns, WeightFormat kFormat, class FetchNext>
__device__ __forceinline__ void multiply_blocks(float (&acc)[kTileSlabs][kColumns][4],
                                                WeightRing<kFormat>& ring, FetchNext& fetch_next,
                                                int block, int end,
                                                const uint32_t (&rows)[kColumns], int lane) {
  HalfActivations b[kColumns];
  for (; block < end; ++block) {
    ring.wait();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const HalfWeights<kTileSlabs> weights = ring.template read<kTileSlabs>(half, lane);
      if (half == 1) {
        ring.template release<kTileSlabs>();
        fetch_next();
      }
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
        b[n].load_if(rows[n] != 0,
                     rows[n] + (block * kBlockCols + column(kFormat, half, lane % 4)) * 2);
      multiply_half(acc, weights, b);
    }
  }
}

// A part of a unit that another warp finishes: [slab][lane].
using PartSums = float[kTileSlabs][1][4];
__device__ __forceinline__ void store_part(float4* part, const PartSums& acc, int lane) {
#pragma unroll
  for (int s = 0; s < kTileSlabs; ++s)
    part[s * 32 + lane] = make_float4(acc[s][0][0], acc[s][0][1], acc[s][0][2], acc[s][0][3]);
}
__device__ __forceinline__ void add_part(const float4* part, PartSums& acc, int lane) {
#pragma unroll
  for (int s = 0; s < kTileSlabs; ++s) {
    const float4 v = part[s * 32 + lane];
    acc[s][0][0] += v.x;
    acc[s][0][1] += v.y;
    acc[s][0][2] += v.z;
    acc[s][0][3] += v.w;
  }
}

// A chunk's part of the stretch as a list of blocks, unit by unit, and the even share of each warp.
// NOTE: the rows of an expert with several chunks fall to them as the atomics of `route` will have
// it; such chunks are shared out by whole tiles, so that every sum has one order whatever the
// chunk.
struct Share {
  int first_tile, tiles;  // of the matrix
  bool whole_tiles;

  __device__ Share(const Stretch& stretch, const Product& product, int c, const Chunk& chunk,
                   bool shared)
      : first_tile(max(stretch.begin - c * product.tiles, 0)),
        tiles(min(stretch.end - c * product.tiles, product.tiles) - first_tile),
        whole_tiles(!shared || !chunk.is_only) {}
  __device__ int begin(int warp, int blocks, int warps) const {
    return whole_tiles ? tiles * warp / warps * blocks : tiles * blocks * warp / warps;
  }
};

// A lane has columns 8 n + 2 t + j of the chunk.
template <bool kUp, int kColumns, WeightFormat kFormat>
__device__ __forceinline__ void store_tile(const Call& call, ActivationKind kind,
                                           const float (&acc)[kTileSlabs][kColumns][4],
                                           const Chunk& chunk, int tile, int lane) {
  const Sizes& sizes = call.sizes;
  const int g = lane / 4, t = lane % 4;
  const float4 factors = *reinterpret_cast<const float4*>(
      call.packed + static_cast<size_t>(chunk.expert) * sizes.expert_bytes + sizes.factor_offset);
#pragma unroll
  for (int n = 0; n < kColumns; ++n)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = 8 * n + 2 * t + j;
      if (i >= chunk.num_rows) continue;
      const int64_t row = chunk.first_row + i;
      if constexpr (kUp) {
        auto* h =
            static_cast<__nv_bfloat16*>(call.hidden_rows) + row * (sizes.down_blocks * kBlockCols);
#pragma unroll
        for (int s = 0; s < kTileSlabs; ++s)
          store_hidden<kFormat>(h, tile * kTileSlabs + s, g, acc[s][n][j], acc[s][n][2 + j],
                                factors, kind, call.activation, sizes.intermediate);
      } else {
        const int64_t slot = call.lists.row_slots[row] * static_cast<int64_t>(sizes.hidden);
        const float weight = call.lists.row_weights[row];
#pragma unroll
        for (int s = 0; s < kTileSlabs; ++s)
#pragma unroll
          for (int lower = 0; lower < 2; ++lower) {
            const int column = (tile * kTileSlabs + s) * kSlabRows + g + 8 * lower;
            const float value =
                acc[s][n][2 * lower + j] * decode_gain(kFormat) * factors.z * weight;
            if (column >= sizes.hidden) continue;
            if (call.slots_are_f32)
              static_cast<float*>(call.slots)[slot + column] = value;
            else
              static_cast<__nv_bfloat16*>(call.slots)[slot + column] = __float2bfloat16_rn(value);
          }
      }
    }
}

// kShared: chunks of up to 8 rows, whose tiles warps may share; else up to 16.
template <bool kUp, WeightFormat kFormat, bool kShared>
__global__ void __launch_bounds__(kMaxThreads, 1)
    stream_kernel(const __grid_constant__ Call call, const __grid_constant__ Product product,
                  const __grid_constant__ Room room, ActivationKind kind) {
  using Ring = WeightRing<kFormat>;
  extern __shared__ __align__(128) uint8_t shared[];
  auto& barriers = *reinterpret_cast<Barriers*>(shared);
  uint8_t* const rings = shared + kBarrierBytes;
  const int num_warps = room.warps;
  uint8_t* const pool_memory = rings + num_warps * room.ring_stages * Ring::kBlockBytes;
  const uint32_t pool = shared_address(pool_memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kQueue; ++i) {
      barrier_init(shared_address(&barriers.filled[i]), 1);
      barrier_init(shared_address(&barriers.emptied[i]), num_warps);
    }
    fence_barrier_init();
  }
  // Columns between K and the end of the last block are never written again.
  const int padded = product.blocks * kBlockCols;
  for (int i = threadIdx.x; i < room.pool_rows * (padded - product.columns); i += blockDim.x) {
    const int row = i / (padded - product.columns), c = i % (padded - product.columns);
    reinterpret_cast<__nv_bfloat16*>(pool_memory + row * room.row_pitch)[product.columns + c] =
        __float2bfloat16_rn(0.0f);
  }
  // The lists are older than the kernel before `down`, which has waited for them.
  if (kUp) wait_for_previous_kernel();
  __syncthreads();

  const Stretch stretch(*call.lists.num_chunks * product.tiles);
  if (stretch.begin < stretch.end) {
    if (warp == num_warps) {
      if (!kUp) wait_for_previous_kernel();
      bring_rows<kUp>(call, product, room, stretch, barriers, pool, lane);
    } else {
      Ring ring(shared_address(rings) + warp * room.ring_stages * Ring::kBlockBytes,
                shared_address(barriers.weights[warp]), room.ring_stages * kTileSlabs, lane);
      const auto matrix_of = [&](int expert) {
        return call.packed + static_cast<size_t>(expert) * call.sizes.expert_bytes +
               product.matrix_offset;
      };
      const int first_chunk = stretch.begin / product.tiles;
      const int last_chunk = (stretch.end - 1) / product.tiles;
      // The blocks of a share are neighbours in memory.
      int ahead_chunk = first_chunk, ahead_blocks = 0;
      const uint8_t* ahead = nullptr;
      auto fetch_next = [&] {
        while (ahead_blocks == 0) {
          if (ahead_chunk > last_chunk) return;
          const Chunk chunk = call.lists.chunks[ahead_chunk];
          const Share share(stretch, product, ahead_chunk, chunk, kShared);
          const int begin = share.begin(warp, product.blocks, num_warps);
          ahead_blocks = share.begin(warp + 1, product.blocks, num_warps) - begin;
          ahead =
              matrix_of(chunk.expert) +
              (static_cast<size_t>(share.first_tile) * product.blocks + begin) * Ring::kBlockBytes;
          ++ahead_chunk;
        }
        ring.template fetch<kTileSlabs>(ahead, lane);
        ahead += Ring::kBlockBytes;
        --ahead_blocks;
      };
      for (int i = 0; i < room.ring_stages; ++i) fetch_next();

      int pool_at = 0;
      int parts_of = 0;  // those of the chunk before may still be read
      for (int c = first_chunk; c <= last_chunk; ++c) {
        const Chunk chunk = call.lists.chunks[c];
        const int n = c - first_chunk;
        const Share share(stretch, product, c, chunk, kShared);
        const auto row_address = [&](int i) {
          return i < chunk.num_rows ? pool + (pool_at + i) % room.pool_rows * room.row_pitch : 0;
        };
        const auto begin = [&](int w) { return share.begin(w, product.blocks, num_warps); };
        const auto leave_rows = [&] {
          __syncwarp();
          if (lane == 0) barrier_arrive(shared_address(&barriers.emptied[n % kQueue]));
        };
        barrier_wait(shared_address(&barriers.filled[n % kQueue]), n / kQueue % 2);
        int at = begin(warp);
        const int end = begin(warp + 1);
        if constexpr (!kShared) {
          const auto multiply_tiles = [&]<int kColumns>(const uint32_t(&rows)[kColumns]) {
            for (; at < end; at += product.blocks) {
              float acc[kTileSlabs][kColumns][4] = {};
              multiply_blocks(acc, ring, fetch_next, 0, product.blocks, rows, lane);
              store_tile<kUp, kColumns, kFormat>(call, kind, acc, chunk,
                                                 share.first_tile + at / product.blocks, lane);
            }
          };
          if (chunk.num_rows <= 8)
            multiply_tiles({row_address(g)});
          else
            multiply_tiles({row_address(g), row_address(8 + g)});
          leave_rows();
        } else {
          const uint32_t rows[1] = {row_address(g)};
          float4* const parts = static_cast<float4*>(call.stream_parts) +
                                (blockIdx.x * 2 + parts_of) * kMaxWarps * kPart;
          PartSums acc;
          int unit = 0;
          bool begun = false;  // the last unit goes on in the next warp
          while (at < end) {
            unit = at / product.blocks;
            const int block = at - unit * product.blocks;
            const int last = min(product.blocks, block + end - at);
#pragma unroll
            for (int s = 0; s < kTileSlabs; ++s)
#pragma unroll
              for (int j = 0; j < 4; ++j) acc[s][0][j] = 0;
            multiply_blocks(acc, ring, fetch_next, block, last, rows, lane);
            at += last - block;
            begun = block == 0 && last < product.blocks;
            if (block != 0)
              store_part(parts + warp * kPart, acc, lane);
            else if (!begun)
              store_tile<kUp, 1, kFormat>(call, kind, acc, chunk, share.first_tile + unit, lane);
          }
          leave_rows();
          if (!share.whole_tiles) {
            barrier_sync(1, num_warps * 32);
            parts_of ^= 1;
            if (begun) {
              for (int w = warp + 1; w < num_warps && begin(w) < (unit + 1) * product.blocks; ++w)
                if (begin(w) < begin(w + 1)) add_part(parts + w * kPart, acc, lane);
              store_tile<kUp, 1, kFormat>(call, kind, acc, chunk, share.first_tile + unit, lane);
            }
          }
        }
        pool_at = (pool_at + chunk.num_rows) % room.pool_rows;
      }
    }
  } else if (!kUp) {
    wait_for_previous_kernel();
  }
  let_next_kernel_start();
}

int shared_bytes(WeightFormat format, const Room& room) {
  return kBarrierBytes + room.warps * room.ring_stages * kTileSlabs * slab_bytes(format) +
         room.pool_rows * room.row_pitch;
}

// The most warps with rings of two stages or more that leave room for the rows of one chunk; then
// longer rings as long as the pool holds two chunks; the rest is pool. No warps: it does not fit.
Room room_for(WeightFormat format, const Product& product, int max_rows) {
  Room room;
  room.row_pitch = product.blocks * kBlockCols * 2 + 16;
  room.pool_rows = max_rows;
  room.ring_stages = 2;
  for (room.warps = kMaxWarps; room.warps > 0; room.warps -= 4)
    if (shared_bytes(format, room) <= kSharedLimit) break;
  const auto grow = [&](int& part, int most) {
    while (part < most) {
      ++part;
      if (shared_bytes(format, room) <= kSharedLimit) continue;
      --part;
      return;
    }
  };
  grow(room.pool_rows, 2 * max_rows);
  grow(room.ring_stages, kMaxStages);
  grow(room.pool_rows, 4 * max_rows);
  return room;
}

template <bool kUp, WeightFormat kFormat, bool kShared>
cudaError_t launch(const Call& call, const Product& product, ActivationKind kind, int max_rows,
                   const LaunchOptions& options) {
  const Room room = room_for(kFormat, product, max_rows);
  const int bytes = shared_bytes(kFormat, room);
  const auto kernel = stream_kernel<kUp, kFormat, kShared>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  return launch_overlapped(kernel, options, 32 * (room.warps + 1), static_cast<size_t>(bytes), call,
                           product, room, kind);
}

Product up_of(const Call& call) {
  const Sizes& sizes = call.sizes;
  return {
      sizes.up_tiles, sizes.up_blocks, 0, sizes.hidden, static_cast<const __nv_bfloat16*>(call.x),
      call.x_stride};
}
Product down_of(const Call& call) {
  const Sizes& sizes = call.sizes;
  return {sizes.down_tiles,
          sizes.down_blocks,
          sizes.down_offset,
          sizes.intermediate,
          static_cast<const __nv_bfloat16*>(call.hidden_rows),
          sizes.down_blocks * kBlockCols};
}

template <WeightFormat kFormat, bool kShared>
cudaError_t launch(const Call& call, ActivationKind kind, int max_rows,
                   const LaunchOptions& options) {
  const cudaError_t error =
      launch<true, kFormat, kShared>(call, up_of(call), kind, max_rows, options);
  if (error != cudaSuccess) return error;
  return launch<false, kFormat, kShared>(call, down_of(call), kind, max_rows, options);
}

template <WeightFormat kFormat>
cudaError_t launch(const Call& call, ActivationKind kind, int max_rows,
                   const LaunchOptions& options) {
  return max_rows <= 8 ? launch<kFormat, true>(call, kind, max_rows, options)
                       : launch<kFormat, false>(call, kind, max_rows, options);
}

}  // namespace

bool stream_fits(const Sizes& sizes, int max_rows, WeightFormat format) {
  Product up, down;
  up.blocks = sizes.up_blocks;
  down.blocks = sizes.down_blocks;
  return room_for(format, up, max_rows).warps > 0 && room_for(format, down, max_rows).warps > 0;
}

size_t stream_part_bytes(int num_sms) {
  return static_cast<size_t>(num_sms) * 2 * kMaxWarps * kPart * sizeof(float4);
}

cudaError_t launch_stream(const Call& call, ActivationKind kind, WeightFormat format, int max_rows,
                          const LaunchOptions& options) {
  return format == WeightFormat::kMxfp4
             ? launch<WeightFormat::kMxfp4>(call, kind, max_rows, options)
             : launch<WeightFormat::kNvfp4>(call, kind, max_rows, options);
}

}  // namespace halfbyte::hopper

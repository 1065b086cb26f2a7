// The MoE operation for few tokens (T <= 8) in one launch: the whole time goes into reading
// weights.
//
//   columns of the tensor core = the tokens; x lies in shared memory once
//   1. every block finds the D distinct experts, rising, and weight[d][t] of each token
//   2. up:   a unit is kUpSlabs slabs of an expert, all columns; a team of warps shares out its
//            blocks along K and adds up in the order of its warps; h[d][t][F] goes to the L2
//   3. down: a block owns kDownSlabs slabs of rows of y; its warps share out the (expert, block
//            along K) of those rows evenly and keep weighted sums in registers; the warps' sums are
//            added in their order
//
// A warp's ring goes on from 2 to 3; between them each expert has a counter of finished units. All
// blocks must run at once: the grid is one block an SM, and nothing else is waited for. The last
// block to leave clears the counters.
//
// Which products are summed in which order depends on the set of experts and the shape of the grid,
// never on timing or on the order of tokens. A token without an expert d never reads the column
// that was computed for it. Checked by tests/gpu.
#include "moe/cuda/kernels.h"
#include "moe/cuda/launch.h"
#include "moe/cuda/output.cuh"
#include "moe/cuda/weight_ring.cuh"

namespace halfbyte::hopper {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;
static_assert(kThreads >= kFewSlots);
constexpr int kSlabFloats = kSlabRows * kFewTokens;

// Shared memory ahead of the rings.
struct Tables {
  int num_active;                        // D
  uint32_t present[kFewExperts / 32];    // bit e: expert e has a token
  int ids[kFewSlots];                    // of slots; -1: skipped
  int experts[kFewSlots];                // [d], rising
  float weights[kFewSlots][kFewTokens];  // [d][t]; 0: not routed
  uint64_t weight_barriers[kWarps][kMaxRingSlabs];
  uint64_t x_barrier;
};
constexpr int kTableBytes = (sizeof(Tables) + 127) / 128 * 128;

__device__ __forceinline__ void find_experts(const Call& call, Tables& tables) {
  const Sizes& sizes = call.sizes;
  const int slot = threadIdx.x, num_slots = call.num_tokens * sizes.top_k;
  const int words = (sizes.num_experts + 31) / 32;
  for (int i = threadIdx.x; i < words; i += kThreads) tables.present[i] = 0;
  for (int i = threadIdx.x; i < num_slots * kFewTokens; i += kThreads) tables.weights[0][i] = 0;
  int id = -1;
  float weight = 0;
  if (slot < num_slots) {
    id = call.topk_ids[slot];
    weight = call.topk_weights[slot];
    if (id < 0 || id >= sizes.num_experts || weight == 0) id = -1;
    tables.ids[slot] = id;
  }
  __syncthreads();
  if (id >= 0) atomicOr(&tables.present[id / 32], 1u << id % 32);
  __syncthreads();
  if (threadIdx.x == kThreads - 1) {
    int count = 0;
    for (int i = 0; i < words; ++i) count += __popc(tables.present[i]);
    tables.num_active = count;
  }
  if (id >= 0) {
    int rank = __popc(tables.present[id / 32] & ((1u << id % 32) - 1));
    for (int i = 0; i < id / 32; ++i) rank += __popc(tables.present[i]);
    tables.experts[rank] = id;
    // A token may name an expert twice: the first of its slots adds them up.
    const int token = slot / sizes.top_k, begin = token * sizes.top_k;
    bool first = true;
    for (int j = begin; j < begin + sizes.top_k; ++j)
      if (j != slot && tables.ids[j] == id) {
        if (j < slot) first = false;
        weight += call.topk_weights[j];
      }
    if (first) tables.weights[rank][token] = weight;
  }
  __syncthreads();
}

// The units of one team of warps, and of each the blocks along K of one of its warps.
template <int kSlabs>
struct UpWork {
  int unit, step, units_per_expert, num_units, begin, end;

  __device__ UpWork(const Sizes& sizes, int num_active, int warp, int team)
      : unit(blockIdx.x + gridDim.x * (warp / team)),
        step(gridDim.x * (kWarps / team)),
        units_per_expert(sizes.up_tiles * (kTileSlabs / kSlabs)),
        num_units(num_active * units_per_expert),
        begin(sizes.up_blocks * (warp % team) / team),
        end(sizes.up_blocks * (warp % team + 1) / team) {}
  __device__ bool more() const { return unit < num_units; }
  __device__ int active() const { return unit / units_per_expert; }
  __device__ int slab() const { return unit % units_per_expert * kSlabs; }
};

// The share of one warp in all (expert, block along K) of the rows that its thread block owns: a
// stretch of the list d * blocks + block, the same for each round of rows.
struct DownWork {
  int blocks, begin, end;

  __device__ DownWork(const Sizes& sizes, int num_active, int warp)
      : blocks(sizes.down_blocks),
        begin(num_active * blocks * warp / kWarps),
        end(num_active * blocks * (warp + 1) / kWarps) {}
};

// Where a slab begins in a matrix of `blocks` blocks along K.
template <WeightFormat kFormat>
__device__ __forceinline__ size_t slab_offset(int slab, int blocks) {
  return static_cast<size_t>(slab / kTileSlabs) * blocks * (kTileSlabs * slab_bytes(kFormat)) +
         slab % kTileSlabs * slab_bytes(kFormat);
}

// Brings the weights of one warp into its ring: those of its units of up, then those of down.
template <WeightFormat kFormat, int kUpSlabs, int kDownSlabs>
struct Fetcher {
  static constexpr int kBlockBytes = WeightRing<kFormat>::kBlockBytes;
  const Call& call;
  const Tables& tables;
  UpWork<kUpSlabs> up;
  DownWork down;
  int slab, at;  // of down: the rows, and the place in the list
  const uint8_t* from = nullptr;
  int left = 0;  // blocks from `from` on
  bool in_up = true;

  __device__ __forceinline__ const uint8_t* expert(int d) const {
    return call.packed + static_cast<size_t>(tables.experts[d]) * call.sizes.expert_bytes;
  }
  // The next run of blocks; none: left stays 0.
  __device__ __forceinline__ void next_run() {
    const Sizes& sizes = call.sizes;
    if (up.more()) {
      from = expert(up.active()) + slab_offset<kFormat>(up.slab(), sizes.up_blocks) +
             static_cast<size_t>(up.begin) * kBlockBytes;
      left = up.end - up.begin;
      up.unit += up.step;
      return;
    }
    in_up = false;
    if (at == down.end) {
      at = down.begin;
      slab += gridDim.x * kDownSlabs;
    }
    if (slab >= sizes.down_tiles * kTileSlabs || at == down.end) return;
    const int d = at / down.blocks, block = at % down.blocks;
    from = expert(d) + sizes.down_offset + slab_offset<kFormat>(slab, down.blocks) +
           static_cast<size_t>(block) * kBlockBytes;
    left = min(down.blocks - block, down.end - at);
    at += left;
  }
  __device__ __forceinline__ void fill(WeightRing<kFormat>& ring, int lane) {
    while (true) {
      if (left == 0) next_run();
      if (left == 0) return;
      if (in_up) {
        if (!ring.has_room(kUpSlabs)) return;
        ring.template fetch<kUpSlabs>(from, lane);
      } else {
        if (!ring.has_room(kDownSlabs)) return;
        ring.template fetch<kDownSlabs>(from, lane);
      }
      from += kBlockBytes;
      --left;
    }
  }
};

template <WeightFormat kFormat, int kUpSlabs, int kDownSlabs>
__global__ void __launch_bounds__(kThreads, 1)
    few_kernel(const __grid_constant__ Call call, ActivationKind kind, int team, int ring_slabs,
               int x_pitch) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto& tables = *reinterpret_cast<Tables*>(shared);
  uint8_t* const rings = shared + kTableBytes;
  const int ring_bytes = ring_slabs * slab_bytes(kFormat);
  uint8_t* const x = rings + kWarps * ring_bytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const Sizes& sizes = call.sizes;
  const uint32_t x_barrier = shared_address(&tables.x_barrier);

  if (threadIdx.x == 0) {
    barrier_init(x_barrier, 1);
    fence_barrier_init();
    wait_for_previous_kernel();
    barrier_arrive_expect(x_barrier, call.num_tokens * sizes.hidden * 2);
    for (int row = 0; row < call.num_tokens; ++row)
      copy_bulk(shared_address(x) + row * x_pitch,
                static_cast<const __nv_bfloat16*>(call.x) + row * call.x_stride, sizes.hidden * 2,
                x_barrier);
  }
  const int x_padding = sizes.up_blocks * kBlockCols - sizes.hidden;
  for (int i = threadIdx.x; i < call.num_tokens * x_padding; i += kThreads)
    reinterpret_cast<__nv_bfloat16*>(x + i / x_padding * x_pitch)[sizes.hidden + i % x_padding] =
        __float2bfloat16_rn(0.0f);
  WeightRing<kFormat> ring(shared_address(rings) + warp * ring_bytes,
                           shared_address(tables.weight_barriers[warp]), ring_slabs, lane);
  wait_for_previous_kernel();
  find_experts(call, tables);
  const int num_active = tables.num_active;

  const UpWork<kUpSlabs> up_work(sizes, num_active, warp, team);
  const DownWork down_work(sizes, num_active, warp);
  Fetcher<kFormat, kUpSlabs, kDownSlabs> fetcher{
      call, tables, up_work, down_work, static_cast<int>(blockIdx.x) * kDownSlabs, down_work.begin};
  fetcher.fill(ring, lane);
  const auto factors_of = [&](int d) {
    return *reinterpret_cast<const float4*>(fetcher.expert(d) + sizes.factor_offset);
  };
  auto* const h = static_cast<__nv_bfloat16*>(call.hidden_rows);
  const int h_pitch = sizes.down_blocks * kBlockCols;

  // ---- up
  {
    barrier_wait(x_barrier, 0);
    const uint32_t x_row = shared_address(x) + g * x_pitch;
    float* const partial_sums = reinterpret_cast<float*>(x + call.num_tokens * x_pitch);
    UpWork<kUpSlabs> work = up_work;
    for (; work.more(); work.unit += work.step) {
      const int d = work.active();
      const float4 factors = factors_of(d);
      const bool routed = tables.weights[d][g] != 0;
      HalfActivations b[1];
      float acc[kUpSlabs][1][4] = {};
      for (int block = work.begin; block < work.end; ++block) {
        ring.wait();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const HalfWeights<kUpSlabs> weights = ring.template read<kUpSlabs>(half, lane);
          if (half == 1) {
            ring.template release<kUpSlabs>();
            fetcher.fill(ring, lane);
          }
          const uint32_t at = x_row + (block * kBlockCols + column(kFormat, half, t)) * 2;
          b[0].load_if(routed, at);
          multiply_half(acc, weights, b);
        }
      }
      // The first warp of a team adds what the others have.
      if (team > 1) {
        if (warp % team != 0) {
          auto* mine = reinterpret_cast<float4*>(partial_sums) + warp * kUpSlabs * 32;
#pragma unroll
          for (int s = 0; s < kUpSlabs; ++s)
            mine[s * 32 + lane] =
                make_float4(acc[s][0][0], acc[s][0][1], acc[s][0][2], acc[s][0][3]);
        }
        const int barrier = 1 + warp / team;
        asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(team * 32) : "memory");
        if (warp % team == 0) {
          for (int w = 1; w < team; ++w) {
            const auto* other =
                reinterpret_cast<const float4*>(partial_sums) + (warp + w) * kUpSlabs * 32;
#pragma unroll
            for (int s = 0; s < kUpSlabs; ++s) {
              const float4 v = other[s * 32 + lane];
              acc[s][0][0] += v.x;
              acc[s][0][1] += v.y;
              acc[s][0][2] += v.z;
              acc[s][0][3] += v.w;
            }
          }
        }
        asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(team * 32) : "memory");
        if (warp % team != 0) continue;
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int token = 2 * t + j;
        if (tables.weights[d][token] == 0) continue;
#pragma unroll
        for (int s = 0; s < kUpSlabs; ++s)
          store_hidden<kFormat>(h + (d * kFewTokens + token) * h_pitch, work.slab() + s, g,
                                acc[s][0][j], acc[s][0][2 + j], factors, kind, call.activation,
                                sizes.intermediate);
      }
      __syncwarp();
      if (lane == 0) add_release(call.counters + 1 + d, 1);
    }
  }

  // ---- down
  const DownWork work = down_work;
  const int num_slabs = sizes.down_tiles * kTileSlabs, slab_step = gridDim.x * kDownSlabs;
  const uint32_t finished = sizes.up_tiles * (kTileSlabs / kUpSlabs);
  int ready = -1;  // h of experts up to this one is there
  float* const sums = reinterpret_cast<float*>(x);
  for (int slab = blockIdx.x * kDownSlabs; slab < num_slabs; slab += slab_step) {
    float sum[kDownSlabs][4] = {};
    for (int at = work.begin; at < work.end;) {
      const int d = at / work.blocks;
      int block = at % work.blocks;
      const int end = min(work.blocks, block + work.end - at);
      at += end - block;
      if (d > ready) {
        while (load_acquire(call.counters + 1 + d) < finished) {
        }
        ready = d;
      }
      const bool routed = tables.weights[d][g] != 0;
      const __nv_bfloat16* const row = h + (d * kFewTokens + g) * h_pitch;
      const float factor = factors_of(d).z;
      float acc[kDownSlabs][1][4] = {};
      for (; block < end; ++block) {
        HalfActivations b[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int c = block * kBlockCols + column(kFormat, half, t);
          b[half] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
          if (routed && c < sizes.intermediate) {
            const auto* p = reinterpret_cast<const uint4*>(row + c);
            b[half] = {__ldcg(p), __ldcg(p + 1)};
          }
        }
        ring.wait();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const HalfWeights<kDownSlabs> weights = ring.template read<kDownSlabs>(half, lane);
          if (half == 1) {
            ring.template release<kDownSlabs>();
            fetcher.fill(ring, lane);
          }
          const HalfActivations columns[1] = {b[half]};
          multiply_half(acc, weights, columns);
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float weight = tables.weights[d][2 * t + j % 2];
        if (weight != 0)
#pragma unroll
          for (int s = 0; s < kDownSlabs; ++s)
            sum[s][j] += acc[s][0][j] * decode_gain(kFormat) * factor * weight;
      }
    }

    // sums[warp][slab][row][token], then one thread an output.
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kDownSlabs; ++s)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        sums[(warp * kDownSlabs + s) * kSlabFloats + (g + j / 2 * 8) * kFewTokens + 2 * t + j % 2] =
            sum[s][j];
    __syncthreads();
    constexpr int kOutputs = kDownSlabs * kSlabFloats;
    for (int i = threadIdx.x; i < kOutputs; i += kThreads) {
      const int token = i / (kDownSlabs * kSlabRows), row = i % (kDownSlabs * kSlabRows);
      float y = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) y += sums[w * kOutputs + row * kFewTokens + token];
      const int column_of_y = slab * kSlabRows + row;
      if (token < call.num_tokens && column_of_y < sizes.hidden)
        store_output(call, token, column_of_y, y);
    }
  }

  let_next_kernel_start();
  // The last block to come here has no reader of the counters beside it.
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicInc(call.counters, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (is_last && threadIdx.x < num_active) call.counters[1 + threadIdx.x] = 0;
}

// How a call is cut.
struct Cut {
  int up_slabs = 4, down_slabs = 2;
  int team = 1;        // warps that share a unit
  int ring_slabs = 0;  // of a warp
  size_t shared = 0;
};

constexpr size_t kSharedLimit = 227 * 1024;

size_t pitch_of(const Sizes& sizes) {
  return static_cast<size_t>(sizes.up_blocks) * kBlockCols * 2 + 16;
}

// Rings get what x and the sums leave, in whole stages of four slabs.
void give_room(Cut& cut, const Sizes& sizes, int num_tokens, int slab) {
  const size_t x = static_cast<size_t>(num_tokens) * pitch_of(sizes);
  const size_t partial =
      cut.team > 1 ? static_cast<size_t>(kWarps * cut.up_slabs * kSlabFloats) * 4 : 0;
  const size_t sums = static_cast<size_t>(kWarps * cut.down_slabs * kSlabFloats) * 4;
  const size_t other = kTableBytes + (x + partial > sums ? x + partial : sums);
  const size_t stage = static_cast<size_t>(kWarps * kTileSlabs * slab);
  size_t stages = other < kSharedLimit ? (kSharedLimit - other) / stage : 0;
  if (stages > 2) stages = 2;
  cut.ring_slabs = static_cast<int>(stages) * kTileSlabs;
  cut.shared = other + stages * stage;
}

Cut cut_for(const Sizes& sizes, int num_tokens, WeightFormat format, int num_sms) {
  // Rounds of a grid that has one place a multiprocessor, in slabs.
  const auto time = [num_sms](int slabs, int of) {
    return ceil_div(ceil_div(slabs, of), num_sms) * of;
  };
  Cut cut;
  const int up = sizes.up_tiles * kTileSlabs * num_tokens * sizes.top_k;
  cut.up_slabs = time(up, 4) <= time(up, 2) ? 4 : 2;
  // Enough warps at work on each multiprocessor to keep its rings full.
  const int units = ceil_div(up / cut.up_slabs, num_sms);
  while (cut.team < 4 && units * cut.team * 2 <= kWarps) cut.team *= 2;
  const int down = sizes.down_tiles * kTileSlabs;
  cut.down_slabs = time(down, 2) <= time(down, 1) ? 2 : 1;
  give_room(cut, sizes, num_tokens, slab_bytes(format));
  return cut;
}

template <WeightFormat kFormat, int kUpSlabs, int kDownSlabs>
cudaError_t launch(const Call& call, ActivationKind kind, const Cut& cut,
                   const LaunchOptions& options) {
  const auto kernel = few_kernel<kFormat, kUpSlabs, kDownSlabs>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(cut.shared));
  if (error != cudaSuccess) return error;
  return launch_overlapped(kernel, options, kThreads, cut.shared, call, kind, cut.team,
                           cut.ring_slabs, static_cast<int>(pitch_of(call.sizes)));
}

template <WeightFormat kFormat>
cudaError_t launch(const Call& call, ActivationKind kind, const LaunchOptions& options) {
  const Cut cut = cut_for(call.sizes, call.num_tokens, kFormat, options.num_sms);
  if (cut.up_slabs == 4)
    return cut.down_slabs == 2 ? launch<kFormat, 4, 2>(call, kind, cut, options)
                               : launch<kFormat, 4, 1>(call, kind, cut, options);
  return cut.down_slabs == 2 ? launch<kFormat, 2, 2>(call, kind, cut, options)
                             : launch<kFormat, 2, 1>(call, kind, cut, options);
}

}  // namespace

bool few_fits(const Sizes& sizes, int num_tokens, WeightFormat format) {
  Cut widest;
  widest.team = 2;
  give_room(widest, sizes, num_tokens, slab_bytes(format));
  return num_tokens <= kFewTokens && num_tokens * sizes.top_k <= kFewSlots &&
         sizes.num_experts <= kFewExperts && widest.ring_slabs > 0;
}

cudaError_t launch_few(const Call& call, ActivationKind kind, WeightFormat format,
                       const LaunchOptions& options) {
  return format == WeightFormat::kMxfp4 ? launch<WeightFormat::kMxfp4>(call, kind, options)
                                        : launch<WeightFormat::kNvfp4>(call, kind, options);
}

}  // namespace halfbyte::hopper

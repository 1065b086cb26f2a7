// The MoE operation for few tokens (T <= 8) in one launch: the whole time goes into reading
// weights.
//
//   columns of the tensor core = the tokens; x lies in shared memory once
//   1. every block finds the D distinct experts, rising, and weight[d][t] of each token
//   2. up:   a unit is kUpSlabs slabs of an expert, all columns; a team of warps shares out its
//            blocks along K and adds up in the order of its warps; h[d][t][F] goes to the L2
//   3. down: a block has kDownSlabs slabs of rows of y, or a part of their products; its warps
//            share out the (expert, block along K) of those rows evenly and keep weighted sums in
//            registers; the sums of warps, and of parts, are added in their order
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
  int num_active;  // D
  bool is_last;
  uint32_t present[kFewExperts / 32];    // bit e: expert e has a token
  int experts[kFewSlots];                // [d], rising
  float weights[kFewSlots][kFewTokens];  // [d][t]; 0: not routed
  uint64_t weight_barriers[kWarps][kMaxRingSlabs];
  uint64_t x_barrier;
  uint64_t team_barriers[kWarps];  // of the threads of each team
};
constexpr int kTableBytes = (sizeof(Tables) + 127) / 128 * 128;

// Exclusive prefix sum over the warp; `total` of all its lanes.
__device__ __forceinline__ int sum_before(int value, int lane, int& total) {
  int sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += below;
  }
  total = __shfl_sync(~0u, sum, 31);
  return sum - value;
}

__device__ __forceinline__ void find_experts(const Call& call, Tables& tables) {
  const Sizes& sizes = call.sizes;
  const int slot = threadIdx.x, lane = slot % 32, num_slots = call.num_tokens * sizes.top_k;
  int id = -1;
  float weight = 0;
  if (slot < num_slots) {
    id = call.topk_ids[slot];
    weight = call.topk_weights[slot];
  }
  const int words = (sizes.num_experts + 31) / 32;
  for (int i = slot; i < words; i += kThreads) tables.present[i] = 0;
  for (int i = slot; i < num_slots * kFewTokens; i += kThreads) tables.weights[0][i] = 0;
  if (id < 0 || id >= sizes.num_experts || weight == 0) id = -1;
  __syncthreads();
  if (id >= 0) atomicOr(&tables.present[id / 32], 1u << id % 32);
  __syncthreads();

  // The rank of an expert is the number of bits before its own.
  const int words_a_lane = (words + 31) / 32, word = max(id, 0) / 32;
  int count = 0;
  for (int i = lane * words_a_lane; i < min((lane + 1) * words_a_lane, words); ++i)
    count += __popc(tables.present[i]);
  int num_active;
  const int before = sum_before(count, lane, num_active);
  const int word_lane = word / words_a_lane;
  int rank = __shfl_sync(~0u, before, word_lane);
  for (int i = word_lane * words_a_lane; i < word; ++i) rank += __popc(tables.present[i]);
  rank += __popc(tables.present[word] & ((1u << max(id, 0) % 32) - 1));
  if (slot == 0) tables.num_active = num_active;
  const int token = slot / sizes.top_k;
  bool repeated = false;
  if (id >= 0) {
    tables.experts[rank] = id;
    repeated = atomicExch(&tables.weights[rank][token], weight) != 0;
  }
  // Rare: a token names an expert more than once. Then in the order of its slots, by the first.
  if (__syncthreads_or(repeated)) {
    if (id >= 0) {
      const int begin = token * sizes.top_k;
      bool first = true;
      float sum = 0;
      for (int j = begin; j < begin + sizes.top_k; ++j)
        if (call.topk_ids[j] == id) {
          first = first && (j >= slot || call.topk_weights[j] == 0);
          sum += call.topk_weights[j];
        }
      if (first) tables.weights[rank][token] = sum;
    }
    __syncthreads();
  }
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

// What a thread block does of down. A group is kSlabs slabs of rows; its products are a list of
// (expert d, block along K), d * blocks + block. Either groups are dealt to the thread blocks
// whole, or all lists, one after the other, are cut evenly: then some groups have several parts, in
// different thread blocks.
template <int kSlabs>
struct DownParts {
  int groups, list;  // how many; the length of the list of each
  bool even;
  int at, end;             // even: what is left of the cut
  int group, first, last;  // the current part: [first, last) of the list of `group`

  __device__ DownParts(const Sizes& sizes, int num_active, bool want_even)
      : groups(sizes.down_tiles * kTileSlabs / kSlabs),
        list(num_active * sizes.down_blocks),
        even(want_even && int64_t{groups} * list >= gridDim.x),  // no cut is empty
        at(cut(blockIdx.x)),
        end(cut(blockIdx.x + 1)),
        group(static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x)),
        first(0),
        last(0) {
    next();
  }
  __device__ int cut(int block) const {
    return static_cast<int>(static_cast<int64_t>(groups) * list * block / gridDim.x);
  }
  __device__ bool more() const { return group < groups; }
  __device__ void next() {
    if (!even) {
      group += gridDim.x;
      last = list;
    } else if (at == end) {
      group = groups;
    } else {
      group = at / list;
      first = at % list;
      last = min(list, first + end - at);
      at += last - first;
    }
  }
  // The thread block whose cut holds element `i` of all lists.
  __device__ int holder(int i) const {
    int block = static_cast<int>(static_cast<int64_t>(i) * gridDim.x /
                                 (groups * static_cast<int64_t>(list)));
    while (cut(block + 1) <= i) ++block;
    return block;
  }
  __device__ int part() const { return blockIdx.x - holder(group * list); }
  __device__ int num_parts() const {
    return holder((group + 1) * list - 1) - holder(group * list) + 1;
  }
  // A warp's even share of the current part.
  __device__ int share(int warp) const { return first + (last - first) * warp / kWarps; }
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
  DownParts<kDownSlabs> down;
  int warp;
  int at = 0, end = 0;  // of the current part of down
  const uint8_t* from = nullptr;
  int left = 0;  // blocks from `from` on
  bool in_up = true;

  __device__ __forceinline__ const uint8_t* expert(int d) const {
    return call.packed + static_cast<size_t>(tables.experts[d]) * call.sizes.expert_bytes;
  }
  // The next run of blocks; none: left stays 0.
  __device__ __forceinline__ void next_run() {
    const Sizes& sizes = call.sizes;
    // A warp of a team may have no block of K.
    if (up.more() && up.begin < up.end) {
      from = expert(up.active()) + slab_offset<kFormat>(up.slab(), sizes.up_blocks) +
             static_cast<size_t>(up.begin) * kBlockBytes;
      left = up.end - up.begin;
      up.unit += up.step;
      return;
    }
    if (in_up) {
      in_up = false;
      start_part();
    }
    while (at == end) {
      if (!down.more()) return;
      down.next();
      start_part();
    }
    const int d = at / sizes.down_blocks, block = at % sizes.down_blocks;
    from = expert(d) + sizes.down_offset +
           slab_offset<kFormat>(down.group * kDownSlabs, sizes.down_blocks) +
           static_cast<size_t>(block) * kBlockBytes;
    left = min(sizes.down_blocks - block, end - at);
    at += left;
  }
  __device__ __forceinline__ void start_part() {
    at = down.more() ? down.share(warp) : 0;
    end = down.more() ? down.share(warp + 1) : 0;
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
               int x_pitch, bool even_down) {
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
    for (uint64_t& barrier : tables.team_barriers)
      barrier_init(shared_address(&barrier), team * 32);
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
  DownParts<kDownSlabs> down(sizes, num_active, even_down);
  Fetcher<kFormat, kUpSlabs, kDownSlabs> fetcher{call, tables, up_work, down, warp};
  fetcher.fill(ring, lane);
  // NOTE: they come from memory, slowly: asked for well before they are needed.
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
    // NOTE: named barriers (bar.sync) would do, but racecheck loses its count of barrier 0 by them.
    const uint32_t team_barrier = shared_address(&tables.team_barriers[warp / team]);
    uint32_t parity = 0;
    const auto meet_team = [&] {
      barrier_arrive(team_barrier);
      barrier_wait(team_barrier, parity);
      parity ^= 1;
    };
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
        meet_team();
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
        meet_team();
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
  const uint32_t finished = sizes.up_tiles * (kTileSlabs / kUpSlabs);
  float* const sums = reinterpret_cast<float*>(x);
  // Experts [ready, ready_end) have all of their h. Lanes look at 32 counters at once.
  int ready = 0, ready_end = 0;
  const auto wait_for_h = [&](int d) {
    if (d >= ready && d < ready_end) return;
    uint32_t there;
    do {
      const bool mine =
          d + lane < num_active && load_acquire(call.counters + 1 + d + lane) >= finished;
      there = __ballot_sync(~0u, mine);
    } while ((there & 1) == 0);
    __syncwarp();  // what one lane has acquired, all may read
    ready = d;
    ready_end = d + (there == ~0u ? 32 : __ffs(~there) - 1);
  };
  const auto load_h = [&](int d, int block, HalfActivations(&b)[2]) {
    wait_for_h(d);
    const bool routed = tables.weights[d][g] != 0;
    const __nv_bfloat16* const row = h + (d * kFewTokens + g) * h_pitch;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int c = block * kBlockCols + column(kFormat, half, t);
      b[half] = HalfActivations();
      if (routed && c < sizes.intermediate) {
        const auto* p = reinterpret_cast<const uint4*>(row + c);
        b[half] = {__ldcg(p), __ldcg(p + 1)};
      }
    }
  };
  for (; down.more(); down.next()) {
    float sum[kDownSlabs][4] = {}, acc[kDownSlabs][1][4] = {};
    int left = down.share(warp + 1) - down.share(warp);
    int d = down.share(warp) / sizes.down_blocks, block = down.share(warp) % sizes.down_blocks;
    HalfActivations next[2];
    float factor = 0;
    if (left > 0) {
      load_h(d, block, next);
      factor = factors_of(d).z;
    }
    while (left > 0) {
      --left;
      const HalfActivations b[2] = {next[0], next[1]};
      const int this_d = d;
      if (++block == sizes.down_blocks) {
        block = 0;
        ++d;
      }
      if (left > 0) load_h(d, block, next);
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
      if (block != 0 && left > 0) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float weight = tables.weights[this_d][2 * t + j % 2];
#pragma unroll
        for (int s = 0; s < kDownSlabs; ++s) {
          if (weight != 0) sum[s][j] += acc[s][0][j] * decode_gain(kFormat) * factor * weight;
          acc[s][0][j] = 0;
        }
      }
      if (left > 0) factor = factors_of(d).z;
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
    static_assert(kOutputs <= kThreads);
    const int output = threadIdx.x;
    float y = 0;
    if (output < kOutputs)
#pragma unroll
      for (int w = 0; w < kWarps; ++w) y += sums[w * kOutputs + output];
    bool finish = output < kOutputs;
    if (down.last - down.first < down.list) {
      // The last part to arrive adds all parts, in their order.
      float* const parts = call.partial_sums + down.group * kFewParts * kOutputs + output;
      const int num_parts = down.num_parts();
      if (finish) __stcg(parts + down.part() * kOutputs, y);
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0)
        tables.is_last = atomicInc(call.counters + kFewPartCounters + down.group, num_parts - 1) ==
                         static_cast<unsigned>(num_parts - 1);
      __syncthreads();
      finish = finish && tables.is_last;
      __threadfence();
      if (finish) {
        y = 0;
        for (int p = 0; p < num_parts; ++p) y += __ldcg(parts + p * kOutputs);
      }
    }
    const int token = output % kFewTokens;
    const int column_of_y = down.group * kDownSlabs * kSlabRows + output / kFewTokens;
    if (finish && token < call.num_tokens && column_of_y < sizes.hidden)
      store_output(call, token, column_of_y, y);
  }

  let_next_kernel_start();
  // The last block to come here has no reader of the counters beside it.
  __syncthreads();
  if (threadIdx.x == 0) tables.is_last = atomicInc(call.counters, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (tables.is_last && threadIdx.x < num_active) call.counters[1 + threadIdx.x] = 0;
}

// How a call is cut.
struct Cut {
  int up_slabs = 4, down_slabs = 2;
  int team = 1;        // warps that share a unit
  int ring_slabs = 0;  // of a warp
  bool even_down = false;
  size_t shared = 0;
};

constexpr double kEvenDownBytes = 9e6;

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
  // Even parts cost about 2 us at the end; idle multiprocessors cost a share of reading `down`.
  const int groups = down / cut.down_slabs;
  const double idle = 1 - static_cast<double>(groups) / (ceil_div(groups, num_sms) * num_sms);
  const double bytes =
      static_cast<double>(num_tokens) * sizes.top_k * (sizes.factor_offset - sizes.down_offset);
  cut.even_down = idle * bytes > kEvenDownBytes && groups <= kNumCounters - kFewPartCounters &&
                  groups * (kFewParts - 1) >= num_sms;
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
                           cut.ring_slabs, static_cast<int>(pitch_of(call.sizes)), cut.even_down);
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

// The MoE operation for few tokens (T <= 8) in one launch: the whole time goes into reading weights.
//
//   columns of the tensor core = the tokens; x lies in shared memory once
//   1. every block finds the D distinct experts, rising, and weight[d][t] of each token
//   2. up:   units of kUpSlabs slabs, all columns; warps take units in turn; h[d][t][F] to the L2
//   3. down: a block owns kDownSlabs slabs of rows of y; its warps share out the (expert, columns)
//            blocks of those rows evenly and keep weighted sums in registers; 8 sums are added in
//            the order of the warps
//
// Between 2 and 3 each expert has a counter of finished units; a warp has its ring full of weights
// for 3 before it looks at one. All blocks must run at once: the grid is one block an SM, and
// nothing else is waited for. The last block to leave clears the counters.
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

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
static_assert(kThreads == kFewSlots);

// Shared memory ahead of the rings.
struct Tables {
  int num_active;                         // D
  int ids[kFewSlots];                     // of slots; kNoExpert: skipped
  uint8_t is_first[kFewSlots];            // no earlier slot has the same id
  int experts[kFewSlots];                 // [d], rising
  float4 factors[kFewSlots];              // [d]: gate, up, down
  float weights[kFewSlots][kFewTokens];   // [d][t]; 0: not routed
  uint64_t barriers[kWarps][4];
};
constexpr int kNoExpert = 0x7FFFFFFF;

__device__ void find_experts(const Call& call, Tables& tables) {
  const Sizes& sizes = call.sizes;
  const int slot = threadIdx.x, num_slots = call.num_tokens * sizes.top_k;
  int id = kNoExpert;
  float weight = 0;
  if (slot < num_slots) {
    id = call.topk_ids[slot];
    weight = call.topk_weights[slot];
    if (id < 0 || id >= sizes.num_experts || weight == 0) id = kNoExpert;
  }
  tables.ids[slot] = id;
#pragma unroll
  for (int t = 0; t < kFewTokens; ++t) tables.weights[slot][t] = 0;
  __syncthreads();

  const int rounded_slots = (num_slots + 3) & ~3;  // the others are kNoExpert
  const int4* ids = reinterpret_cast<const int4*>(tables.ids);
  bool first = id != kNoExpert;
  for (int i = 0; i * 4 < slot; ++i) {
    const int4 v = ids[i];
    first = first && !((v.x == id && i * 4 < slot) || (v.y == id && i * 4 + 1 < slot) ||
                       (v.z == id && i * 4 + 2 < slot) || (v.w == id && i * 4 + 3 < slot));
  }
  tables.is_first[slot] = first;
  const int num_active = __syncthreads_count(first);
  if (slot == 0) tables.num_active = num_active;

  const uchar4* firsts = reinterpret_cast<const uchar4*>(tables.is_first);
  int rank = 0;
  if (id != kNoExpert)
    for (int i = 0; i < rounded_slots / 4; ++i) {
      const int4 v = ids[i];
      const uchar4 f = firsts[i];
      rank += (f.x && v.x < id) + (f.y && v.y < id) + (f.z && v.z < id) + (f.w && v.w < id);
    }
  if (first) {
    tables.experts[rank] = id;
    tables.factors[rank] = *reinterpret_cast<const float4*>(
        call.packed + static_cast<size_t>(id) * sizes.expert_bytes + sizes.factor_offset);
  }
  // A token may name an expert twice: the first of its slots adds them up.
  if (id != kNoExpert) {
    const int token = slot / sizes.top_k, begin = token * sizes.top_k;
    bool first_of_token = true;
    for (int j = begin; j < slot; ++j) first_of_token = first_of_token && tables.ids[j] != id;
    for (int j = slot + 1; j < begin + sizes.top_k; ++j)
      if (tables.ids[j] == id) weight += call.topk_weights[j];
    if (first_of_token) tables.weights[rank][token] = weight;
  }
  __syncthreads();
}

// x (T, L) -> shared memory, rows `pitch` bytes apart, zeros up to a multiple of 128 columns.
__device__ void load_x(const Call& call, uint8_t* to, int pitch) {
  const int chunks = call.sizes.up_blocks * kBlockCols / 8, filled = call.sizes.hidden / 8;
  for (int t = 0; t < call.num_tokens; ++t) {
    const auto* row = reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(call.x) +
                                                     t * call.x_stride);
    for (int i = threadIdx.x; i < chunks; i += kThreads)
      *reinterpret_cast<uint4*>(to + t * pitch + i * 16) =
          i < filled ? row[i] : make_uint4(0, 0, 0, 0);
  }
}

// A run of column blocks [block, end) of one expert's rows, as stages of at most `kLong` blocks.
struct Run {
  int active = 0;  // d
  int rows = 0;    // first slab, counted from the start of the matrix
  int block = 0, end = 0;
};

// The runs of one warp: units of the up projection.
template <int kSlabs>
struct UpRuns {
  int unit, step, units_per_expert, num_units, blocks;

  __device__ UpRuns(const Sizes& sizes, int num_active, int warp)
      : unit(blockIdx.x + gridDim.x * warp),
        step(gridDim.x * kWarps),
        units_per_expert(sizes.up_tiles * (kTileSlabs / kSlabs)),
        num_units(num_active * units_per_expert),
        blocks(sizes.up_blocks) {}
  __device__ bool next(Run& run) {
    if (unit >= num_units) return false;
    run = {unit / units_per_expert, unit % units_per_expert * kSlabs, 0, blocks};
    unit += step;
    return true;
  }
};

// The runs of one warp: its even share of all (expert, column block) of the rows its block owns.
template <int kSlabs>
struct DownRuns {
  int rows, rows_step, num_rows, blocks;
  int at, begin, end;  // of the flat list d * blocks + block

  __device__ DownRuns(const Sizes& sizes, int num_active, int warp)
      : rows(blockIdx.x * kSlabs),
        rows_step(gridDim.x * kSlabs),
        num_rows(sizes.down_tiles * kTileSlabs),
        blocks(sizes.down_blocks) {
    const int total = num_active * blocks;
    begin = at = total * warp / kWarps;
    end = total * (warp + 1) / kWarps;
    if (begin == end) rows = num_rows;
  }
  __device__ bool next(Run& run) {
    if (rows >= num_rows) return false;
    const int d = at / blocks, block = at % blocks;
    const int count = min(blocks - block, end - at);
    run = {d, rows, block, block + count};
    at += count;
    if (at == end) {
      at = begin;
      rows += rows_step;
    }
    return true;
  }
};

// Runs cut into stages.
template <int kSlabs, class Runs>
struct Stages {
  static constexpr int kLong = kTileSlabs / kSlabs;
  Runs runs;
  Run run;
  bool more;

  __device__ explicit Stages(const Runs& of) : runs(of), more(runs.next(run)) {}
  __device__ int blocks() const { return min(kLong, run.end - run.block); }
  __device__ void advance() {
    run.block += kLong;
    if (run.block >= run.end) more = runs.next(run);
  }
  // Where the stage lies in a matrix of `column_blocks` blocks a tile.
  __device__ size_t offset(int column_blocks, int block_bytes) const {
    return (static_cast<size_t>(run.rows / kTileSlabs) * column_blocks + run.block) * block_bytes +
           run.rows % kTileSlabs * (block_bytes / kTileSlabs);
  }
};

template <WeightFormat kFormat, int kUpSlabs, int kDownSlabs>
__global__ void __launch_bounds__(kThreads, 1)
    few_kernel(const __grid_constant__ Call call, ActivationKind kind, int ring_stages, int x_pitch) {
  using Ring = WeightRing<kFormat>;
  extern __shared__ __align__(128) uint8_t shared[];
  auto& tables = *reinterpret_cast<Tables*>(shared);
  uint8_t* const rings = shared + (sizeof(Tables) + 127) / 128 * 128;
  uint8_t* const x = rings + kWarps * ring_stages * Ring::kStageBytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const Sizes& sizes = call.sizes;
  const int token_row = min(g, call.num_tokens - 1);  // a column beyond T computes a copy

  Ring ring(shared_address(rings) + warp * ring_stages * Ring::kStageBytes,
            shared_address(tables.barriers[warp]), ring_stages, lane);
  wait_for_previous_kernel();
  find_experts(call, tables);
  const int num_active = tables.num_active;

  // Everything this warp will ever fetch, in order: up, then down.
  Stages<kUpSlabs, UpRuns<kUpSlabs>> up_ahead(UpRuns<kUpSlabs>(sizes, num_active, warp));
  Stages<kDownSlabs, DownRuns<kDownSlabs>> down_ahead(
      DownRuns<kDownSlabs>(sizes, num_active, warp));
  const auto weights_of = [&](int d) {
    return call.packed + static_cast<size_t>(tables.experts[d]) * sizes.expert_bytes;
  };
  const auto fetch_next = [&] {
    if (up_ahead.more) {
      ring.fetch(weights_of(up_ahead.run.active) +
                     up_ahead.offset(sizes.up_blocks, Ring::kStageBytes),
                 up_ahead.blocks(), kUpSlabs * Ring::kSlabBytes, lane);
      up_ahead.advance();
    } else if (down_ahead.more) {
      ring.fetch(weights_of(down_ahead.run.active) + sizes.down_offset +
                     down_ahead.offset(sizes.down_blocks, Ring::kStageBytes),
                 down_ahead.blocks(), kDownSlabs * Ring::kSlabBytes, lane);
      down_ahead.advance();
    }
  };
  for (int i = 0; i < ring_stages; ++i) fetch_next();

  load_x(call, x, x_pitch);
  __syncthreads();

  StageWeights<kFormat> weights;
  auto* const h = static_cast<__nv_bfloat16*>(call.hidden_rows);
  const int h_pitch = sizes.down_blocks * kBlockCols;
  {
    constexpr int kLong = kTileSlabs / kUpSlabs;
    UpRuns<kUpSlabs> runs(sizes, num_active, warp);
    const uint32_t x_row = shared_address(x) + token_row * x_pitch;
    for (Run run; runs.next(run);) {
      float acc[kUpSlabs][1][4] = {};
      for (; run.block < run.end; run.block += kLong) {
        ring.take(weights, lane);
        fetch_next();
#pragma unroll
        for (int b = 0; b < kLong; ++b) {
          if (run.block + b >= run.end) break;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t from =
                x_row + ((run.block + b) * kBlockCols + column(kFormat, half, t)) * 2;
            const HalfActivations columns[1] = {{load_shared_16(from), load_shared_16(from + 16)}};
            multiply_half(acc, weights, b * kUpSlabs, half, columns);
          }
        }
      }
      const float4 factor = tables.factors[run.active];
#pragma unroll
      for (int s = 0; s < kUpSlabs; ++s)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int token = 2 * t + j;
          if (tables.weights[run.active][token] != 0)
            store_hidden<kFormat>(h + (run.active * kFewTokens + token) * h_pitch,
                                  run.rows + s, g, acc[s][0][j], acc[s][0][2 + j], factor, kind,
                                  call.activation, sizes.intermediate);
        }
      __syncwarp();
      if (lane == 0) add_release(call.counters + 1 + run.active, 1);
    }
  }

  constexpr int kLong = kTileSlabs / kDownSlabs;
  const int finished = sizes.up_tiles * (kTileSlabs / kUpSlabs);
  const auto load_h = [&](const Run& run, HalfActivations (&b)[kLong][2]) {
    const __nv_bfloat16* row = h + (run.active * kFewTokens + token_row) * h_pitch;
#pragma unroll
    for (int i = 0; i < kLong; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = (run.block + i) * kBlockCols + column(kFormat, half, t);
        if (run.block + i < run.end && at < sizes.intermediate) {
          const auto* from = reinterpret_cast<const uint4*>(row + at);
          b[i][half] = {__ldcg(from), __ldcg(from + 1)};
        } else {
          b[i][half] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
        }
      }
  };
  Stages<kDownSlabs, DownRuns<kDownSlabs>> stages(DownRuns<kDownSlabs>(sizes, num_active, warp));
  int ready = -1;  // h of experts up to this one is there
  const auto wait_for_hidden = [&](int d) {
    if (d <= ready) return;
    while (load_acquire(call.counters + 1 + d) < static_cast<uint32_t>(finished)) {
    }
    ready = d;
  };
  HalfActivations ahead[kLong][2];
  if (stages.more) {
    wait_for_hidden(stages.run.active);
    load_h(stages.run, ahead);
  }
  const int num_rows = sizes.down_tiles * kTileSlabs;
  for (int rows = blockIdx.x * kDownSlabs; rows < num_rows; rows += gridDim.x * kDownSlabs) {
    float sum[kDownSlabs][1][4] = {}, acc[kDownSlabs][1][4] = {};
    while (stages.more && stages.run.rows == rows) {
      const Run run = stages.run;
      HalfActivations b[kLong][2];
#pragma unroll
      for (int i = 0; i < kLong; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) b[i][half] = ahead[i][half];
      ring.take(weights, lane);
      fetch_next();
      stages.advance();
      if (stages.more) {
        wait_for_hidden(stages.run.active);
        load_h(stages.run, ahead);
      }
#pragma unroll
      for (int i = 0; i < kLong; ++i) {
        if (run.block + i >= run.end) break;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const HalfActivations columns[1] = {b[i][half]};
          multiply_half(acc, weights, i * kDownSlabs, half, columns);
        }
      }
      if (run.block + kLong < run.end) continue;
      const float factor = tables.factors[run.active].z;
#pragma unroll
      for (int s = 0; s < kDownSlabs; ++s)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float weight = tables.weights[run.active][2 * t + j % 2];
          if (weight != 0) sum[s][0][j] += acc[s][0][j] * decode_gain(kFormat) * factor * weight;
          acc[s][0][j] = 0;
        }
    }

    // sums[warp][slab][row][token], then one thread an output.
    auto* sums = reinterpret_cast<float*>(x);
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kDownSlabs; ++s)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        sums[((warp * kDownSlabs + s) * kSlabRows + g + j / 2 * 8) * kFewTokens + 2 * t + j % 2] =
            sum[s][0][j];
    __syncthreads();
    constexpr int kOutputs = kDownSlabs * kSlabRows * kFewTokens;
    for (int i = threadIdx.x; i < kOutputs; i += kThreads) {
      const int token = i / (kDownSlabs * kSlabRows), row = i % (kDownSlabs * kSlabRows);
      float y = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) y += sums[w * kOutputs + row * kFewTokens + token];
      const int column_of_y = rows * kSlabRows + row;
      if (token < call.num_tokens && column_of_y < sizes.hidden)
        store_output(call, token, column_of_y, y);
    }
    __syncthreads();
  }

  let_next_kernel_start();
  // The last block to come here has no reader of the counters beside it.
  __shared__ bool is_last;
  if (threadIdx.x == 0) is_last = atomicInc(call.counters, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (is_last && threadIdx.x < num_active) call.counters[1 + threadIdx.x] = 0;
}

size_t shared_bytes(const Sizes& sizes, int tokens, int stages, int stage_bytes, int down_slabs) {
  const size_t pitch = static_cast<size_t>(sizes.up_blocks) * kBlockCols * 2 + 16;
  const size_t sums = static_cast<size_t>(kWarps * down_slabs * kSlabRows * kFewTokens) * 4;
  const size_t x = static_cast<size_t>(tokens) * pitch;
  return (sizeof(Tables) + 127) / 128 * 128 +
         static_cast<size_t>(kWarps * stages * stage_bytes) + (x > sums ? x : sums);
}

constexpr size_t kSharedLimit = 227 * 1024;

// Fewest slab times; of equals, the highest units (they share their activations).
int best_slabs(int slabs, int most, int blocks) {
  int best = 1, best_time = 0x7FFFFFFF;
  for (int s = 1; s <= most; s *= 2) {
    const int time = ceil_div(ceil_div(slabs, s), blocks) * s;
    if (time <= best_time) {
      best = s;
      best_time = time;
    }
  }
  return best;
}

template <WeightFormat kFormat, int kUpSlabs, int kDownSlabs>
cudaError_t launch(const Call& call, ActivationKind kind, const LaunchOptions& options) {
  constexpr int kStageBytes = WeightRing<kFormat>::kStageBytes;
  int stages = 4;
  while (stages > 1 && shared_bytes(call.sizes, call.num_tokens, stages, kStageBytes, kDownSlabs) >
                           kSharedLimit)
    --stages;
  const size_t bytes =
      shared_bytes(call.sizes, call.num_tokens, stages, kStageBytes, kDownSlabs);
  const auto kernel = few_kernel<kFormat, kUpSlabs, kDownSlabs>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  return launch_overlapped(kernel, options, kThreads, bytes, call, kind, stages,
                           call.sizes.up_blocks * kBlockCols * 2 + 16);
}

template <WeightFormat kFormat>
cudaError_t launch(const Call& call, ActivationKind kind, const LaunchOptions& options) {
  const Sizes& sizes = call.sizes;
  const int up_slabs = sizes.up_tiles * kTileSlabs * call.num_tokens * sizes.top_k;
  const int up = best_slabs(up_slabs, 4, options.num_sms);
  const int down = best_slabs(sizes.down_tiles * kTileSlabs, 2, options.num_sms);
  if (up == 4)
    return down == 2 ? launch<kFormat, 4, 2>(call, kind, options)
                     : launch<kFormat, 4, 1>(call, kind, options);
  if (up == 2)
    return down == 2 ? launch<kFormat, 2, 2>(call, kind, options)
                     : launch<kFormat, 2, 1>(call, kind, options);
  return down == 2 ? launch<kFormat, 1, 2>(call, kind, options)
                   : launch<kFormat, 1, 1>(call, kind, options);
}

}  // namespace

bool few_fits(const Sizes& sizes, int num_tokens, WeightFormat format) {
  return num_tokens <= kFewTokens && num_tokens * sizes.top_k <= kFewSlots &&
         shared_bytes(sizes, num_tokens, 2, kTileSlabs * slab_bytes(format), 2) <= kSharedLimit;
}

cudaError_t launch_few(const Call& call, ActivationKind kind, WeightFormat format,
                       const LaunchOptions& options) {
  return format == WeightFormat::kMxfp4 ? launch<WeightFormat::kMxfp4>(call, kind, options)
                                        : launch<WeightFormat::kNvfp4>(call, kind, options);
}

}  // namespace halfbyte::hopper

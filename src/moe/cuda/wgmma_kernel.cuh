// The compute-bound experts: both products with weights decoded in registers as operand A of wgmma.
//
//   up    h[row] = act(gate factor * (W_gate x[token]), up factor * (W_up x[token])), BF16
//   down  slots[slot] = row weight * down factor * (W_down h[row])
//
// A tile is 256 packed weight rows times the rows of one chunk (n <= 160), over all of K in stages
// of 128 columns (wgmma_map.h). One block an SM, 12 warps:
//
//   produce  warps 8..11. Weights by the copy engine; x rows gathered 16 bytes at a time by all
//   four
//            warps, or the rows of h by the copy engine.
//   consume  warpgroups 0 and 1. Warpgroup w has tiles 2 w and 2 w + 1 (64 rows each) of the 256.
//            Every k16: decode the next fragment while the tensor cores work on the last. N is the
//            chunk's rows rounded up to 8, each N its own code; what is beyond the chunk's rows in
//            operand B is arbitrary and only reaches columns that nobody reads.
//   finish   out of the accumulators, 32 columns of a warp's 16 rows at a time through the shared
//            memory of the codes that this warp alone has read, so that a lane has one row of h (or
//            one slot) and the loop over accumulators need not be unrolled.
//
// The stage of a tile's last columns is released after `finish`; the producers work ahead in the
// others, and neither warpgroup waits for the other except through the ring.
// Registers: those of the launch, 168 a thread, go from producers to consumers. Were it one more
// than there are, setmaxnreg would wait for ever.
//
// With HB_WATCHDOG, a wait of half a second says which it is and ends its thread.
#pragma once

#ifdef HB_WATCHDOG
#include <cstdio>
#endif

#include "moe/cuda/activation.cuh"
#include "moe/cuda/decode.cuh"
#include "moe/cuda/kernels.h"
#include "moe/cuda/ptx.cuh"
#include "moe/cuda/wgmma.h"
#include "moe/cuda/wgmma_map.h"
#include "moe/cuda/wgmma_ops.cuh"

namespace halfbyte::hopper {

constexpr int kWgmmaThreads = (kConsumerWarps + kProducerWarps) * 32;
constexpr int kLaunchRegisters = 65536 / kWgmmaThreads / 8 * 8;
constexpr int kConsumerRegisters = 232;
constexpr int kProducerRegisters = 40;
static_assert(kMaxColumns >= kWgmmaRows);
static_assert(kConsumerRegisters * kConsumerWarps + kProducerRegisters * kProducerWarps <=
              kLaunchRegisters * (kConsumerWarps + kProducerWarps));
constexpr int kAtoms = 2;  // tiles of 64 rows that a warpgroup has
constexpr int kGatherRows = kWgmmaRows / kProducerWarps;

// A tile as its consumers need it; num_rows 0: there are no more.
struct Tile {
  int num_rows, first_row, chunk, row_tile;
  float gate_factor, up_factor;  // down: its factor in both
};

struct WgmmaShared {
  uint64_t full[kMaxStages], empty[kMaxStages];
  Tile tiles[kMaxStages];                          // of the stage
  uint32_t gathered[kProducerWarps][kGatherRows];  // rows of x, offset in 16 bytes
};

#ifdef HB_WATCHDOG
__device__ __forceinline__ void ring_wait(uint32_t barrier, const Cursor& at, uint32_t parity,
                                          const char* what) {
  const long long begin = clock64();
  for (;;) {
    uint32_t done;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    if (done != 0) return;
    if (clock64() - begin > 1'000'000'000) break;
  }
  if (blockIdx.x < 2 && threadIdx.x % 32 == 0)
    printf("\n   block %d warp %d waits for %s, stage %d parity %u", blockIdx.x, threadIdx.x / 32,
           what, at.stage, parity);
  asm volatile("exit;");
}
#else
__device__ __forceinline__ void ring_wait(uint32_t barrier, const Cursor&, uint32_t parity,
                                          const char*) {
  barrier_wait(barrier, parity);
}
#endif

// ---- produce

template <WeightFormat kFormat>
struct Producer {
  const WgmmaParams& p;
  WgmmaShared& shared;
  uint32_t ring;
  int warp, lane;
  Cursor at;

  static constexpr uint32_t kBlockBytes = kTileSlabs * slab_bytes(kFormat);
  static constexpr uint32_t kWeightBytes = stage_weight_bytes(kFormat);

  __device__ __forceinline__ uint32_t full() const {
    return shared_address(&shared.full[at.stage]);
  }
  __device__ __forceinline__ uint32_t empty() const {
    return shared_address(&shared.empty[at.stage]);
  }

  // Row r of operand B is gathered by warp r % 8 / 2: a warp has rows 2 warp, 2 warp + 1 of
  // every 8.
  __device__ void list_rows(const Chunk& chunk) {
    __syncwarp();
    for (int k = lane; k < kGatherRows; k += 32) {
      const int row = min(k / 2 * 8 + 2 * warp + k % 2, chunk.num_rows - 1);
      const int token = p.lists.row_slots[chunk.first_row + row] / p.top_k;
      shared.gathered[warp][k] = static_cast<uint32_t>(token) * p.b_pitch;
    }
    __syncwarp();
  }
  __device__ __forceinline__ void gather(uint32_t panels, int block, int rows) {
    const int r = 2 * warp + lane / 16, piece = lane % 16;
    uint32_t to =
        panels + piece / 8 * rows * kPanelRowBytes + r * kPanelRowBytes + ((piece % 8) ^ r) * 16;
    const uint8_t* from = p.b + block * (kBlockCols * 2) + piece * 16;
    uint32_t list = shared_address(&shared.gathered[warp][lane / 16]);
#pragma unroll 4
    for (int i = 0; i < rows / 8; ++i) {
      copy_async_16(to, from + static_cast<size_t>(load_shared_4(list)) * 16);
      to += 8 * kPanelRowBytes;
      list += 8;
    }
  }

  __device__ void run() {
    const bool up = p.product == Product::kUp;
    if (!up && (warp != 0 || lane != 0)) return;
    const bool first = warp == 0 && lane == 0;
    const uint64_t once = evict_first_policy();
    const int num_chunks = *p.lists.num_chunks;
    const int num_tiles = num_chunks * p.row_tiles;

    for (int t = blockIdx.x; t < num_tiles; t += gridDim.x) {
      Tile tile;
      tile.chunk = t / p.row_tiles;
      tile.row_tile = t - tile.chunk * p.row_tiles;
      const Chunk chunk = p.lists.chunks[tile.chunk];
      tile.num_rows = chunk.num_rows;
      tile.first_row = chunk.first_row;
      const int rows = round_up_8(chunk.num_rows);
      if (up) list_rows(chunk);

      const uint8_t* expert = p.packed + static_cast<size_t>(chunk.expert) * p.expert_bytes;
      const uint8_t* weights =
          expert + p.matrix_offset +
          static_cast<size_t>(tile.row_tile) * kPackedTiles * p.blocks * kBlockBytes;
      const uint8_t* hidden =
          p.b + static_cast<size_t>(hidden_row(tile.chunk, tile.first_row)) * p.b_pitch * 16;
      const int tiles = min(kPackedTiles, p.tiles - tile.row_tile * kPackedTiles);
      bool shared_weights = false;  // with another chunk: they shall stay in L2
      if (first) {
        const float* factors = reinterpret_cast<const float*>(expert + p.factor_offset);
        tile.gate_factor = decode_gain(kFormat) * factors[up ? 0 : 2];
        tile.up_factor = decode_gain(kFormat) * factors[up ? 1 : 2];
        shared_weights =
            (tile.chunk > 0 && p.lists.chunks[tile.chunk - 1].expert == chunk.expert) ||
            (tile.chunk + 1 < num_chunks && p.lists.chunks[tile.chunk + 1].expert == chunk.expert);
      }

      for (int block = 0; block < p.blocks; ++block) {
        ring_wait(empty(), at, at.phase ^ 1, "empty");
        const uint32_t stage = ring + at.stage * p.ring.stage_bytes;
        if (first) {
          shared.tiles[at.stage] = tile;
          const uint32_t panels_bytes = up ? 0 : rows * 2 * kPanelRowBytes;
          barrier_arrive_expect(full(), tiles * kBlockBytes + panels_bytes);
          for (int i = 0; i < tiles; ++i) {
            const uint8_t* from = weights + static_cast<size_t>(i * p.blocks + block) * kBlockBytes;
            const uint32_t to = stage + i * kBlockBytes;
            if (shared_weights) {
              copy_bulk(to, from, kBlockBytes, full());
            } else {
              copy_bulk(to, from, kBlockBytes, full(), once);
            }
          }
          if (!up) {
            copy_bulk(stage + kWeightBytes, hidden + static_cast<size_t>(block) * panels_bytes,
                      panels_bytes, full());
          }
        }
        if (up) {
          gather(stage + kWeightBytes, block, rows);
          barrier_arrive_after_copies(full());
        }
        at.advance(p.ring.num_stages);
      }
    }

    ring_wait(empty(), at, at.phase ^ 1, "empty");
    if (first) {
      shared.tiles[at.stage].num_rows = 0;
      barrier_arrive(full());
    }
    if (up) barrier_arrive(full());
  }
};

// ---- consume

template <WeightFormat kFormat>
struct Consumer {
  const WgmmaParams& p;
  WgmmaShared& shared;
  uint32_t ring;
  int warpgroup, warp, lane;  // warp: 0..3 of its warpgroup
  Cursor at;

  static constexpr uint32_t kSlab = slab_bytes(kFormat);
  static constexpr uint32_t kWeightBytes = stage_weight_bytes(kFormat);

  __device__ __forceinline__ uint32_t stage() const { return ring + at.stage * p.ring.stage_bytes; }
  // Of this warp: the 16 rows of its 64-row tile `atom`.
  __device__ __forceinline__ uint32_t slab(uint32_t stage, int atom) const {
    return stage + ((warpgroup * kAtoms + atom) * kTileSlabs + warp) * kSlab;
  }
  __device__ __forceinline__ void wait_full() const {
    ring_wait(shared_address(&shared.full[at.stage]), at, at.phase, "full");
  }
  __device__ __forceinline__ void release(int stage) const {
    if (lane == 0) barrier_arrive(shared_address(&shared.empty[stage]));
  }

  // The accumulators as they are, in registers: no move of them may cross.
  static __device__ __forceinline__ void pin(float (&acc)[kAtoms][kAccumulators]) {
#pragma unroll
    for (int a = 0; a < kAtoms; ++a) {
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) asm volatile("" : "+f"(acc[a][i])::"memory");
    }
  }

  // One group of wgmma with N = 8 eighths, kLow <= eighths <= kHigh. Choosing N here and not around
  // the loop over K keeps one allocation of registers. NOTE: each N commits its own group; one
  // commit for all would be a group of its own to the compiler, and wgmma_wait<1> would wait for
  // every wgmma.
  template <int kLow, int kHigh>
  static __device__ __forceinline__ void wgmma_any(float (&acc)[kAtoms][kAccumulators],
                                                   const uint32_t (&fragments)[kAtoms][4],
                                                   uint64_t panel, int eighths) {
    if constexpr (kLow == kHigh) {
      wgmma_fence();
#pragma unroll
      for (int a = 0; a < kAtoms; ++a) wgmma<8 * kLow>(acc[a], fragments[a], panel);
      wgmma_commit();
    } else {
      constexpr int kMiddle = (kLow + kHigh) / 2;
      if (eighths <= kMiddle) {
        wgmma_any<kLow, kMiddle>(acc, fragments, panel, eighths);
      } else {
        wgmma_any<kMiddle + 1, kHigh>(acc, fragments, panel, eighths);
      }
    }
  }

  // acc[a][0..N/2) = the product of one tile. Leaves `at` at its last stage, not yet released.
  __device__ __forceinline__ void multiply(float (&acc)[kAtoms][kAccumulators], int num_rows) {
    const int eighths = round_up_8(num_rows) / 8;
#pragma unroll
    for (int a = 0; a < kAtoms; ++a) {
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) acc[a][i] = 0;
    }
    pin(acc);
    const uint32_t panel_step = round_up_8(num_rows) * kPanelRowBytes / 16;
    const int blocks = p.blocks;
    const bool gathered = p.product == Product::kUp;
    int previous = 0;
    for (int block = 0; block < blocks; ++block) {
      if (block > 0) {
        previous = at.stage;
        at.advance(p.ring.num_stages);
      }
      wait_full();
      // x came by ordinary writes of other threads.
      if (gathered) fence_async_proxy();
      const uint32_t base = stage();
      const uint64_t panels = operand_b(base + kWeightBytes);
      uint4 codes[kAtoms][2];
      SlabScales<kFormat> scales[kAtoms];
#pragma unroll
      for (int a = 0; a < kAtoms; ++a) {
        codes[a][0] = load_shared_16(slab(base, a) + lane * 16);
        codes[a][1] = load_shared_16(slab(base, a) + 512 + lane * 16);
        scales[a].load(slab(base, a), lane);
      }
      uint32_t fragments[2][kAtoms][4];  // NOTE: one is decoded while wgmma reads the other
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t patterns[kAtoms];
#pragma unroll
        for (int a = 0; a < kAtoms; ++a) patterns[a] = scales[a].patterns(half);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int a = 0; a < kAtoms; ++a) {
            const uint4& q = codes[a][half];
            const uint32_t word = i == 0 ? q.x : i == 1 ? q.y : i == 2 ? q.z : q.w;
            decode_word(word, patterns[a], fragments[i % 2][a]);
          }
          wgmma_any<1, kMaxColumns / 8>(acc, fragments[i % 2], panels + half * panel_step + i * 2,
                                        eighths);
          wgmma_wait<1>();
          // All but the newest are done: those of the stage before among them.
          if (half == 0 && i == 0 && block > 0) release(previous);
        }
      }
    }
    wgmma_wait<0>();
    pin(acc);
  }

  // 32 columns of this warp's 16 rows of one tile, to shared memory: rows 0..7 to `low`, 8..15 to
  // `high`, a slab each, 32 columns a row.
  static constexpr uint32_t kRowPitch = kSlab / 8;
  __device__ __forceinline__ void spread(const float (&acc)[kAtoms][kAccumulators], int part,
                                         uint32_t low, uint32_t high) {
    const uint32_t offset = lane / 4 * kRowPitch + lane % 4 * 8;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kAtoms * ((kMaxColumns + 31) / 32); ++k) {
      if (k == part) {
        const float* c = &acc[k % kAtoms][k / kAtoms * 16];
#pragma unroll
        for (int j = 0; j < 4 && k / kAtoms * 32 + j * 8 < kMaxColumns; ++j) {
          store_shared_8(low + offset + j * 32, c[4 * j], c[4 * j + 1]);
          store_shared_8(high + offset + j * 32, c[4 * j + 2], c[4 * j + 3]);
        }
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ float activate_any(float gate, float up) const {
    const ActivationConstants& c = p.activation;
    switch (p.kind) {
      case ActivationKind::kSitu:
        return activate<ActivationKind::kSitu>(gate, up, c);
      case ActivationKind::kSwiglu:
        return activate<ActivationKind::kSwiglu>(gate, up, c);
      case ActivationKind::kSwigluClamped:
        return activate<ActivationKind::kSwigluClamped>(gate, up, c);
      case ActivationKind::kGegluTanh:
        return activate<ActivationKind::kGegluTanh>(gate, up, c);
      default:
        return activate<ActivationKind::kRelu2>(gate, up, c);
    }
  }

  // A lane has one row of h: 8 (not gated: 16) neighbouring columns of it.
  __device__ __forceinline__ void finish_up(const Tile& tile, int atom, int row, uint32_t low,
                                            uint32_t high) {
    const bool gated = p.kind != ActivationKind::kRelu2;
    const int rows = round_up_8(tile.num_rows);
    const int packed_tile = tile.row_tile * kPackedTiles + warpgroup * kAtoms + atom;
    const bool padding = packed_tile >= p.tiles;  // h is zero there
    const int first = (packed_tile * kTileSlabs + warp) * (gated ? 8 : 16);
    const int block = first / kBlockCols;
    if (block >= p.out_blocks) return;
    uint8_t* h = static_cast<uint8_t*>(p.out) +
                 (static_cast<size_t>(hidden_row(tile.chunk, tile.first_row)) * p.out_blocks +
                  static_cast<size_t>(block) * rows) *
                     (kBlockCols * 2);
    const int pairs = gated ? 4 : 8;
#pragma unroll 1
    for (int pair = 0; pair < pairs; ++pair) {
      const uint32_t from = pair % 4 * 2 * kRowPitch + lane * 4;
      const uint32_t ups = (gated || pair >= 4 ? high : low) + from;
      float v[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float gate = tile.gate_factor * load_shared_float(low + from + i * kRowPitch);
        const float up = tile.up_factor * load_shared_float(ups + i * kRowPitch);
        v[i] = padding ? 0 : activate_any(gate, up);
      }
      const __nv_bfloat162 both = __floats2bfloat162_rn(v[0], v[1]);
      const int position = stored_position(kFormat, first % kBlockCols + 2 * pair);
      if (row < tile.num_rows) {
        *reinterpret_cast<__nv_bfloat162*>(h + panel_byte(rows, row, position)) = both;
      }
    }
  }

  // A lane has one slot: 16 neighbouring columns of its output.
  __device__ __forceinline__ void finish_down(const Tile& tile, int atom, int row, uint32_t low,
                                              uint32_t high) {
    const int packed_tile = tile.row_tile * kPackedTiles + warpgroup * kAtoms + atom;
    const int first = (packed_tile * kTileSlabs + warp) * kSlabRows;
    if (first >= p.out_columns || row >= tile.num_rows) return;
    const int slot = p.lists.row_slots[tile.first_row + row];
    const float scale = tile.up_factor * p.lists.row_weights[tile.first_row + row];
    const size_t offset = static_cast<size_t>(slot) * p.out_columns + first;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t from = (half == 0 ? low : high) + lane * 4;
      float v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = scale * load_shared_float(from + i * kRowPitch);
      if (p.out_is_f32) {
        float4* to = reinterpret_cast<float4*>(static_cast<float*>(p.out) + offset + 8 * half);
        to[0] = make_float4(v[0], v[1], v[2], v[3]);
        to[1] = make_float4(v[4], v[5], v[6], v[7]);
      } else {
        __nv_bfloat162 pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
        *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.out) + offset + 8 * half) =
            *reinterpret_cast<const uint4*>(pairs);
      }
    }
  }

  __device__ __forceinline__ void consume_tile(int num_rows) {
    float acc[kAtoms][kAccumulators];
    multiply(acc, num_rows);

    const Tile tile = shared.tiles[at.stage];
    const uint32_t low = slab(stage(), 0), high = slab(stage(), 1);
    const int parts = (num_rows + 31) / 32 * kAtoms;
#pragma unroll 1
    for (int part = 0; part < parts; ++part) {
      spread(acc, part, low, high);
      const int atom = part % kAtoms, row = part / kAtoms * 32 + lane;
      if (p.product == Product::kUp) {
        finish_up(tile, atom, row, low, high);
      } else {
        finish_down(tile, atom, row, low, high);
      }
    }
    fence_async_proxy();
    __syncwarp();
    release(at.stage);
    at.advance(p.ring.num_stages);
  }

  __device__ void run() {
    for (;;) {
      wait_full();
      // NOTE: of lane 0, so that the compiler sees one value a warp: uniform registers and
      // branches.
      const int num_rows = __shfl_sync(~0u, shared.tiles[at.stage].num_rows, 0);
      if (num_rows == 0) break;
      consume_tile(num_rows);
    }
  }
};

template <WeightFormat kFormat>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    wgmma_kernel(const __grid_constant__ WgmmaParams p) {
  extern __shared__ uint8_t dynamic_shared[];
  __shared__ WgmmaShared shared;
  const uint32_t ring = (shared_address(dynamic_shared) + 1023) & ~1023u;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    const bool up = p.product == Product::kUp;
    for (int i = 0; i < p.ring.num_stages; ++i) {
      barrier_init(shared_address(&shared.full[i]), full_arrivals(up));
      barrier_init(shared_address(&shared.empty[i]), kEmptyArrivals);
    }
    fence_barrier_init();
  }
  __syncthreads();

  if (warp >= kConsumerWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    Producer<kFormat>{p, shared, ring, warp - kConsumerWarps, lane, {}}.run();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
    Consumer<kFormat>{p, shared, ring, warp / 4, warp % 4, lane, {}}.run();
  }
}

template <WeightFormat kFormat>
cudaError_t launch_wgmma_kernel(const WgmmaParams& params, const LaunchOptions& options) {
  const int bytes = params.ring.num_stages * params.ring.stage_bytes + 1024;
  const cudaError_t error = cudaFuncSetAttribute(
      wgmma_kernel<kFormat>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  wgmma_kernel<kFormat><<<options.num_sms, kWgmmaThreads, bytes, options.stream>>>(params);
  return cudaGetLastError();
}

}  // namespace halfbyte::hopper

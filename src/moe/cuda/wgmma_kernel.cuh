// The compute-bound experts: one of both products, with weights decoded in registers as operand A
// of wgmma.
//
//   up    h[row] = act(gate factor * (W_gate x[token]), up factor * (W_up x[token])), BF16
//   down  slots[slot] = row weight * down factor * (W_down h[row])
//
// A tile is 256 packed weight rows times the rows of one chunk, over all of K in stages of 128
// columns (wgmma_map.h). One block an SM, 12 warps:
//
//   produce  warps 8..11. Weights by the copy engine; x rows gathered 16 bytes at a time by all
//            four warps, or the rows of h by the copy engine.
//   consume  warpgroups 0 and 1. Warpgroup w has tiles 2 w and 2 w + 1 (64 rows each) of the 256.
//            Every k16: decode the next fragment while the tensor cores work on the last. The loop
//            over K is compiled for each N of `Widths`; a chunk takes the first that holds its
//            rows. What is beyond them in operand B is arbitrary and only reaches columns that
//            nobody reads.
//   finish   out of the accumulators, through 8 KB of shared memory that each warpgroup has for it,
//            to 16-byte stores. The ring is free by then: producers work ahead in it. Neither
//            warpgroup waits for the other except through the ring.
//
// NOTE: more than about eight loops of different N in one kernel and the compiler waits after each
// wgmma (C7512): hence several kernels, chosen by the most rows of a chunk.
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
#include "moe/cuda/launch.h"
#include "moe/cuda/ptx.cuh"
#include "moe/cuda/wgmma.h"
#include "moe/cuda/wgmma_map.h"
#include "moe/cuda/wgmma_ops.cuh"

namespace halfbyte::hopper {

constexpr int kWgmmaThreads = (kConsumerWarps + kProducerWarps) * 32;
constexpr int kLaunchRegisters = 65536 / kWgmmaThreads / 8 * 8;
constexpr int kConsumerRegisters = 232;
constexpr int kProducerRegisters = 40;
static_assert(kConsumerRegisters * kConsumerWarps + kProducerRegisters * kProducerWarps <=
              kLaunchRegisters * (kConsumerWarps + kProducerWarps));
constexpr int kAtoms = 2;  // tiles of 64 rows that a warpgroup has
constexpr int kGatherRows = kWgmmaRows / kProducerWarps;
constexpr int kWarpgroups = kConsumerWarps / 4;

// The N of one kernel, rising.
template <int... kN>
struct Widths {};

// The first of them that holds num_rows.
template <int kN, int... kWider>
__device__ __forceinline__ int width_for(Widths<kN, kWider...>, int num_rows) {
  if constexpr (sizeof...(kWider) == 0) {
    return kN;
  } else {
    return num_rows <= kN ? kN : width_for(Widths<kWider...>{}, num_rows);
  }
}

// A tile as its consumers need it; num_rows 0: there are no more.
struct Tile {
  int num_rows, first_row, chunk, row_tile;
  float gate_factor, up_factor;  // down: its factor in both
};

struct WgmmaShared {
  uint64_t full[kMaxStages], empty[kMaxStages];
  Tile tiles[kMaxStages];                          // of the stage
  uint32_t gathered[kProducerWarps][kGatherRows];  // rows of x, offset in 16 bytes
  int row_slots[kWarpgroups][kWgmmaRows];          // down: of the tile that a warpgroup has
  float row_weights[kWarpgroups][kWgmmaRows];
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

template <WeightFormat kFormat, Product kProduct, class W>
struct Producer {
  const WgmmaParams& p;
  WgmmaShared& shared;
  uint32_t ring;
  int warp, lane;
  Cursor at;

  static constexpr bool kUp = kProduct == Product::kUp;
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
  __device__ __forceinline__ void gather(uint32_t panels, int panel_bytes, int block, int rows) {
    const int r = 2 * warp + lane / 16, piece = lane % 16;
    uint32_t to = panels + piece / 8 * panel_bytes + r * kPanelRowBytes + ((piece % 8) ^ r) * 16;
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
    const bool first = warp == 0 && lane == 0;
    if (!kUp && !first) return;
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
      const int panel_bytes = width_for(W{}, chunk.num_rows) * kPanelRowBytes;
      if (kUp) list_rows(chunk);

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
        tile.gate_factor = decode_gain(kFormat) * factors[kUp ? 0 : 2];
        tile.up_factor = decode_gain(kFormat) * factors[kUp ? 1 : 2];
        shared_weights =
            (tile.chunk > 0 && p.lists.chunks[tile.chunk - 1].expert == chunk.expert) ||
            (tile.chunk + 1 < num_chunks && p.lists.chunks[tile.chunk + 1].expert == chunk.expert);
      }

      for (int block = 0; block < p.blocks; ++block) {
        ring_wait(empty(), at, at.phase ^ 1, "empty");
        const uint32_t stage = ring + at.stage * p.ring.stage_bytes;
        if (first) {
          shared.tiles[at.stage] = tile;
          const uint32_t rows_bytes = kUp ? 0 : rows * kPanelRowBytes;
          barrier_arrive_expect(full(), tiles * kBlockBytes + 2 * rows_bytes);
          for (int i = 0; i < tiles; ++i) {
            const uint8_t* from = weights + static_cast<size_t>(i * p.blocks + block) * kBlockBytes;
            const uint32_t to = stage + i * kBlockBytes;
            if (shared_weights) {
              copy_bulk(to, from, kBlockBytes, full());
            } else {
              copy_bulk(to, from, kBlockBytes, full(), once);
            }
          }
          if (!kUp) {
            for (int panel = 0; panel < 2; ++panel) {
              copy_bulk(stage + kWeightBytes + panel * panel_bytes,
                        hidden + static_cast<size_t>(2 * block + panel) * rows_bytes, rows_bytes,
                        full());
            }
          }
        }
        if (kUp) {
          gather(stage + kWeightBytes, panel_bytes, block, rows);
          barrier_arrive_after_copies(full());
        }
        at.advance(p.ring.num_stages);
      }
    }

    let_next_kernel_start();
    ring_wait(empty(), at, at.phase ^ 1, "empty");
    if (first) {
      shared.tiles[at.stage].num_rows = 0;
      barrier_arrive(full());
    }
    if (kUp) barrier_arrive(full());
  }
};

// ---- consume

template <WeightFormat kFormat, Product kProduct, class W>
struct Consumer {
  const WgmmaParams& p;
  WgmmaShared& shared;
  uint32_t ring;
  int warpgroup, warp, lane;  // warp: 0..3 of its warpgroup
  Cursor at;

  static constexpr bool kUp = kProduct == Product::kUp;
  static constexpr uint32_t kSlab = slab_bytes(kFormat);
  static constexpr uint32_t kWeightBytes = stage_weight_bytes(kFormat);

  __device__ __forceinline__ uint32_t stage() const { return ring + at.stage * p.ring.stage_bytes; }
  __device__ __forceinline__ uint32_t staging() const {
    return ring + p.ring.num_stages * p.ring.stage_bytes + warpgroup * kStagingBytes;
  }
  __device__ __forceinline__ void wait_full() const {
    ring_wait(shared_address(&shared.full[at.stage]), at, at.phase, "full");
  }
  __device__ __forceinline__ void release(int stage) const {
    if (lane == 0) barrier_arrive(shared_address(&shared.empty[stage]));
  }
  // All 128 threads of this warpgroup.
  __device__ __forceinline__ void meet() const { barrier_sync(1 + warpgroup, 128); }

  // acc[a] = the product of one tile. Leaves `at` at its last stage, not yet released.
  template <int kN>
  __device__ __forceinline__ void multiply(float (&acc)[kAtoms][kN / 2]) {
#pragma unroll
    for (int a = 0; a < kAtoms; ++a) {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) acc[a][i] = 0;
    }
    const uint32_t first_slab = (warpgroup * kAtoms * kTileSlabs + warp) * kSlab;
    const int blocks = p.blocks;
    for (int block = 0;;) {
      wait_full();
      // x came by ordinary writes of other threads.
      if (kUp) fence_async_proxy();
      const uint32_t base = stage();
      const uint64_t panels = operand_b(base + kWeightBytes);
      uint4 codes[kAtoms][2];
      SlabScales<kFormat> scales[kAtoms];
#pragma unroll
      for (int a = 0; a < kAtoms; ++a) {
        const uint32_t slab = base + first_slab + a * kTileSlabs * kSlab;
        codes[a][0] = load_shared_16(slab + lane * 16);
        codes[a][1] = load_shared_16(slab + 512 + lane * 16);
        scales[a].load(slab, lane);
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
          wgmma_fence();
#pragma unroll
          for (int a = 0; a < kAtoms; ++a) {
            wgmma<kN>(acc[a], fragments[i % 2][a],
                      panels + (half * kN * kPanelRowBytes / 16 + i * 2));
          }
          wgmma_commit();
          wgmma_wait<1>();
        }
      }
      wgmma_wait<0>();
      if (++block == blocks) break;
      release(at.stage);
      at.advance(p.ring.num_stages);
    }
  }

  // Columns 16 `part`.. of the accumulators of one atom: 2 columns of 8, 4 values each.
  template <int kN, int kPart = 0>
  static __device__ __forceinline__ void take(const float (&acc)[kAtoms][kN / 2], int atom,
                                              int part, float (&values)[8]) {
    if constexpr (kPart * 16 < kN) {
#pragma unroll
      for (int a = 0; a < kAtoms; ++a) {
        if (part != kPart || atom != a) continue;
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = acc[a][kPart * 8 + i];
        // NOTE: differs from part to part, so that branches stay branches, each for itself.
        asm volatile("// %0" ::"n"(kPart));
      }
      take<kN, kPart + 1>(acc, atom, part, values);
    }
  }

  template <ActivationKind kKind>
  __device__ __forceinline__ void activate_all(float (&values)[8], const Tile& tile) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (kKind == ActivationKind::kRelu2) {
        values[i] = activate<kKind>(0, tile.up_factor * values[i], p.activation);
      } else if (i % 4 < 2) {
        values[i] = activate<kKind>(tile.gate_factor * values[i], tile.up_factor * values[i + 2],
                                    p.activation);
      }
    }
  }
  __device__ __forceinline__ void activate_any(float (&values)[8], const Tile& tile) const {
    switch (p.kind) {
      case ActivationKind::kSitu:
        return activate_all<ActivationKind::kSitu>(values, tile);
      case ActivationKind::kSwiglu:
        return activate_all<ActivationKind::kSwiglu>(values, tile);
      case ActivationKind::kSwigluClamped:
        return activate_all<ActivationKind::kSwigluClamped>(values, tile);
      case ActivationKind::kGegluTanh:
        return activate_all<ActivationKind::kGegluTanh>(values, tile);
      default:
        return activate_all<ActivationKind::kRelu2>(values, tile);
    }
  }

  // Of one column of h, rows 2t and 2t + 1 (of 8) are in a lane; the lane of the neighbouring
  // column has the same rows: each of both takes one row, so that 4 bytes of h come together.
  __device__ __forceinline__ void stage_pair(uint32_t to, float v0, float v1) const {
    const __nv_bfloat162 both = __floats2bfloat162_rn(v0, v1);
    const uint32_t mine = *reinterpret_cast<const uint32_t*>(&both);
    const uint32_t other = __shfl_xor_sync(~0u, mine, 4);
    const bool odd = (lane & 4) != 0;
    store_shared_4(to, odd ? __byte_perm(other, mine, 0x7632) : __byte_perm(mine, other, 0x5410));
  }

  // 64 columns of h (a panel's worth, `group` 0 or 1 of its block) and up to 64 rows from `row` on,
  // staged as panels have them, to h. MXFP4: these columns are half of each 16-byte piece of both
  // panels, so 8 bytes together.
  __device__ __forceinline__ void flush_up(uint8_t* block, int group, int row, int rows) const {
    const int here = min(rows - row, 64), thread = warp * 32 + lane;
    meet();
    if constexpr (kFormat == WeightFormat::kNvfp4) {
      uint8_t* to = block + (group * rows + row) * kPanelRowBytes;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int piece = i * 128 + thread;
        if (piece < here * 8)
          *reinterpret_cast<uint4*>(to + piece * 16) = load_shared_16(staging() + piece * 16);
      }
    } else {
#pragma unroll 2
      for (int i = 0; i < 8; ++i) {
        const int piece = i * 128 + thread, panel = piece / 8 % 2;
        if (piece < here * 16) {
          uint8_t* to = block + (panel * rows + row + piece / 16) * kPanelRowBytes +
                        piece % 8 * 16 + group * 8;
          *reinterpret_cast<uint2*>(to) = load_shared_8(staging() + piece * 8);
        }
      }
    }
    meet();
  }

  template <int kN>
  __device__ __forceinline__ void finish_up(const float (&acc)[kAtoms][kN / 2], const Tile& tile) {
    const bool gated = p.kind != ActivationKind::kRelu2;
    const int rows = round_up_8(tile.num_rows);
    const int block = gated ? tile.row_tile : tile.row_tile * 2 + warpgroup;
    if (block >= p.out_blocks) return;
    uint8_t* h = static_cast<uint8_t*>(p.out) +
                 (static_cast<size_t>(hidden_row(tile.chunk, tile.first_row)) * p.out_blocks +
                  static_cast<size_t>(block) * rows) *
                     (kBlockCols * 2);
    const int g = lane / 4, row_of_8 = lane % 4 * 2 + g % 2;
#pragma unroll 1
    for (int row = 0; row < rows; row += 64) {
#pragma unroll 1
      for (int atom = 0; atom < kAtoms; ++atom) {
        const bool padding =  // h is zero there
            tile.row_tile * kPackedTiles + warpgroup * kAtoms + atom >= p.tiles;
        // Of the 64 columns: group of 16, and piece (stored_position).
        const int sixteen = gated ? atom * 2 + warp / 2 : warp;
        const int piece = g / 2 + (gated ? warp % 2 * 4 : 0);
        uint32_t to = staging() + row_of_8 * kPanelRowBytes;
        uint32_t high = to;
        if constexpr (kFormat == WeightFormat::kNvfp4) {
          to += (piece ^ row_of_8) * 16 + sixteen * 4;
          high += ((piece + 4) ^ row_of_8) * 16 + sixteen * 4;
        } else {
          to += sixteen % 2 * 64 + (piece ^ row_of_8) * 8 + sixteen / 2 * 4;
          high += sixteen % 2 * 64 + ((piece + 4) ^ row_of_8) * 8 + sixteen / 2 * 4;
        }
#pragma unroll 1
        for (int part = 0; part < 4 && row + part * 16 < rows; ++part) {
          float values[8];
          take<kN>(acc, atom, row / 16 + part, values);
          activate_any(values, tile);
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const float* v = values + 4 * j;
            const uint32_t at_row = (part * 16 + j * 8) * kPanelRowBytes;
            stage_pair(to + at_row, padding ? 0 : v[0], padding ? 0 : v[1]);
            if (!gated) stage_pair(high + at_row, padding ? 0 : v[2], padding ? 0 : v[3]);
          }
        }
        if (!gated || atom == kAtoms - 1) flush_up(h, gated ? warpgroup : atom, row, rows);
      }
    }
  }

  // Slots and weights of the tile's rows, to be there when it is finished.
  __device__ __forceinline__ void fetch_rows(const Tile& tile) {
    for (int row = warp * 32 + lane; row < tile.num_rows; row += 128) {
      copy_async_4(shared_address(&shared.row_slots[warpgroup][row]),
                   p.lists.row_slots + tile.first_row + row);
      copy_async_4(shared_address(&shared.row_weights[warpgroup][row]),
                   p.lists.row_weights + tile.first_row + row);
    }
  }

  // 32 slots at a time: the 128 columns of this warpgroup, BF16, 16-byte pieces at
  // piece ^ (row % 8).
  template <int kN>
  __device__ __forceinline__ void finish_down(const float (&acc)[kAtoms][kN / 2],
                                              const Tile& tile) {
    wait_copies();
    const int thread = warp * 32 + lane;
    const int column =
        (tile.row_tile * kPackedTiles + warpgroup * kAtoms) * kTileRows + thread % 16 * 8;
    const uint32_t weights = shared_address(shared.row_weights[warpgroup]) + lane % 4 * 8;
    const uint32_t slots = shared_address(shared.row_slots[warpgroup]) + thread / 16 * 4;
    // As stmatrix wants them, 8 lanes a matrix: rows 0..7 or 8..15 of 16, columns 0..7 or 8..15.
    const uint32_t to = staging() + (lane / 16 * 8 + lane % 8) * 256;
    const uint32_t from = staging() + thread / 16 * 256 + (thread % 16 ^ thread / 16 % 8) * 16;
    __nv_bfloat16* out = static_cast<__nv_bfloat16*>(p.out) + column;
    const bool inside = column < p.out_columns;
#pragma unroll
    for (int part = 0; part < (kN + 31) / 32; ++part) {
      if (part * 32 >= tile.num_rows) break;
      meet();
#pragma unroll
      for (int j = 0; j < 4 && part * 32 + j * 8 < kN; j += 2) {
        const float2 s0 = load_shared_float2(weights + (part * 32 + j * 8) * 4);
        const float2 s1 = load_shared_float2(weights + (part * 32 + j * 8 + 8) * 4);
        const float scales[4] = {tile.up_factor * s0.x, tile.up_factor * s0.y,
                                 tile.up_factor * s1.x, tile.up_factor * s1.y};
#pragma unroll
        for (int a = 0; a < kAtoms; ++a) {
          uint32_t words[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const float* c = &acc[a][part * 16 + j * 4 + 2 * k];
            const __nv_bfloat162 both =
                __floats2bfloat162_rn(scales[k / 2 * 2] * c[0], scales[k / 2 * 2 + 1] * c[1]);
            words[k] = *reinterpret_cast<const uint32_t*>(&both);
          }
          const int piece = a * 8 + warp * 2 + lane / 8 % 2;
          store_matrices_transposed(to + j * 8 * 256 + (piece ^ lane % 8) * 16, words);
        }
      }
      meet();
#pragma unroll
      for (int i = 0; i < 4 && part * 32 + i * 8 < kN; ++i) {
        const int row = part * 32 + i * 8 + thread / 16;
        if (row < tile.num_rows && inside) {
          const size_t slot = load_shared_4(slots + (part * 32 + i * 8) * 4);
          *reinterpret_cast<uint4*>(out + slot * p.out_columns) =
              load_shared_16(from + i * 8 * 256);
        }
      }
    }
    meet();  // before the next tile's rows come
  }

  template <int kN>
  __device__ __forceinline__ void consume_tile() {
    if (!kUp) fetch_rows(shared.tiles[at.stage]);
    float acc[kAtoms][kN / 2];
    multiply<kN>(acc);

    const Tile tile = shared.tiles[at.stage];
    __syncwarp();
    release(at.stage);
    at.advance(p.ring.num_stages);
    if constexpr (kUp) {
      finish_up<kN>(acc, tile);
    } else {
      finish_down<kN>(acc, tile);
    }
  }

  template <int kN, int... kWider>
  __device__ __forceinline__ void consume_any(Widths<kN, kWider...>, int num_rows) {
    if constexpr (sizeof...(kWider) == 0) {
      consume_tile<kN>();
    } else if (num_rows <= kN) {
      consume_tile<kN>();
    } else {
      consume_any(Widths<kWider...>{}, num_rows);
    }
  }

  __device__ void run() {
    for (;;) {
      wait_full();
      // NOTE: of lane 0, so that the compiler sees one value a warp: uniform registers and
      // branches.
      const int num_rows = __shfl_sync(~0u, shared.tiles[at.stage].num_rows, 0);
      if (num_rows == 0) break;
      consume_any(W{}, num_rows);
    }
  }
};

template <WeightFormat kFormat, Product kProduct, class W>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    wgmma_kernel(const __grid_constant__ WgmmaParams p) {
  extern __shared__ uint8_t dynamic_shared[];
  __shared__ WgmmaShared shared;
  const uint32_t ring = (shared_address(dynamic_shared) + 1023) & ~1023u;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int i = 0; i < p.ring.num_stages; ++i) {
      barrier_init(shared_address(&shared.full[i]), full_arrivals(kProduct == Product::kUp));
      barrier_init(shared_address(&shared.empty[i]), kEmptyArrivals);
    }
    fence_barrier_init();
  }
  wait_for_previous_kernel();
  __syncthreads();

  if (warp >= kConsumerWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    Producer<kFormat, kProduct, W>{p, shared, ring, warp - kConsumerWarps, lane, {}}.run();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
    Consumer<kFormat, kProduct, W>{p, shared, ring, warp / 4, warp % 4, lane, {}}.run();
  }
}

template <WeightFormat kFormat, Product kProduct, class W>
cudaError_t launch_wgmma_kernel(const WgmmaParams& params, const LaunchOptions& options) {
  const auto kernel = wgmma_kernel<kFormat, kProduct, W>;
  const int bytes =
      params.ring.num_stages * params.ring.stage_bytes + kWarpgroups * kStagingBytes + 1024;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  return launch_overlapped(kernel, options, kWgmmaThreads, static_cast<size_t>(bytes), params);
}

template <class W>
cudaError_t launch_wgmma_kernels(Product product, WeightFormat format, const WgmmaParams& params,
                                 const LaunchOptions& options) {
  constexpr WeightFormat kNv = WeightFormat::kNvfp4, kMx = WeightFormat::kMxfp4;
  if (product == Product::kUp) {
    return format == kMx ? launch_wgmma_kernel<kMx, Product::kUp, W>(params, options)
                         : launch_wgmma_kernel<kNv, Product::kUp, W>(params, options);
  }
  return format == kMx ? launch_wgmma_kernel<kMx, Product::kDown, W>(params, options)
                       : launch_wgmma_kernel<kNv, Product::kDown, W>(params, options);
}

}  // namespace halfbyte::hopper

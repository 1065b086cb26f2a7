// Calls of more than a few tokens: one of both products, with weights decoded in registers as
// operand A of wgmma.
//
//   up    h[row] = act(gate factor * (W_gate x[token]), up factor * (W_up x[token])), BF16
//   down  slots[slot] = row weight * down factor * (W_down h[row])
//
// A tile is 128 packed weight rows for each of two to four consuming warpgroups times the rows of
// one chunk, over all of K in stages of 128 columns (wgmma_map.h). One block an SM:
//
//   consume  warpgroup w has tiles 2 w and 2 w + 1 (64 packed rows each). Many columns: every k16,
//            the next fragment is decoded while the tensor cores work on the last. Few: half a
//            stage is decoded at once, and the other warpgroups keep the tensor cores busy. The
//            loop over K is compiled for each N of `Widths`; a chunk takes the first that holds its
//            rows. What is beyond them in operand B only reaches columns that nobody reads.
//   finish   out of the accumulators, through shared memory that each warpgroup has for it, to
//            16-byte stores. The ring is free by then: producers work ahead in it. No warpgroup
//            waits for another except through the ring.
//   produce  the last four warps. Weights by the copy engine; x rows gathered 16 bytes at a time by
//            all four, or the rows of h by the copy engine.
//
// NOTE: more than about eight loops of different N in one kernel and the compiler waits after each
// wgmma (C7512): hence several kernels, chosen by the most rows of a chunk.
// Registers: those of the launch go from producers to consumers. Were it one more than there are,
// setmaxnreg would wait for ever.
//
// With HB_WATCHDOG, a wait of half a second says which it is and ends its thread.
#pragma once

#ifdef HB_WATCHDOG
#include <cstdio>
#endif

#include <algorithm>

#include "moe/cuda/activation.cuh"
#include "moe/cuda/decode.cuh"
#include "moe/cuda/kernels.h"
#include "moe/cuda/launch.h"
#include "moe/cuda/ptx.cuh"
#include "moe/cuda/wgmma.h"
#include "moe/cuda/wgmma_map.h"
#include "moe/cuda/wgmma_ops.cuh"

namespace halfbyte::hopper {

// Registers of a thread, by the number of consuming warpgroups.
struct Registers {
  int launch, consumer, producer;
};
HB_HOST_DEVICE constexpr Registers registers_for(int warpgroups) {
  return warpgroups == 2   ? Registers{168, 232, 40}
         : warpgroups == 3 ? Registers{128, 152, 56}
                           : Registers{96, 104, 56};
}
HB_HOST_DEVICE constexpr int threads_for(int warpgroups) {
  return (warpgroups * 4 + kProducerWarps) * 32;
}
constexpr bool registers_fit(int warpgroups) {
  const Registers r = registers_for(warpgroups);
  return r.launch * threads_for(warpgroups) <= 65536 &&
         (r.consumer * warpgroups * 4 + r.producer * kProducerWarps) * 32 <=
             r.launch * threads_for(warpgroups);
}
static_assert(registers_fit(2) && registers_fit(3) && registers_fit(4));
constexpr int kMaxWarpgroups = 4;
constexpr int kProducerBarrier = 1 + kMaxWarpgroups;  // those before are of the warpgroups

// How one kernel is compiled: its consuming warpgroups, how many k16 they decode at a time, and the
// N it has, rising.
template <int kGroups, int kBatch16, int... kN>
struct Widths {
  static constexpr int kWarpgroups = kGroups;
  static constexpr int kBatch = kBatch16;
  static constexpr int kWidest = std::max({kN...});
};

// The first of them that holds num_rows.
template <int kGroups, int kBatch16, int kN, int... kWider>
__device__ __forceinline__ int width_for(Widths<kGroups, kBatch16, kN, kWider...>, int num_rows) {
  if constexpr (sizeof...(kWider) == 0) {
    return kN;
  } else {
    return num_rows <= kN ? kN : width_for(Widths<kGroups, kBatch16, kWider...>{}, num_rows);
  }
}

// A tile as its consumers need it; num_rows 0: there are no more.
struct Tile {
  int num_rows, first_row, expert, chunk, row_tile;
};

struct WgmmaShared {
  uint64_t full[kMaxStages], empty[kMaxStages];
  Tile tiles[kMaxStages];  // of the stage
  int next_tile[2];
  // Rows of x that a warp gathers, offset in 16 bytes: of every 8 rows, two.
  alignas(16) uint32_t gathered[kProducerWarps][2][kWgmmaRows / 8];
  int row_slots[kMaxWarpgroups][kWgmmaRows];  // down: of the tile that a warpgroup has
  float row_weights[kMaxWarpgroups][kWgmmaRows];
  float factors[kMaxWarpgroups][2];  // of gate and up, or of down in the first
};
static_assert(sizeof(WgmmaShared) <= kWgmmaStaticBytes);

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
  static constexpr int kWarpgroups = W::kWarpgroups;
  static constexpr int kTiles = kWarpgroups * kAtoms;  // of 64 packed rows
  static constexpr uint32_t kBlockBytes = kTileSlabs * slab_bytes(kFormat);
  static constexpr uint32_t kWeightBytes = stage_weight_bytes(kFormat, kWarpgroups);
  static constexpr int kSteps = W::kWidest / 8;  // of 8 rows

  __device__ __forceinline__ uint32_t full() const {
    return shared_address(&shared.full[at.stage]);
  }
  __device__ __forceinline__ uint32_t empty() const {
    return shared_address(&shared.empty[at.stage]);
  }

  // Of every 8 rows of operand B a warp gathers rows 2 warp and 2 warp + 1; a lane 16 bytes of one.
  __device__ void list_rows(const Chunk& chunk) {
    __syncwarp();
    for (int k = lane; k < 2 * kSteps; k += 32) {
      const int half = k % 2, i = k / 2;
      const int row = min(i * 8 + 2 * warp + half, chunk.num_rows - 1);
      const int token = p.lists.row_slots[chunk.first_row + row] / p.top_k;
      shared.gathered[warp][half][i] = static_cast<uint32_t>(token) * p.b_pitch;
    }
    __syncwarp();
  }
  // Rows beyond the chunk's are zero: the tensor cores need less power for them.
  __device__ __forceinline__ void gather(uint32_t panels, int width, int block,
                                         int num_rows) const {
    const int half = lane / 16, r = 2 * warp + half, piece = lane % 16;
    const uint32_t to =
        panels + piece / 8 * width * kPanelRowBytes + r * kPanelRowBytes + ((piece % 8) ^ r) * 16;
    const uint8_t* from = p.b + block * (kBlockCols * 2) + piece * 16;
    const uint32_t list = shared_address(&shared.gathered[warp][half][0]);
#pragma unroll
    for (int i = 0; i < kSteps; i += 4) {
      if (i * 8 >= width) break;
      const uint4 v = load_shared_16(list + i * 4);
      const uint32_t offsets[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if ((i + j) * 8 < width)
          copy_async_16_or_zero(to + (i + j) * 8 * kPanelRowBytes,
                                from + static_cast<size_t>(offsets[j]) * 16,
                                (i + j) * 8 + r < num_rows);
      }
    }
  }

  // What the first producer's ticket says, to all of them.
  __device__ __forceinline__ int next_tile(uint32_t ticket, int& round) {
    // Two places: a slow reader has left this one when, two tiles later, it is written again.
    int* const place = &shared.next_tile[round % 2];
    if (warp == 0 && lane == 0) *place = static_cast<int>(ticket);
    ++round;
    barrier_sync(kProducerBarrier, kProducerWarps * 32);
    return *place;
  }

  __device__ void run() {
    const bool first = warp == 0 && lane == 0;
    const uint64_t once = evict_first_policy();
    const int num_chunks = *p.lists.num_chunks;
    const int num_tiles = num_chunks * p.row_tiles;

    // The next tile is asked for while this one is fetched: neither its number nor its chunk is
    // waited for.
    const auto request = [&] { return first ? gridDim.x + atomicAdd(p.tickets, 1u) : 0; };
    int t = blockIdx.x, round = 0;
    Chunk chunk = {};
    uint32_t ticket = 0;
    if (t < num_tiles) {
      chunk = p.lists.chunks[t / p.row_tiles];
      ticket = request();
    }
    while (t < num_tiles) {
      Tile tile;
      tile.chunk = t / p.row_tiles;
      tile.row_tile = t - tile.chunk * p.row_tiles;
      tile.expert = chunk.expert;
      tile.num_rows = chunk.num_rows;
      tile.first_row = chunk.first_row;
      const int rows = round_up_8(chunk.num_rows);
      const int width = width_for(W{}, chunk.num_rows);
      if (kUp) list_rows(chunk);

      const uint8_t* weights = p.packed + static_cast<size_t>(chunk.expert) * p.expert_bytes +
                               p.matrix_offset +
                               static_cast<size_t>(tile.row_tile) * kTiles * p.blocks * kBlockBytes;
      const uint8_t* hidden =
          p.b + static_cast<size_t>(hidden_row(tile.chunk, tile.first_row)) * p.b_pitch * 16;
      // A warpgroup whose second tile is padding has the first's weights in it: whatever finite
      // values h gets there, zero weights of `down` multiply them.
      const int tiles = max(0, min(kTiles, p.tiles - tile.row_tile * kTiles));
      const int copies = tiles + tiles % kAtoms;
      Chunk next_chunk = {};

      // A warp fetches every fourth tile of weights, and perhaps a panel of h.
      const uint32_t rows_bytes = rows * kPanelRowBytes;
      const bool has_panel = !kUp && warp < 2;
      const uint32_t bytes = (copies - warp + kProducerWarps - 1) / kProducerWarps * kBlockBytes +
                             has_panel * rows_bytes;

      for (int block = 0; block < p.blocks; ++block) {
        ring_wait(empty(), at, at.phase ^ 1, "empty");
        const uint32_t stage = ring + at.stage * p.ring.stage_bytes;
        if (lane == 0) {
          if (first) shared.tiles[at.stage] = tile;
          barrier_arrive_expect(full(), bytes);
          for (int i = warp; i < copies; i += kProducerWarps) {
            const uint8_t* from =
                weights + static_cast<size_t>(min(i, tiles - 1) * p.blocks + block) * kBlockBytes;
            const uint32_t to = stage + i * kBlockBytes;
            if (chunk.is_only) {
              copy_bulk(to, from, kBlockBytes, full(), once);
            } else {  // they shall stay in L2
              copy_bulk(to, from, kBlockBytes, full());
            }
          }
          if (has_panel) {
            copy_bulk(stage + kWeightBytes + warp * width * kPanelRowBytes,
                      hidden + static_cast<size_t>(2 * block + warp) * rows_bytes, rows_bytes,
                      full());
          }
        }
        if (kUp) {
          gather(stage + kWeightBytes, width, block, chunk.num_rows);
          barrier_arrive_after_copies(full());
        }
        at.advance(p.ring.num_stages);
        // No lane may miss a phase of the ring (next_tile and the gather see to it otherwise).
        if (!kUp) __syncwarp();
        if (block == 0) {
          t = next_tile(ticket, round);
          if (t < num_tiles) {
            next_chunk = p.lists.chunks[t / p.row_tiles];
            ticket = request();
          }
        }
      }
      chunk = next_chunk;
    }

    // All tickets are answered by now.
    if (first && atomicInc(p.tickets + 1, gridDim.x - 1) == gridDim.x - 1) *p.tickets = 0;
    let_next_kernel_start();
    ring_wait(empty(), at, at.phase ^ 1, "empty");
    if (first) shared.tiles[at.stage].num_rows = 0;
    if (lane == 0) barrier_arrive(full());
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
  static constexpr int kWarpgroups = W::kWarpgroups;
  static constexpr int kTiles = kWarpgroups * kAtoms;
  static constexpr uint32_t kSlab = slab_bytes(kFormat);
  static constexpr uint32_t kWeightBytes = stage_weight_bytes(kFormat, kWarpgroups);
  static constexpr int kStaging = kWarpgroups == 2 ? 8192 : 4096;
  static_assert(kStaging * kWarpgroups <= kStagingBytes);

  __device__ __forceinline__ uint32_t stage() const { return ring + at.stage * p.ring.stage_bytes; }
  __device__ __forceinline__ uint32_t staging() const {
    return ring + p.ring.num_stages * p.ring.stage_bytes + warpgroup * kStaging;
  }
  __device__ __forceinline__ void wait_full() const {
    ring_wait(shared_address(&shared.full[at.stage]), at, at.phase, "full");
  }
  __device__ __forceinline__ void release(int stage) const {
    if (lane == 0) barrier_arrive(shared_address(&shared.empty[stage]));
  }
  // All 128 threads of this warpgroup.
  __device__ __forceinline__ void meet() const { barrier_sync(1 + warpgroup, 128); }

  // What a lane holds of half a stage.
  struct HalfStage {
    uint4 codes[kAtoms];
    SlabScales<kFormat> scales[kAtoms];

    __device__ __forceinline__ void load_codes(uint32_t slab, int half, int lane) {
#pragma unroll
      for (int a = 0; a < kAtoms; ++a)
        codes[a] = load_shared_16(slab + a * kTileSlabs * kSlab + half * 512 + lane * 16);
    }
    __device__ __forceinline__ void load_scales(uint32_t slab, int lane) {
#pragma unroll
      for (int a = 0; a < kAtoms; ++a) scales[a].load(slab + a * kTileSlabs * kSlab, lane);
    }
    __device__ __forceinline__ void decode(int half, int i,
                                           uint32_t (&fragments)[kAtoms][4]) const {
#pragma unroll
      for (int a = 0; a < kAtoms; ++a)
        decode_codes(i, codes[a], scales[a].patterns(half), fragments[a]);
    }
  };

  template <int kN>
  static __device__ __forceinline__ void clear(float (&acc)[kAtoms][kN / 2]) {
#pragma unroll
    for (int a = 0; a < kAtoms; ++a) {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) acc[a][i] = 0;
    }
  }

  // acc[a] = the product of one tile. Leaves `at` at its last stage, not yet released.
  template <int kN>
  __device__ __forceinline__ void multiply(float (&acc)[kAtoms][kN / 2]) {
    clear<kN>(acc);
    const uint32_t first_slab = (warpgroup * kAtoms * kTileSlabs + warp) * kSlab;
    const auto enter = [&](HalfStage& weights) {
      wait_full();
      // x came by ordinary writes of other threads.
      if (kUp) fence_async_proxy();
      weights.load_codes(stage() + first_slab, 0, lane);
      weights.load_scales(stage() + first_slab, lane);
    };
    // kBatch k16 are decoded, then multiplied. One at a time: the next is decoded while the tensor
    // cores read this one. Several: other warpgroups keep the tensor cores busy meanwhile, and the
    // next stage's first weights are read ahead.
    constexpr int kBatch = W::kBatch;
    constexpr bool kDouble = kBatch == 1, kAhead = !kDouble;
    uint32_t fragments[kDouble ? 2 : 1][kBatch][kAtoms][4];
    HalfStage weights;
    if constexpr (kAhead) enter(weights);
    for (int left = p.blocks;;) {
      if constexpr (!kAhead) enter(weights);
      const int here = at.stage;
      const uint32_t base = stage();
      const uint64_t panels = operand_b(base + kWeightBytes);
#pragma unroll
      for (int first = 0; first < 8; first += kBatch) {
        const int half = first / 4;
        auto& batch = fragments[kDouble ? first / kBatch % 2 : 0];
        if (first == 4 && !kAhead) weights.load_codes(base + first_slab, 1, lane);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) weights.decode(half, first % 4 + i, batch[i]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
#pragma unroll
          for (int a = 0; a < kAtoms; ++a) {
            wgmma<kN>(acc[a], batch[i][a],
                      panels + (half * kN * kPanelRowBytes / 16 + (first % 4 + i) * 2));
          }
        }
        wgmma_commit();
        if (first + kBatch == 4 && kAhead) weights.load_codes(base + first_slab, 1, lane);
        if (first + kBatch < 8) wgmma_wait<kDouble ? 1 : 0>();
      }
      if constexpr (!kAhead) wgmma_wait<0>();
      if (--left == 0) break;
      at.advance(p.ring.num_stages);
      if constexpr (kAhead) {
        enter(weights);
        wgmma_wait<0>();
      }
      release(here);
    }
    wgmma_wait<0>();
  }

  // Where all packed rows of this warpgroup are padding: zero, and past the tile's stages.
  template <int kN>
  __device__ __forceinline__ void skip(float (&acc)[kAtoms][kN / 2]) {
    clear<kN>(acc);
    for (int block = 0;;) {
      wait_full();
      if (++block == p.blocks) break;
      __syncwarp();
      release(at.stage);
      at.advance(p.ring.num_stages);
    }
  }

  // Columns 16 `part`.. of the accumulators: 2 columns of 8, 4 values each.
  template <int kN, int kPart = 0>
  static __device__ __forceinline__ void take(const float (&acc)[kAtoms][kN / 2], int part,
                                              float (&values)[kAtoms][8]) {
    if constexpr (kPart * 16 < kN) {
      if (part == kPart) {
#pragma unroll
        for (int a = 0; a < kAtoms; ++a) {
#pragma unroll
          for (int i = 0; i < 8; ++i)
            values[a][i] = kPart * 16 + i / 4 * 8 < kN ? acc[a][kPart * 8 + i] : 0;
        }
        // NOTE: differs from part to part, so that branches stay branches, each for itself.
        asm volatile("// %0" ::"n"(kPart));
      } else {
        take<kN, kPart + 1>(acc, part, values);
      }
    }
  }

  template <ActivationKind kKind>
  __device__ __forceinline__ void activate_all(float (&values)[8], float gate, float up) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (kKind == ActivationKind::kRelu2) {
        values[i] = activate<kKind>(0, up * values[i], p.activation);
      } else if (i % 4 < 2) {
        values[i] = activate<kKind>(gate * values[i], up * values[i + 2], p.activation);
      }
    }
  }
  __device__ __forceinline__ void activate_any(float (&values)[8], float gate, float up) const {
    switch (p.kind) {
      case ActivationKind::kSitu:
        return activate_all<ActivationKind::kSitu>(values, gate, up);
      case ActivationKind::kSwiglu:
        return activate_all<ActivationKind::kSwiglu>(values, gate, up);
      case ActivationKind::kSwigluClamped:
        return activate_all<ActivationKind::kSwigluClamped>(values, gate, up);
      case ActivationKind::kGegluTanh:
        return activate_all<ActivationKind::kGegluTanh>(values, gate, up);
      default:
        return activate_all<ActivationKind::kRelu2>(values, gate, up);
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

  // 64 columns of h (a panel's worth, `group` 0 or 1 of its block) and up to kRows rows from `row`
  // on, staged at `from` as panels have them, to h. MXFP4: these columns are half of each 16-byte
  // piece of both panels, so 8 bytes together.
  template <int kRows>
  __device__ __forceinline__ void flush_up(uint32_t from, uint8_t* block, int group, int row,
                                           int rows) const {
    const int here = min(rows - row, kRows), thread = warp * 32 + lane;
    if constexpr (kFormat == WeightFormat::kNvfp4) {
      uint8_t* to = block + (group * rows + row) * kPanelRowBytes;
#pragma unroll 1
      for (int i = 0; i < kRows / 16; ++i) {
        const int piece = i * 128 + thread;
        if (piece < here * 8)
          *reinterpret_cast<uint4*>(to + piece * 16) = load_shared_16(from + piece * 16);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kRows / 8; ++i) {
        const int piece = i * 128 + thread, panel = piece / 8 % 2;
        if (piece < here * 16) {
          uint8_t* to = block + (panel * rows + row + piece / 16) * kPanelRowBytes +
                        piece % 8 * 16 + group * 8;
          *reinterpret_cast<uint2*>(to) = load_shared_8(from + piece * 8);
        }
      }
    }
  }

  // Of the packed rows of an atom: 32 columns of h (gate and up), or 64 (up alone).
  template <int kN, bool kGated>
  __device__ __forceinline__ void finish_up(const float (&acc)[kAtoms][kN / 2], const Tile& tile) {
    constexpr int kGroups = kGated ? 1 : kAtoms;  // of 64 columns
    constexpr int kRows = kStaging / kPanelRowBytes / kGroups;
    wait_copies();
    meet();
    const uint32_t factors = shared_address(shared.factors[warpgroup]);
    const int rows = round_up_8(tile.num_rows);
    const int first_group = (tile.row_tile * kWarpgroups + warpgroup) * kGroups;
    uint8_t* const h =
        static_cast<uint8_t*>(p.out) + static_cast<size_t>(hidden_row(tile.chunk, tile.first_row)) *
                                           p.out_blocks * (kBlockCols * 2);
    // Where this lane's pair of columns of atom 0 lies in its row (stored_position): group of 16,
    // and piece. The pair of rows g + 8 (up alone) is 4 pieces farther, the swizzle included.
    constexpr bool kNarrow = kFormat == WeightFormat::kNvfp4;
    const int g = lane / 4, row_of_8 = lane % 4 * 2 + g % 2;
    const int sixteen = kGated ? warp / 2 : warp;
    const int piece = (g / 2 + (kGated ? warp % 2 * 4 : 0)) ^ row_of_8;
    const uint32_t place =
        staging() + row_of_8 * kPanelRowBytes +
        (kNarrow ? piece * 16 + sixteen * 4 : sixteen % 2 * 64 + piece * 8 + sixteen / 2 * 4);
    constexpr uint32_t kAtomStep = !kGated ? kRows * kPanelRowBytes : kNarrow ? 8 : 4;
    constexpr uint32_t kHigh = kNarrow ? 64 : 32;
#pragma unroll 1
    for (int row = 0; row < rows; row += kRows) {
#pragma unroll 1
      for (int part = 0; part < kRows / 16 && row + part * 16 < rows; ++part) {
        float values[kAtoms][8];
        take<kN>(acc, row / 16 + part, values);
#pragma unroll
        for (int a = 0; a < kAtoms; ++a) {
          activate_any(values[a], decode_gain(kFormat) * load_shared_float(factors),
                       decode_gain(kFormat) * load_shared_float(factors + 4));
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const float* v = values[a] + 4 * j;
            const uint32_t to = place + a * kAtomStep + (part * 16 + j * 8) * kPanelRowBytes;
            stage_pair(to, v[0], v[1]);
            if (!kGated) stage_pair(to ^ kHigh, v[2], v[3]);
          }
        }
      }
      meet();
#pragma unroll
      for (int k = 0; k < kGroups; ++k) {
        const int group = first_group + k, block = group / 2;
        if (block < p.out_blocks) {
          flush_up<kRows>(staging() + k * kRows * kPanelRowBytes,
                          h + static_cast<size_t>(block) * rows * (kBlockCols * 2), group % 2, row,
                          rows);
        }
      }
      meet();
    }
  }

  // What is needed when the tile is finished: its factors, and slots and weights of its rows.
  __device__ __forceinline__ void fetch_for_finish(const Tile& tile) {
    const int thread = warp * 32 + lane;
    if (thread < 2) {
      const uint8_t* factors =
          p.packed + static_cast<size_t>(tile.expert) * p.expert_bytes + p.factor_offset;
      copy_async_4(shared_address(&shared.factors[warpgroup][thread]),
                   factors + (kUp ? thread : 2) * sizeof(float));
    }
    if constexpr (!kUp) {
      for (int row = thread; row < tile.num_rows; row += 128) {
        copy_async_4(shared_address(&shared.row_slots[warpgroup][row]),
                     p.lists.row_slots + tile.first_row + row);
        copy_async_4(shared_address(&shared.row_weights[warpgroup][row]),
                     p.lists.row_weights + tile.first_row + row);
      }
    }
  }

  // kRows slots at a time: the 128 columns of this warpgroup, BF16, 16-byte pieces at
  // piece ^ (row % 8).
  template <int kN>
  __device__ __forceinline__ void finish_down(const float (&acc)[kAtoms][kN / 2],
                                              const Tile& tile) {
    constexpr int kRows = kStaging / (kAtoms * kTileRows * 2);
    wait_copies();
    const int thread = warp * 32 + lane;
    const int column = (tile.row_tile * kTiles + warpgroup * kAtoms) * kTileRows + thread % 16 * 8;
    const uint32_t weights = shared_address(shared.row_weights[warpgroup]) + lane % 4 * 8;
    const uint32_t slots = shared_address(shared.row_slots[warpgroup]) + thread / 16 * 4;
    // As stmatrix wants them, 8 lanes a matrix: rows 0..7 or 8..15 of 16, columns 0..7 or 8..15.
    const uint32_t to = staging() + (lane / 16 * 8 + lane % 8) * 256;
    const uint32_t from = staging() + thread / 16 * 256 + (thread % 16 ^ thread / 16 % 8) * 16;
    __nv_bfloat16* out = static_cast<__nv_bfloat16*>(p.out) + column;
    const bool inside = column < p.out_columns;
    meet();
    const float factor = decode_gain(kFormat) * shared.factors[warpgroup][0];
#pragma unroll
    for (int part = 0; part < (kN + kRows - 1) / kRows; ++part) {
      if (part * kRows >= tile.num_rows) break;
      if (part > 0) meet();
#pragma unroll
      for (int j = 0; j < kRows / 8 && part * kRows + j * 8 < kN; j += 2) {
        const float2 s0 = load_shared_float2(weights + (part * kRows + j * 8) * 4);
        const float2 s1 = load_shared_float2(weights + (part * kRows + j * 8 + 8) * 4);
        const float scales[4] = {factor * s0.x, factor * s0.y, factor * s1.x, factor * s1.y};
#pragma unroll
        for (int a = 0; a < kAtoms; ++a) {
          uint32_t words[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            // Of 16 columns, 8 may be beyond N.
            const bool there = part * kRows + (j + k / 2) * 8 < kN;
            const float* c = &acc[a][there ? part * (kRows / 2) + j * 4 + 2 * k : 0];
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
      for (int i = 0; i < kRows / 8 && part * kRows + i * 8 < kN; ++i) {
        const int row = part * kRows + i * 8 + thread / 16;
        if (row < tile.num_rows && inside) {
          const size_t slot = load_shared_4(slots + (part * kRows + i * 8) * 4);
          *reinterpret_cast<uint4*>(out + slot * p.out_columns) =
              load_shared_16(from + i * 8 * 256);
        }
      }
    }
    meet();  // before the next tile's rows come
  }

  template <int kN>
  __device__ __forceinline__ void consume_tile() {
    fetch_for_finish(shared.tiles[at.stage]);
    float acc[kAtoms][kN / 2];
    const int first_tile = (shared.tiles[at.stage].row_tile * kWarpgroups + warpgroup) * kAtoms;
    if (__shfl_sync(~0u, first_tile, 0) < p.tiles) {
      multiply<kN>(acc);
    } else {
      skip<kN>(acc);
    }

    const Tile tile = shared.tiles[at.stage];
    __syncwarp();
    release(at.stage);
    at.advance(p.ring.num_stages);
    if constexpr (kUp) {
      if (p.kind == ActivationKind::kRelu2) {
        finish_up<kN, false>(acc, tile);
      } else {
        finish_up<kN, true>(acc, tile);
      }
    } else {
      finish_down<kN>(acc, tile);
    }
  }

  template <int kGroups, int kBatch16, int kN, int... kWider>
  __device__ __forceinline__ void consume_any(Widths<kGroups, kBatch16, kN, kWider...>,
                                              int num_rows) {
    if constexpr (sizeof...(kWider) == 0) {
      consume_tile<kN>();
    } else if (num_rows <= kN) {
      consume_tile<kN>();
    } else {
      consume_any(Widths<kGroups, kBatch16, kWider...>{}, num_rows);
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
__global__ void __launch_bounds__(threads_for(W::kWarpgroups), 1)
    wgmma_kernel(const __grid_constant__ WgmmaParams p) {
  constexpr int kWarpgroups = W::kWarpgroups;
  constexpr Registers kRegisters = registers_for(kWarpgroups);
  extern __shared__ uint8_t dynamic_shared[];
  __shared__ WgmmaShared shared;
  const uint32_t ring = (shared_address(dynamic_shared) + 1023) & ~1023u;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int i = 0; i < p.ring.num_stages; ++i) {
      barrier_init(shared_address(&shared.full[i]), full_arrivals(kProduct == Product::kUp));
      barrier_init(shared_address(&shared.empty[i]), empty_arrivals(kWarpgroups));
    }
    fence_barrier_init();
  }
  wait_for_previous_kernel();
  __syncthreads();

  if (warp >= 4 * kWarpgroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters.producer));
    Producer<kFormat, kProduct, W>{p, shared, ring, warp - 4 * kWarpgroups, lane, {}}.run();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters.consumer));
    Consumer<kFormat, kProduct, W>{p, shared, ring, warp / 4, warp % 4, lane, {}}.run();
  }
}

template <WeightFormat kFormat, Product kProduct, class W>
cudaError_t launch_wgmma_kernel(const WgmmaParams& params, const LaunchOptions& options) {
  const auto kernel = wgmma_kernel<kFormat, kProduct, W>;
  const int bytes = params.ring.num_stages * params.ring.stage_bytes + kStagingBytes + 1024;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  return launch_overlapped(kernel, options, threads_for(W::kWarpgroups), static_cast<size_t>(bytes),
                           params);
}

template <class W>
cudaError_t launch_wgmma_kernels(Product product, WeightFormat format, const WgmmaParams& params,
                                 const LaunchOptions& options) {
  // As the ring and the tiles were computed (wgmma_map.h).
  static_assert(wgmma_kernel_for(W::kWidest).rows == W::kWidest &&
                wgmma_kernel_for(W::kWidest).warpgroups == W::kWarpgroups);
  constexpr WeightFormat kNv = WeightFormat::kNvfp4, kMx = WeightFormat::kMxfp4;
  if (product == Product::kUp) {
    return format == kMx ? launch_wgmma_kernel<kMx, Product::kUp, W>(params, options)
                         : launch_wgmma_kernel<kNv, Product::kUp, W>(params, options);
  }
  return format == kMx ? launch_wgmma_kernel<kMx, Product::kDown, W>(params, options)
                       : launch_wgmma_kernel<kNv, Product::kDown, W>(params, options);
}

}  // namespace halfbyte::hopper

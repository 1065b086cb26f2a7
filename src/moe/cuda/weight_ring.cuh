// A warp's own ring of weight stages in shared memory, filled by the copy engine.
//
// A stage is up to four slabs: kSlabs slabs high and 4 / kSlabs blocks of columns long. Lane 0 fetches;
// the warp takes a stage into registers and the room is free again at once, so that the memory system
// always has the whole ring to fill. No other warp is ever waited for.
#pragma once

#include "moe/cuda/decode.cuh"

namespace halfbyte::hopper {

// One lane's share of a stage.
template <WeightFormat kFormat>
struct StageWeights {
  uint4 codes[kTileSlabs][2];  // [slab][half]
  SlabScales<kFormat> scales[kTileSlabs];

  __device__ __forceinline__ uint32_t word(int slab, int half, int i) const {
    const uint4& v = codes[slab][half];
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
  }
};

template <WeightFormat kFormat>
class WeightRing {
 public:
  static constexpr int kSlabBytes = slab_bytes(kFormat);
  static constexpr int kStageBytes = kTileSlabs * kSlabBytes;

  // `memory` has `stages` stages of this warp, `barriers` 8 bytes for each.
  __device__ __forceinline__ WeightRing(uint32_t memory, uint32_t barriers, int stages, int lane)
      : memory_(memory), barriers_(barriers), stages_(stages), policy_(evict_first_policy()) {
    if (lane == 0) {
      for (int i = 0; i < stages; ++i) barrier_init(barriers + 8 * i, 1);
      fence_barrier_init();
    }
    __syncwarp();
  }

  // Fetches `blocks` blocks, each `bytes` long (whole slabs), kStageBytes apart in `from`. All lanes
  // call.
  __device__ __forceinline__ void fetch(const uint8_t* from, int blocks, int bytes, int lane) {
    if (lane == 0) {
      const uint32_t barrier = barriers_ + 8 * fetch_at_;
      uint32_t to = memory_ + fetch_at_ * kStageBytes;
      barrier_arrive_expect(barrier, blocks * bytes);
      for (int i = 0; i < blocks; ++i) {
        copy_bulk(to, from, bytes, barrier, policy_);
        to += bytes;
        from += kStageBytes;
      }
    }
    if (++fetch_at_ == stages_) fetch_at_ = 0;
  }

  // Waits for the oldest stage and takes it.
  __device__ __forceinline__ void take(StageWeights<kFormat>& weights, int lane) {
    barrier_wait(barriers_ + 8 * take_at_, parity_);
    const uint32_t stage = memory_ + take_at_ * kStageBytes;
#pragma unroll
    for (int s = 0; s < kTileSlabs; ++s) {
      const uint32_t slab = stage + s * kSlabBytes;
      weights.codes[s][0] = load_shared_16(slab + lane * 16);
      weights.codes[s][1] = load_shared_16(slab + kCodeBytes / 2 + lane * 16);
      weights.scales[s].load(slab, lane);
    }
    __syncwarp();
    if (++take_at_ == stages_) {
      take_at_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  uint32_t memory_, barriers_;
  int stages_;
  int fetch_at_ = 0, take_at_ = 0;
  uint32_t parity_ = 0;
  uint64_t policy_;
};

// The 16 activations of one token that a lane multiplies with a half block.
struct HalfActivations {
  uint4 low, high;
};

// acc[s] += weights (slabs first + s, one half of a block of columns) * activations.
template <int kSlabs, int kColumns, WeightFormat kFormat>
__device__ __forceinline__ void multiply_half(float (&acc)[kSlabs][kColumns][4],
                                              const StageWeights<kFormat>& weights, int first,
                                              int half, const HalfActivations (&b)[kColumns]) {
#pragma unroll
  for (int s = 0; s < kSlabs; ++s) {
    const uint32_t patterns = weights.scales[first + s].patterns(half);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t a[4];
      decode_word(weights.word(first + s, half, i), patterns, a);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const uint4& v = i < 2 ? b[n].low : b[n].high;
        mma(acc[s][n], a, i % 2 == 0 ? v.x : v.z, i % 2 == 0 ? v.y : v.w);
      }
    }
  }
}

}  // namespace halfbyte::hopper

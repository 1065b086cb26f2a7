// A warp's own ring of weight stages in shared memory, filled by the copy engine.
//
// A stage is some slabs (1, 2 or 4) of one block of columns; stages of different height may follow
// each other. Lane 0 fetches; the warp reads a stage into registers and its room is free again at
// once, so that the memory system always has the whole ring to fill. No other warp is ever waited
// for.
#pragma once

#include "moe/cuda/decode.cuh"

namespace halfbyte::hopper {

// One lane's share of one half (64 of the 128 columns) of a stage, as its scales will be used.
template <int kSlabs>
struct HalfWeights {
  uint4 codes[kSlabs];
  uint32_t scales[kSlabs];
};

constexpr int kMaxRingSlabs = 16;

template <WeightFormat kFormat>
class WeightRing {
 public:
  static constexpr int kSlabBytes = slab_bytes(kFormat);
  static constexpr int kBlockBytes = kTileSlabs * kSlabBytes;

  // `memory` has `slabs` slabs, a multiple of 4; `barriers` 8 bytes for each.
  __device__ __forceinline__ WeightRing(uint32_t memory, uint32_t barriers, int slabs, int lane)
      : memory_(memory), barriers_(barriers), slabs_(slabs) {
    if (lane == 0) {
      for (int i = 0; i < slabs; ++i) barrier_init(barriers + 8 * i, 1);
      fence_barrier_init();
    }
    __syncwarp();
  }

  // Of so many slabs is there room now? All lanes call everything here.
  __device__ __forceinline__ bool has_room(int slabs) const { return used_ + slabs <= slabs_; }

  template <int kSlabs>
  __device__ __forceinline__ void fetch(const uint8_t* from, int lane) {
    if (lane == 0) {
      const uint32_t barrier = barriers_ + 8 * fetch_at_;
      barrier_arrive_expect(barrier, kSlabs * kSlabBytes);
      copy_bulk(memory_ + fetch_at_ * kSlabBytes, from, kSlabs * kSlabBytes, barrier,
                evict_first_policy());
    }
    fetch_at_ += kSlabs;
    if (fetch_at_ == slabs_) fetch_at_ = 0;
    used_ += kSlabs;
  }

  // Waits for the oldest stage.
  __device__ __forceinline__ void wait() {
    barrier_wait(barriers_ + 8 * take_at_, parities_ >> take_at_ & 1);
    parities_ ^= 1u << take_at_;
  }

  // Reads a half of it.
  template <int kSlabs>
  __device__ __forceinline__ HalfWeights<kSlabs> read(int half, int lane) const {
    HalfWeights<kSlabs> weights;
#pragma unroll
    for (int s = 0; s < kSlabs; ++s) {
      const uint32_t slab = memory_ + (take_at_ + s) * kSlabBytes;
      weights.codes[s] = load_shared_16(slab + half * (kCodeBytes / 2) + lane * 16);
      SlabScales<kFormat> scales;
      scales.load(slab, lane);
      weights.scales[s] = scales.patterns(half);
    }
    return weights;
  }

  // It has been read: a fetch may overwrite it.
  // NOTE: the loads have been issued, and may still be on their way when the copy engine is told to
  // fetch; its data cannot come before theirs, from so much farther away.
  template <int kSlabs>
  __device__ __forceinline__ void release() {
    __syncwarp();
    take_at_ += kSlabs;
    if (take_at_ == slabs_) take_at_ = 0;
    used_ -= kSlabs;
  }

 private:
  uint32_t memory_, barriers_;
  int slabs_;
  int fetch_at_ = 0, take_at_ = 0, used_ = 0;  // in slabs
  uint32_t parities_ = 0;                      // of each barrier
};

// The 16 activations of one token that a lane multiplies with a half block.
struct HalfActivations {
  uint4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};

  // Reads them if `there`, else leaves what is: a column without a token stays zero, which costs
  // the tensor cores less power than any other value.
  __device__ __forceinline__ void load_if(bool there, uint32_t from) {
    load_shared_16_if(there, from, low);
    load_shared_16_if(there, from + 16, high);
  }
};

// acc[s] += weights (slab s, one half of a block of columns) * activations.
template <int kSlabs, int kColumns>
__device__ __forceinline__ void multiply_half(float (&acc)[kSlabs][kColumns][4],
                                              const HalfWeights<kSlabs>& weights,
                                              const HalfActivations (&b)[kColumns]) {
#pragma unroll
  for (int s = 0; s < kSlabs; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t a[4];
      decode_codes(i, weights.codes[s], weights.scales[s], a);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const uint4& v = i < 2 ? b[n].low : b[n].high;
        mma(acc[s][n], a, i % 2 == 0 ? v.x : v.z, i % 2 == 0 ? v.y : v.w);
      }
    }
  }
}

}  // namespace halfbyte::hopper

// Packed weights -> operand A of the tensor cores (layout.h), 24 instructions for 16 weights: turn
// and mask each pair of codes into the place where it is a BF16 value, then multiply it by the BF16
// pattern of its scale. Both factors and the product are exact.
#pragma once

#include "moe/cuda/layout.h"
#include "moe/cuda/ptx.cuh"

namespace halfbyte::hopper {

__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
// (a & b) | c
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ uint32_t low_twice(uint32_t pair) {
  const __nv_bfloat162 v = *reinterpret_cast<const __nv_bfloat162*>(&pair);
  const __nv_bfloat162 r = __low2bfloat162(v);
  return *reinterpret_cast<const uint32_t*>(&r);
}
__device__ __forceinline__ uint32_t high_twice(uint32_t pair) {
  const __nv_bfloat162 v = *reinterpret_cast<const __nv_bfloat162*>(&pair);
  const __nv_bfloat162 r = __high2bfloat162(v);
  return *reinterpret_cast<const uint32_t*>(&r);
}

// The bits of `a` where `mask` has ones, those of `b` elsewhere. One instruction; the compiler
// makes two of it.
__device__ __forceinline__ uint32_t select_bits(uint32_t mask, uint32_t a, uint32_t b) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(r) : "r"(mask), "r"(a), "r"(b));
  return r;
}

// x << kBits as a product: shifts share a unit with the masks, which is the busiest here; products
// have their own. blockDim.y is 1, which the compiler does not know.
template <int kBits>
__device__ __forceinline__ uint32_t shift_by_product(uint32_t x) {
  return x * (blockDim.y << kBits);
}

// The fragment of the first or the second of two words (encode_words); `scales` = BF16 patterns of
// (row g, row g + 8).
__device__ __forceinline__ void decode_word(bool is_second, uint32_t first, uint32_t second,
                                            uint32_t scales, uint32_t (&a)[4]) {
  constexpr uint32_t kPlaces = 0x81C081C0u;
  const uint32_t g = low_twice(scales), g8 = high_twice(scales);
  const uint32_t shared = select_bits(kFirstWordBits, first, second);
  if (!is_second) {
    a[0] = multiply_bf16x2(first & kPlaces, g);
    a[1] = multiply_bf16x2(shift_by_product<4>(first) & kPlaces, g8);
    a[2] = multiply_bf16x2(__funnelshift_l(first, first, 10) & kPlaces, g);
    a[3] = multiply_bf16x2(__funnelshift_l(shared, shared, 24) & kPlaces, g8);
  } else {
    a[0] = multiply_bf16x2(shift_by_product<2>(second) & kPlaces, g);
    a[1] = multiply_bf16x2(shift_by_product<6>(second) & kPlaces, g8);
    a[2] = multiply_bf16x2(__funnelshift_l(second, second, 12) & kPlaces, g);
    a[3] = multiply_bf16x2(__funnelshift_l(shared, shared, 30) & kPlaces, g8);
  }
}
// The fragment of instruction i (0..3) of a half block.
__device__ __forceinline__ void decode_codes(int i, const uint4& codes, uint32_t scales,
                                             uint32_t (&a)[4]) {
  if (i < 2) {
    decode_word(i % 2 != 0, codes.x, codes.y, scales, a);
  } else {
    decode_word(i % 2 != 0, codes.z, codes.w, scales, a);
  }
}

// One lane's share of the scales of a slab, and the patterns that its halves are multiplied by.
template <WeightFormat kFormat>
struct SlabScales;

template <>
struct SlabScales<WeightFormat::kNvfp4> {
  uint32_t word;
  __device__ __forceinline__ void load(uint32_t slab, int lane) {
    word = load_shared_4(slab + kCodeBytes + lane * 4);
  }
  __device__ __forceinline__ uint32_t patterns(int half) const {
    return and_or(half == 0 ? word : __byte_perm(word, 0, 0x2301), 0x0FF00FF0u, 0x70007000u);
  }
};

template <>
struct SlabScales<WeightFormat::kMxfp4> {
  uint32_t word;
  __device__ __forceinline__ void load(uint32_t slab, int lane) {
    word = __byte_perm(load_shared_2(slab + kCodeBytes + lane * 2), 0, 0x4140) << 7;
  }
  __device__ __forceinline__ uint32_t patterns(int /*half*/) const { return word; }
};

}  // namespace halfbyte::hopper

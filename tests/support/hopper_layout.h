// For tests of the Hopper layout: the decoding of the kernels (moe/cuda/decode.cuh), instruction by
// instruction, in scalar code; and experts with every legal scale.
#pragma once

#include <array>
#include <cstdint>
#include <random>

#include "formats/bf16.h"
#include "moe/cuda/layout.h"
#include "support/moe.h"

namespace halfbyte::testing_hopper {

using Pairs = std::array<uint32_t, 8>;  // of BF16 patterns: what encode_words takes

constexpr uint32_t rotate_left(uint32_t x, int n) { return (x << n) | (x >> (32 - n)); }

// lop3 (a select), and, shl, shf.l.wrap
constexpr Pairs unpack_words(const hopper::WordPair& words) {
  constexpr uint32_t kPlaces = 0x81C081C0u;
  const uint32_t x = words.first, y = words.second;
  const uint32_t shared = (x & 0x06030603u) | (y & 0xF9FCF9FCu);
  return {x & kPlaces,
          (x << 4) & kPlaces,
          rotate_left(x, 10) & kPlaces,
          rotate_left(shared, 24) & kPlaces,
          (y << 2) & kPlaces,
          (y << 6) & kPlaces,
          rotate_left(y, 12) & kPlaces,
          rotate_left(shared, 30) & kPlaces};
}

// prmt 0x2301, lop3: patterns (row g, row g + 8) of a half.
constexpr uint32_t nvfp4_patterns(uint32_t scale_word, int half) {
  const uint32_t swapped = ((scale_word & 0x00FF00FFu) << 8) | ((scale_word >> 8) & 0x00FF00FFu);
  return ((half == 0 ? scale_word : swapped) & 0x0FF00FF0u) | 0x70007000u;
}
constexpr uint32_t mxfp4_patterns(uint32_t two_bytes) {
  return ((two_bytes & 0xFFu) | ((two_bytes & 0xFF00u) << 8)) << 7;
}

// mul.rn.bf16x2 of one element, without its rounding: a pack is right only if there is none.
inline double product(uint32_t value_pattern, uint32_t scale_pattern) {
  return double{bf16_to_float(static_cast<uint16_t>(value_pattern))} *
         double{bf16_to_float(static_cast<uint16_t>(scale_pattern))};
}
inline bool is_bf16(double value) {
  return double{bf16_to_float(float_to_bf16(static_cast<float>(value)))} == value;
}

// Experts with every legal scale: NVFP4 all of E4M3 that is not negative; MXFP4 exponents
// over 20 binades, each matrix in its own range.
inline testing_moe::StoredExperts random_experts(const MoeShape& shape, std::mt19937& random) {
  testing_moe::StoredExperts experts = testing_moe::random_experts(shape, random);
  size_t index = 0;
  for (testing_moe::StoredMatrix& matrix : experts.matrices) {
    for (uint8_t& scale : matrix.scales) {
      scale = static_cast<uint8_t>(random());
      if (shape.weights == WeightFormat::kMxfp4)
        scale = static_cast<uint8_t>(90 + index % 3 * 15 + scale % 20);
      else
        scale = static_cast<uint8_t>(scale % 0x7F);
    }
    ++index;
  }
  return experts;
}

}  // namespace halfbyte::testing_hopper

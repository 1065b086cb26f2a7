// The kernels in plain C++, for any processor.
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "simd/kernels_levels.h"

#define HB_INLINE inline __attribute__((always_inline))

namespace halfbyte::scalar {
namespace {

#include "simd/scalar.inl.h"
#include "simd/tile_dot.inl.h"

uint64_t read(const std::byte* data, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, data + i, sizeof word);
    sum ^= word;
  }
  return sum;
}

double spin(int64_t rounds, float* sink) {
  constexpr int kChains = 4;
  F32x16 sum[kChains] = {};
  F32x16 w = broadcast(1);
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+m"(w));
    for (F32x16& s : sum) s = fma(w, w, s);
  }
  for (const F32x16& s : sum) *sink += s.v[0];
  return static_cast<double>(rounds) * kChains * 16 * 2;
}

}  // namespace

void fill(Kernels& table) {
  table.bf16_pairs = PairFormat::kF32;
  table.max_tokens[static_cast<int>(PairFormat::kF32)] = 2;
  fill_dots<FloatPair, 2>(PairFormat::kF32, table);
  fill_rest(table);
}

}  // namespace halfbyte::scalar

#undef HB_INLINE

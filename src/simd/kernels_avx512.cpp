// The kernels for AVX-512 with BF16 and VBMI (Zen 4 and later, Sapphire Rapids and later).
//
// Cycles for a group of 16 rows by 16 columns of NVFP4, in cache: docs/performance.md.
#include "simd/kernels_levels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512bf16,avx2,fma,f16c,bmi2")
#define HB_INLINE inline __attribute__((always_inline))

namespace halfbyte::avx512 {
namespace {

#include "simd/avx512.inl.h"
#include "simd/tile_dot.inl.h"

uint64_t read(const std::byte* data, size_t bytes) {
  __m512i sum[4] = {};
  for (size_t i = 0; i < bytes; i += 256)
#pragma GCC unroll 4
    for (size_t line = 0; line < 4; ++line)
      sum[line] = _mm512_xor_si512(sum[line], load_line(data + i + line * 64));
  // NOTE: stored, since GCC 12 warns about the inside of _mm512_reduce_*.
  alignas(64) uint64_t words[8];
  _mm512_store_si512(
      words, _mm512_xor_si512(_mm512_xor_si512(sum[0], sum[1]), _mm512_xor_si512(sum[2], sum[3])));
  uint64_t all = 0;
  for (uint64_t word : words) all ^= word;
  return all;
}

double spin(int64_t rounds, float* sink) {
  constexpr int kChains = 16;  // more than latency times throughput
  F32x16 sum[kChains];
  for (F32x16& s : sum) s = zero();
  Bf16Pairs w{_mm512_set1_epi32(0x3F803F80)};
  Bf16Pairs x = w;
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(w.v), "+v"(x.v));
#pragma GCC unroll 16
    for (F32x16& s : sum)
      s.v = _mm512_dpbf16_ps(s.v, reinterpret_cast<__m512bh>(w.v), reinterpret_cast<__m512bh>(x.v));
  }
  for (const F32x16& s : sum) *sink += _mm512_cvtss_f32(s.v);
  return static_cast<double>(rounds) * kChains * 16 * 4;
}

}  // namespace

void fill(Kernels& table) {
  table.bf16_pairs = PairFormat::kBf16;
  table.max_tokens[static_cast<int>(PairFormat::kBf16)] = 8;
  table.max_tokens[static_cast<int>(PairFormat::kF32)] = 4;
  fill_dots<Bf16Pair, 8>(PairFormat::kBf16, table);
  fill_dots<FloatPair, 4>(PairFormat::kF32, table);
  fill_rest(table);
}

}  // namespace halfbyte::avx512

#undef HB_INLINE
#pragma GCC pop_options

#endif

// The kernels for AVX2 with FMA and F16C (Haswell and later, Zen and later).
#include "simd/kernels_levels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "formats/bf16.h"
#include "formats/e4m3.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define HB_INLINE inline __attribute__((always_inline))

namespace halfbyte::avx2 {
namespace {

#include "simd/avx2.inl.h"
#include "simd/tile_dot.inl.h"

uint64_t read(const std::byte* data, size_t bytes) {
  __m256i sum[4] = {};
  for (size_t i = 0; i < bytes; i += 128)
#pragma GCC unroll 4
    for (size_t part = 0; part < 4; ++part)
      sum[part] = _mm256_xor_si256(
          sum[part], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + part * 32)));
  const __m256i all =
      _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(all, 0) + _mm256_extract_epi64(all, 1) +
                               _mm256_extract_epi64(all, 2) + _mm256_extract_epi64(all, 3));
}

double spin(int64_t rounds, float* sink) {
  constexpr int kChains = 12;  // more than latency times throughput
  __m256 sum[kChains];
  for (__m256& s : sum) s = _mm256_setzero_ps();
  __m256 w = _mm256_set1_ps(1);
  __m256 x = w;
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+x"(w), "+x"(x));
#pragma GCC unroll 12
    for (__m256& s : sum) s = _mm256_fmadd_ps(w, x, s);
  }
  for (const __m256& s : sum) *sink += _mm256_cvtss_f32(s);
  return static_cast<double>(rounds) * kChains * 8 * 2;
}

}  // namespace

void fill(Kernels& table) {
  table.bf16_pairs = PairFormat::kF32;
  table.max_tokens[static_cast<int>(PairFormat::kF32)] = 2;
  fill_dots<FloatPair, 2>(PairFormat::kF32, table);
  fill_rest(table);
}

}  // namespace halfbyte::avx2

#undef HB_INLINE
#pragma GCC pop_options

#endif

// The loops of dense operations for AVX2 with FMA and F16C.
#include "ops/cpu/dense_levels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "ops/activation.h"
#include "ops/activation_kernels.h"
#include "simd/tiles.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define HB_INLINE inline __attribute__((always_inline))

namespace halfbyte::cpu::avx2 {
namespace {
// clang-format off
#include "simd/avx2.inl.h"
#include "ops/cpu/dense_body.inl.h"
// clang-format on
}  // namespace

DenseKernels table() {
  return {convert,    add_row,    rmsnorm, residual_mix,       activate_row,   sigmoid_gate,
          gated_norm, short_conv, kda,     absorbed_attention, attention_block};
}

}  // namespace halfbyte::cpu::avx2

#undef HB_INLINE
#pragma GCC pop_options

#endif

// The loops of dense operations in plain C++, for any processor.
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
#include "ops/cpu/dense_levels.h"
#include "simd/tiles.h"

#define HB_INLINE inline __attribute__((always_inline))

namespace halfbyte::cpu::scalar {
namespace {
// clang-format off
#include "simd/scalar.inl.h"
#include "ops/cpu/dense_body.inl.h"
// clang-format on
}  // namespace

DenseKernels table() {
  return {convert,    add_row,    rmsnorm, residual_mix,       activate_row,   sigmoid_gate,
          gated_norm, short_conv, kda,     absorbed_attention, attention_block};
}

}  // namespace halfbyte::cpu::scalar

#undef HB_INLINE

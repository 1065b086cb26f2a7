#include <bit>
#include <cmath>
#include <cstring>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "ops/activation_kernels.h"
#include "simd/tiles.h"

#define HB_INLINE inline __attribute__((always_inline))

namespace halfbyte::scalar {
namespace {

// The words come first.
// clang-format off
#include "simd/scalar.inl.h"
#include "ops/vector_activation.inl.h"
// clang-format on

}  // namespace

void activate(const Activation& activation, const ActivationInputs& inputs, int64_t count,
              float* h) {
  activate_any(activation, inputs, count, h);
}

}  // namespace halfbyte::scalar

#undef HB_INLINE

#include "ops/activation_kernels.h"

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

// The words come first.
// clang-format off
#include "simd/avx512.inl.h"
#include "ops/vector_activation.inl.h"
// clang-format on

}  // namespace

void activate(const Activation& activation, const ActivationInputs& inputs, int64_t count,
              float* h) {
  activate_any(activation, inputs, count, h);
}

}  // namespace halfbyte::avx512

#undef HB_INLINE
#pragma GCC pop_options

#endif

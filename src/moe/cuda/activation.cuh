// The activations of experts in fp32, on the special-function unit: ex2 and rcp are within 2 units
// in the last place, so a hidden value is right to about 2^-21 before it is rounded to BF16.
#pragma once

#include "halfbyte/activation.h"

namespace halfbyte::hopper {

// What a kernel needs to know of an activation.
struct ActivationConstants {
  float beta = 0, one_over_beta = 0;                // SiTU
  float linear_beta = 0, one_over_linear_beta = 0;  // SiTU; linear_beta 0: up as it is
  float alpha = 0, limit = 0, up_bias = 0;          // clamped SwiGLU
};

inline ActivationConstants activation_constants(const Activation& a) {
  ActivationConstants c;
  c.beta = a.beta;
  c.one_over_beta = 1 / a.beta;
  if (a.linear_beta) {
    c.linear_beta = *a.linear_beta;
    c.one_over_linear_beta = 1 / *a.linear_beta;
  }
  c.alpha = a.alpha;
  c.limit = a.limit;
  c.up_bias = a.up_bias;
  return c;
}

#ifdef __CUDACC__

__device__ __forceinline__ float sigmoid(float z) { return __fdividef(1.0f, 1.0f + __expf(-z)); }

// tanh: (1 - e) / (1 + e) with e = exp(-2 |z|); below 0.1, where that loses digits, its series
// z - z^3/3 + 2 z^5/15 (the next term is 5e-9 of z there).
__device__ __forceinline__ float tanh_fast(float z) {
  const float e = __expf(-2.0f * fabsf(z));
  const float far = copysignf(__fdividef(1.0f - e, 1.0f + e), z);
  const float z2 = z * z;
  const float near = z * fmaf(z2, fmaf(z2, 2.0f / 15.0f, -1.0f / 3.0f), 1.0f);
  return fabsf(z) < 0.1f ? near : far;
}

__device__ __forceinline__ float exp_negative(float z) {  // exp(z) of z <= 0; 0 below 2^-126
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(z * 1.4426950408889634f));
  return e;
}

// (1 - e) / (1 + e) without the division: what tanh_fast makes of |z|, times 1 + e.
__device__ __forceinline__ float tanh_times(float z, float e) {
  const float z2 = z * z;
  const float near = z * fmaf(z2, fmaf(z2, 2.0f / 15.0f, -1.0f / 3.0f), 1.0f) * (1.0f + e);
  return z < 0.1f ? near : 1.0f - e;
}

// beta tanh(gate / beta) sigmoid(gate) * linear_beta tanh(up / linear_beta), of magnitudes; signs
// last. One division for all three, and for beta = 4 one exponential for both of gate.
__device__ __forceinline__ float situ(float gate, float up, const ActivationConstants& c) {
  const float z = fabsf(gate) * c.one_over_beta;
  const float e = exp_negative(-2.0f * z);
  const float s = c.beta == 4.0f ? e * e : exp_negative(-fabsf(gate));
  float over = c.beta * tanh_times(z, e) * (gate < 0 ? s : 1.0f);
  float under = (1.0f + e) * (1.0f + s);
  float sign = gate;
  if (c.linear_beta != 0) {
    const float u = fabsf(up) * c.one_over_linear_beta;
    const float f = exp_negative(-2.0f * u);
    over *= c.linear_beta * tanh_times(u, f);
    under *= 1.0f + f;
    sign = __uint_as_float(__float_as_uint(gate) ^ __float_as_uint(up));
  } else {
    over *= up;
  }
  float inverse;  // of 1 to 8
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(under));
  const float y = over * inverse;
  return __uint_as_float(__float_as_uint(y) ^ (__float_as_uint(sign) & 0x80000000u));
}

template <ActivationKind kKind>
__device__ __forceinline__ float activate(float gate, float up, const ActivationConstants& c) {
  if constexpr (kKind == ActivationKind::kSitu) {
    return situ(gate, up, c);
  } else if constexpr (kKind == ActivationKind::kSwiglu) {
    return gate * sigmoid(gate) * up;
  } else if constexpr (kKind == ActivationKind::kSwigluClamped) {
    // NOTE: comparisons, not fminf: a NaN stays one.
    const float g = gate > c.limit ? c.limit : gate;
    const float u = up > c.limit ? c.limit : up < -c.limit ? -c.limit : up;
    return g * sigmoid(c.alpha * g) * (u + c.up_bias);
  } else if constexpr (kKind == ActivationKind::kGegluTanh) {
    constexpr float kRoot = 0.7978845608028654f;  // sqrt(2 / pi)
    return 0.5f * gate * (1.0f + tanh_fast(kRoot * (gate + 0.044715f * gate * gate * gate))) * up;
  } else {
    static_assert(kKind == ActivationKind::kRelu2);
    const float u = up < 0 ? 0 : up;
    return u * u;
  }
}

#endif

}  // namespace halfbyte::hopper

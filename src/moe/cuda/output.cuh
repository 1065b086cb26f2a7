// What the epilogues of the mma.sync kernels share.
#pragma once

#include "moe/cuda/kernels.h"
#include "moe/cuda/ptx.cuh"

namespace halfbyte::hopper {

__device__ __forceinline__ float activate_any(ActivationKind kind, float gate, float up,
                                              const ActivationConstants& constants) {
  switch (kind) {
    case ActivationKind::kSwiglu:
      return activate<ActivationKind::kSwiglu>(gate, up, constants);
    case ActivationKind::kSwigluClamped:
      return activate<ActivationKind::kSwigluClamped>(gate, up, constants);
    case ActivationKind::kGegluTanh:
      return activate<ActivationKind::kGegluTanh>(gate, up, constants);
    case ActivationKind::kSitu:
      return activate<ActivationKind::kSitu>(gate, up, constants);
    default:
      return activate<ActivationKind::kRelu2>(gate, up, constants);
  }
}

// Rows g and g + 8 of slab `slab`, for one token: two accumulators of the up projection become one
// hidden value (gate and up) or two (up alone) of the row `h`.
template <WeightFormat kFormat>
__device__ __forceinline__ void store_hidden(__nv_bfloat16* h, int slab, int g, float row_g,
                                             float row_g8, const float4& factors,
                                             ActivationKind kind,
                                             const ActivationConstants& constants,
                                             int intermediate) {
  constexpr float kGain = decode_gain(kFormat);
  if (kind != ActivationKind::kRelu2) {
    const int i = slab * (kSlabRows / 2) + g;
    if (i < intermediate)
      h[i] = __float2bfloat16_rn(
          activate_any(kind, row_g * kGain * factors.x, row_g8 * kGain * factors.y, constants));
  } else {
    const int i = slab * kSlabRows + g;
    if (i < intermediate)
      h[i] = __float2bfloat16_rn(activate_any(kind, 0, row_g * kGain * factors.y, constants));
    if (i + 8 < intermediate)
      h[i + 8] = __float2bfloat16_rn(activate_any(kind, 0, row_g8 * kGain * factors.y, constants));
  }
}

__device__ __forceinline__ void store_output(const Call& call, int token, int column, float y) {
  const int64_t at = token * call.y_stride + column;
  if (call.y_is_f32)
    static_cast<float*>(call.y)[at] = y;
  else
    static_cast<__nv_bfloat16*>(call.y)[at] = __float2bfloat16_rn(y);
}

}  // namespace halfbyte::hopper

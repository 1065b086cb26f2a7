// The loops of the NVFP4 and block-FP8 quantisers, compiled once for each instruction set. Private
// to formats/ and its tests: every set gives the same bytes, and "scalar" is the plain twin.
#pragma once

#include <cstdint>
#include <vector>

namespace halfbyte {

// Letters: G blocks of 16. x (G, 16) fp32 values.
struct QuantKernels {
  const char* name;
  // Largest bits of |value|: monotone in the magnitude, and above all of them for NaN.
  uint32_t (*max_bits_f32)(const float* x, int64_t count);
  uint32_t (*max_bits_bf16)(const uint16_t* x, int64_t count);
  void (*widen_bf16)(const uint16_t* x, int64_t count, float* out);
  // scales[g] = E4M3 scale that brings `stretch` times the block's largest magnitude to 6.
  void (*max_scales)(const float* x, int64_t blocks, float global_scale, float stretch,
                     uint8_t* scales);
  // t (16, G): element i of block g, divided by the global scale, magnitude only.
  void (*transpose_magnitudes)(const float* x, int64_t blocks, float global_scale, float* t);
  // errors[g] = sum_i (t[i, g] - scale[g] E2M1(t[i, g] / scale[g]))^2, summed in rising i.
  void (*squared_errors)(const float* t, const float* scale, int64_t blocks, float* errors);
  // codes (G, 8) bytes.
  void (*encode)(const float* x, const uint8_t* scales, int64_t blocks, float global_scale,
                 uint8_t* codes);
  // codes[i] = E4M3(x[i] / divisor); finite x, divisor > 0.
  void (*encode_e4m3)(const float* x, int64_t count, float divisor, uint8_t* codes);
};

extern const QuantKernels kQuantScalar, kQuantAvx2, kQuantAvx512;

// Those that this machine can run, best last.
const std::vector<const QuantKernels*>& quant_kernels();
inline const QuantKernels& best_quant_kernels() { return *quant_kernels().back(); }

}  // namespace halfbyte

// The activations (formulas: ops/activation.h) over arrays, in fp32, for each instruction set.
//
//   h[i] = act(gate_scale gate[i], up_scale up[i])
//
// Within 16 * 2^-24 of the double-precision formula, relative, times 1 + |z| for a sigmoid of z
// (the functions are built from e^x - 1, so that small arguments keep their digits); a sigmoid
// below the smallest normal number is 0. No overflow for finite arguments that the result does not
// have; a NaN stays a NaN. Checked: tests/unit/ops/activation_kernels_test.cpp.
#pragma once

#include <cstdint>

#include "halfbyte/activation.h"
#include "simd/cpu_device.h"

namespace halfbyte {

struct ActivationInputs {
  const float* gate = nullptr;  // (count); unused if the activation has no gate
  const float* up = nullptr;    // (count)
  float gate_scale = 1.0f;
  float up_scale = 1.0f;
};

using ActivateKernel = void (*)(const Activation& activation, const ActivationInputs& inputs,
                                int64_t count, float* h);

// `h` may be one of the inputs.
ActivateKernel activate_kernel(SimdLevel level);

namespace scalar {
void activate(const Activation&, const ActivationInputs&, int64_t count, float* h);
}
namespace avx2 {
void activate(const Activation&, const ActivationInputs&, int64_t count, float* h);
}
namespace avx512 {
void activate(const Activation&, const ActivationInputs&, int64_t count, float* h);
}

}  // namespace halfbyte

// Linear (ops/ops.h) on the CPU: y = x W^T with W packed as tiles (simd/tiles.h).
#pragma once

#include <memory>

#include "ops/ops.h"
#include "simd/cpu_device.h"

namespace halfbyte::cpu {

// Weights of any format; F32 ones stay F32 unless BF16 holds them exactly. BF16 activations
// multiply as they are, F32 ones in fp32. The device must outlive the Linear, whose runs share its
// scratch. Throws Error{kInput} that names the matrix.
std::unique_ptr<Linear> load_cpu_linear(CpuDevice& device, const MatrixView& weight);

}  // namespace halfbyte::cpu

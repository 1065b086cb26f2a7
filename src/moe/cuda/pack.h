// Experts as checkpoints store them -> the layout of the Hopper kernels (layout.h), on the host.
//
// NVFP4: a group whose scale is zero becomes codes of zero; factors are the global scales. MXFP4:
// each of gate, up and down has its own largest exponent e_max, and 2^(e_max - 127) as its factor.
// Padding is zero bytes.
//
// Needs no GPU and no CUDA. pack_device.h does the same on the GPU, byte for byte. Checked by
// tests/unit/moe/cuda/pack_test.cpp.
#pragma once

#include <cstddef>
#include <span>

#include "halfbyte/moe.h"
#include "moe/device_packer.h"

namespace halfbyte::hopper {

// `expert` must have passed check_expert (moe/backend.h); `packed` is expert_layout(shape).bytes of
// host memory, all of which is written. Safe to call from several threads.
void pack_expert_host(const MoeShape& shape, const ExpertWeights& expert,
                      std::span<std::byte> packed);

// The fp32 global scales lie where the factors will.
StagedExpert staged_expert(const MoeShape& shape);

}  // namespace halfbyte::hopper

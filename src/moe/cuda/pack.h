// Experts as checkpoints store them -> the layout of the Hopper kernels (layout.h), on the host.
//
// NVFP4: a group whose scale is zero becomes codes of zero, one whose scale is negative the codes
// of the other sign. MXFP4: each of gate, up and down has its own largest exponent e_max, and
// 2^(e_max - 127) as its factor. Factors of NVFP4 are the global scales. Padding is zero bytes.
//
// Needs no GPU and no CUDA. pack_device.h does the same on the GPU, byte for byte. Checked by
// tests/unit/moe/cuda/pack_test.cpp.
#pragma once

#include <cstddef>
#include <span>

#include "halfbyte/moe.h"

namespace halfbyte::hopper {

// `expert` must have passed check_expert (moe/backend.h); `packed` is expert_layout(shape).bytes of
// host memory, all of which is written. Safe to call from several threads.
void pack_expert_host(const MoeShape& shape, const ExpertWeights& expert,
                      std::span<std::byte> packed);

// Where the tensors of an expert lie, as the checkpoint has them, in the part of the packed buffer
// that the packed expert will take (pack_device.h packs in place). Gate and up are neighbours: both
// together are a matrix of 2F rows. Offsets are multiples of 16 bytes. The fp32 global scales
// (NVFP4) of gate, up and down lie where the factors will: at expert_layout(shape).factor_offset.
struct StagedExpert {
  size_t gate_codes = 0, up_codes = 0;    // (F, L/2)
  size_t gate_scales = 0, up_scales = 0;  // (F, L/16), MXFP4 (F, L/32)
  size_t down_codes = 0;                  // (L, F/2)
  size_t down_scales = 0;                 // (L, F/16), MXFP4 (L, F/32)
  size_t end = 0;
};
StagedExpert staged_expert(const MoeShape& shape);

}  // namespace halfbyte::hopper

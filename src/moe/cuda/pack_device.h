// Experts as checkpoints store them, in device memory -> the layout of the Hopper kernels, on the
// GPU: the bytes of pack_expert_host, at the speed of memory.
//
// Two ways, by where the packed bytes go:
//
//   out of place   `pack_experts_device`: tensors anywhere, also [E, rows, bytes] ones with any
//                  strides; packed bytes go elsewhere. Memory: the layer twice, until its tensors
//                  are freed.
//   in place       `pack_experts_in_place`: the packed buffer, E * expert_bytes, comes first, and
//                  checkpoint tensors are read right into it, each expert's into its own part
//                  at the offsets of `staged_expert` (pack.h). They are strided views of one
//                  allocation; in PyTorch
//                    buffer.as_strided((E, 2 * F, L // 2), (expert_bytes, L // 2, 1), offset)
//                  Memory: the packed layer and `scratch`, one expert at least.
//
// Both queue their work and return. Checked by tests/gpu/pack_gpu_test.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "halfbyte/moe.h"
#include "moe/cuda/layout.h"
#include "moe/device_packer.h"

namespace halfbyte::hopper {

// What is wrong with the scales that packing has seen: block scales that are NaN or negative,
// global scales that are not finite and positive. If count is not 0, `packed` is of no use. Lies in
// device memory, zeros at first.
struct BadScales {
  uint64_t first;  // if count > 0: ~place of the first
  uint32_t count;

  // Gate, up, down are the matrices 0, 1, 2; `byte` is the scale. Group kGlobal: the global scale.
  static constexpr uint32_t kGlobal = 0xFFFF;
  HB_HOST_DEVICE static constexpr uint64_t place(uint32_t expert, uint32_t matrix, uint32_t row,
                                                 uint32_t group, uint32_t byte) {
    return uint64_t{expert} << 46 | uint64_t{matrix} << 44 | uint64_t{row} << 24 | group << 8 |
           byte;
  }
  // "expert 3: up" and "scale [5, 2] is byte 0x81".
  std::string where() const;
  std::string what() const;
};

// Codes begin, in every row, at a multiple of 8 bytes (MXFP4: 16).
//
// `packed`: shape.num_experts * expert_layout(shape).bytes, at a multiple of 128 bytes; shares no
// byte with `experts`. `bad` (null: not asked for) is added to; its first expert is `first_expert`.
// Throws Error{kInput} for addresses that are not aligned; returns the error of the launch.
cudaError_t pack_experts_device(const MoeShape& shape, const StridedExperts& experts, void* packed,
                                BadScales* bad, cudaStream_t stream, int first_expert = 0);

// `packed` as above, holding staged experts. `scratch`: device memory for one packed expert at
// least; for more, fewer launches are needed.
cudaError_t pack_experts_in_place(const MoeShape& shape, void* packed, void* scratch,
                                  size_t scratch_bytes, BadScales* bad, cudaStream_t stream);

// pack_experts_device without its checks (pack.cu).
cudaError_t launch_pack(const MoeShape& shape, const StridedExperts& experts, void* packed,
                        BadScales* bad, cudaStream_t stream, int first_expert);

}  // namespace halfbyte::hopper

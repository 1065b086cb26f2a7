// Experts as checkpoints store them, in a device's memory, packed there: what a backend whose
// kernels can do that offers beside MoePlan::pack_expert, which reads host memory.
//
// Two ways, by where the packed bytes go: `pack` out of place, `pack_in_place` where checkpoint
// tensors were read right into the packed buffer, each expert's into its own part, at the offsets
// of `staged`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace halfbyte {

// (E, rows, bytes of a row) in the memory of a device; strides in bytes. Interleaved rows of gate
// and up are two tensors of twice the row stride.
struct StridedTensor {
  const uint8_t* data = nullptr;
  int64_t expert_stride = 0;
  int64_t row_stride = 0;
};

struct StridedMatrices {
  StridedTensor codes;                  // cols / 2 bytes a row
  StridedTensor scales;                 // cols / 16 E4M3 or cols / 32 E8M0 bytes a row
  const float* global_scale = nullptr;  // NVFP4
  int64_t global_scale_stride = 1;      // floats between experts
};

struct StridedExperts {
  StridedMatrices gate;  // of no meaning if not gated
  StridedMatrices up, down;
};

// Where the tensors of an expert lie, as the checkpoint has them, in the part of the packed buffer
// that the packed expert will take; bytes. Gate and up are neighbours: both together are a matrix
// of 2F rows. Offsets are multiples of 16. `global_scales`: fp32 of gate, up and down (NVFP4), one
// after the other.
struct StagedExpert {
  size_t gate_codes = 0, up_codes = 0;    // (F, L/2)
  size_t gate_scales = 0, up_scales = 0;  // (F, L/16), MXFP4 (F, L/32)
  size_t down_codes = 0;                  // (L, F/2)
  size_t down_scales = 0;                 // (L, F/16), MXFP4 (L, F/32)
  size_t end = 0;                         // of the scales
  size_t global_scales = 0;
};

class DevicePacker {
 public:
  virtual ~DevicePacker() = default;
  virtual StagedExpert staged() const = 0;
  // Both wait until the work is done. They throw Error{kInput} for addresses that are not aligned
  // and, when all is packed, for block scales that are NaN or negative and global scales that are
  // not finite and positive: it names the first such expert, and `packed` is then of no use.
  //
  // The experts [first, first + count) of the layer whose packed bytes begin at `packed`; expert 0
  // of `experts` is `first`. `packed` shares no byte with `experts`.
  virtual void pack(const StridedExperts& experts, int first, int count, void* packed) const = 0;
  // The whole layer. `scratch`: device memory for one packed expert at least; with more there are
  // fewer launches.
  virtual void pack_in_place(void* packed, void* scratch, size_t scratch_bytes) const = 0;
};

}  // namespace halfbyte

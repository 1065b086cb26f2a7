// The kernels of the backend "dequant", and how its packed experts and its rows lie in memory.
//
//   expert = gate, up, down, each its values and then its scales in the order of the checkpoint,
//            each part at a multiple of 256 bytes; then an ExpertTrailer
//   rows   = slots sorted by expert; widths L and F are rounded up to multiples of 16 with zeros
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "halfbyte/moe.h"

namespace halfbyte::dequant {

enum MatrixIndex { kGate, kUp, kDown, kNumMatrices };

// true weight = decoded * factor; decoded = code * scale * 2^-shift is exact in BF16. `shift` keeps
// the largest MXFP4 scales (2^126, 2^127) in range and is 0 else.
struct ExpertTrailer {
  float factor[4] = {};
  int32_t shift[4] = {};
};

// One matrix of an expert, in device memory.
struct PackedMatrix {
  WeightFormat format = WeightFormat::kNvfp4;
  int rows = 0, cols = 0;
  const std::byte* values = nullptr;
  const std::byte* scales = nullptr;
  const int32_t* shift = nullptr;
};

// Each queues, and returns the error of its launch.

// out (padded_rows, padded_cols) BF16, zero outside of the matrix.
cudaError_t decode(const PackedMatrix& matrix, void* out, int padded_rows, int padded_cols,
                   cudaStream_t stream);

// out[i] = x[slots[i] / top_k], BF16, for i < count; out (count, padded_width), zero behind x.
cudaError_t gather(const TensorView& x, const int32_t* slots, int count, int top_k, void* out,
                   int padded_width, cudaStream_t stream);

// h (count, stride) BF16 = act(gate * factor, up * factor) for the first `width` columns, then
// zeros. gate and up (count, stride) fp32; gate is not read if there is none.
cudaError_t activate(const float* gate, const float* up, const ExpertTrailer* trailer,
                     const Activation& activation, int count, int width, int stride, void* h,
                     cudaStream_t stream);

// y[t] = sum_k weight[t][k] * factor_e * rows[row_of_slot[t K + k]], fp32, k rising, of the slots
// whose id is in range and whose weight is not 0.
struct Combine {
  Routing routing;
  int num_experts = 0, top_k = 0;
  const float* rows = nullptr;  // (., row_stride)
  int64_t row_stride = 0;
  const int32_t* row_of_slot = nullptr;    // (T K)
  const ExpertTrailer* trailer = nullptr;  // of expert 0
  size_t expert_bytes = 0;                 // from one trailer to the next
};
cudaError_t combine(const Combine& what, const TensorView& y, cudaStream_t stream);

}  // namespace halfbyte::dequant

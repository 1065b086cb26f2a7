// Weight matrices as a checkpoint stores them: a module's name in, a MatrixView out.
//
// The format is decided by the tensors that are there, never by a configuration:
//   weight BF16 or F32                                                         -> kBf16, kF32
//   weight F8_E4M3, weight_scale F32 [R, 1, C, 1] or [R, C] (128 x 128 tiles)  -> kFp8Block
//   weight U8, weight_scale one per 16, weight_scale_2 F32                     -> kNvfp4 (ModelOpt)
//   weight_packed U8, weight_scale one per 16, weight_global_scale F32         -> kNvfp4; the
//   global
//       scale is stored as its reciprocal (compressed-tensors)
//   weight_packed (or weight) U8, weight_scale one per 32                      -> kMxfp4
// How many values share a scale says what its bytes mean, not its dtype: bytes may be stored as U8.
// Scales may have a leading 1; scalars are [] or [1]. `input_scale` and `input_global_scale` belong
// to quantised activations and are not read.
//
// Everything is checked here: shapes, dtypes, leftovers of another format, the global scale
// (finite, above 0, not a reciprocal by mistake), and every scale byte. Checked by
// tests/unit/formats/stored_matrix_test.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "formats/checkpoint.h"
#include "halfbyte/tensor.h"

namespace halfbyte {

// A global scale is amax / 2688. From 16 on the largest weight would be 43,008; a reciprocal taken
// for a multiplier, or the other way round, is between 1e2 and 1e7.
inline constexpr float kGlobalScaleLimit = 16.0f;

// The matrix of `module` ("...experts.3.w1"), its scale bytes not read yet. Nothing if no tensor of
// the module is there. Throws Error{kInput} naming the tensor; Error{kUnsupported} for weights of
// a kind that halfbyte does not run. The view lives as long as the checkpoint.
std::optional<MatrixView> find_matrix(const Checkpoint& checkpoint, std::string_view module);

// The same with every scale checked. Throws too if the matrix is missing or not (rows, cols).
MatrixView get_matrix(const Checkpoint& checkpoint, std::string_view module);
MatrixView get_matrix(const Checkpoint& checkpoint, std::string_view module, int64_t rows,
                      int64_t cols);

// What the block scales of a matrix are like. Scales of kFp8Block are fp32, the others bytes.
struct ScaleCounts {
  int64_t total = 0;
  int64_t nan = 0;       // and Inf, for fp32
  int64_t negative = 0;  // sign bit set
  int64_t zero = 0;
  int64_t subnormal = 0;  // E4M3: below 2^-6; E8M0: 2^-127; fp32: below 2^-126

  ScaleCounts& operator+=(const ScaleCounts& other);
};
ScaleCounts count_scales(const MatrixView& weight);  // as fast as memory

// Throws Error{kInput} at the first scale that is NaN, Inf or negative.
void check_scales(const MatrixView& weight);

}  // namespace halfbyte

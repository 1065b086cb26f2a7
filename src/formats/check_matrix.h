// Is a stored weight matrix one that kernels may trust? Asked once, when it is packed.
#pragma once

#include "halfbyte/tensor.h"

namespace halfbyte {

// Columns that share one scale along a row: 16 for NVFP4, 32 for MXFP4, else 1.
int64_t scale_group(WeightFormat format);

// Throws Error{kInput} that names the matrix: missing data, columns that cut a scale group, a block
// scale that is NaN or negative, a global scale that is not finite and positive.
void check_matrix(const MatrixView& weight);

}  // namespace halfbyte

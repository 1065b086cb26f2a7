// One row of a stored weight matrix as numbers, whatever its format (formulas: halfbyte/tensor.h).
//
// The plain way, for "ref", packing and tests. Checked: tests/unit/formats/decode_test.cpp.
#pragma once

#include "halfbyte/tensor.h"

namespace halfbyte {

// W[row][0 .. cols) -> out (cols). Exact: every product fits in a double.
void decode_row(const MatrixView& weight, int64_t row, double* out);

// Bytes of the arrays behind `values` and `scales` (0: the format has no scales).
size_t value_bytes(const MatrixView& weight);
size_t scale_bytes(const MatrixView& weight);

}  // namespace halfbyte

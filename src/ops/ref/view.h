// Elements of a view as doubles: the plain way to read and write.
#pragma once

#include "formats/bf16.h"
#include "halfbyte/tensor.h"

namespace halfbyte::ref {

inline double at(const TensorView& view, int64_t row, int64_t col) {
  return view.dtype == DType::kBf16 ? bf16_to_float(view.row<uint16_t>(row)[col])
                                    : view.row<float>(row)[col];
}

inline void put(const TensorView& view, int64_t row, int64_t col, double value) {
  if (view.dtype == DType::kBf16)
    view.row<uint16_t>(row)[col] = float_to_bf16(static_cast<float>(value));
  else
    view.row<float>(row)[col] = static_cast<float>(value);
}

}  // namespace halfbyte::ref

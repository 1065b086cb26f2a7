// Element types, weight formats and the two views that every layer passes around.
//
// Views do not own. All matrices are row-major; rows of a TensorView may be further apart than
// `cols`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace halfbyte {

// How an element is stored. The names are those of safetensors.
enum class DType {
  kBool,
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kF16,
  kBf16,
  kF32,
  kF64
};

constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kI16:
    case DType::kF16:
    case DType::kBf16:
      return 2;
    case DType::kI32:
    case DType::kF32:
      return 4;
    case DType::kI64:
    case DType::kF64:
      return 8;
    default:
      return 1;
  }
}

// A (rows, cols) array in the memory of a device. `stride` counts elements between rows.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  static TensorView of(void* data, DType dtype, int64_t rows, int64_t cols) {
    return {data, dtype, rows, cols, cols};
  }
  template <class T>
  T* row(int64_t r) const {
    return static_cast<T*>(data) + r * stride;
  }
  // Rows [begin, begin + count); columns [begin, begin + count).
  TensorView row_slice(int64_t begin, int64_t count) const {
    return {static_cast<char*>(data) + begin * stride * dtype_bytes(dtype), dtype, count, cols,
            stride};
  }
  TensorView col_slice(int64_t begin, int64_t count) const {
    return {static_cast<char*>(data) + begin * dtype_bytes(dtype), dtype, rows, count, stride};
  }
};

// How a weight matrix is stored (docs/formats.md has the formulas).
enum class WeightFormat {
  kF32,
  kBf16,
  kFp8Block,  // E4M3 codes, one fp32 scale per 128 x 128 tile
  kNvfp4,     // E2M1 codes, one E4M3 scale per 16 along a row, one fp32 scale per matrix
  kMxfp4,     // E2M1 codes, one E8M0 scale per 32 along a row
};

// A weight matrix W (rows = output features, cols = input features) as a checkpoint stores it, in
// host memory.
//   kF32, kBf16  values (rows, cols)
//   kFp8Block    values (rows, cols) E4M3 bytes; scales fp32 (ceil(rows/128), ceil(cols/128))
//   kNvfp4       values (rows, cols/2), even column in the low nibble; scales (rows, cols/16) E4M3
//   bytes;
//                W = E2M1 * E4M3 * global_scale
//   kMxfp4       values as kNvfp4; scales (rows, cols/32) E8M0 bytes
struct MatrixView {
  WeightFormat format = WeightFormat::kBf16;
  int64_t rows = 0;
  int64_t cols = 0;
  const void* values = nullptr;
  const void* scales = nullptr;
  float global_scale = 1.0f;
  std::string_view name;  // the checkpoint's name, for messages

  bool empty() const { return values == nullptr; }
};

const char* name_of(DType dtype);          // "BF16", "F8_E4M3", ...
const char* name_of(WeightFormat format);  // "nvfp4", ...

}  // namespace halfbyte

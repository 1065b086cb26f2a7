#include "formats/decode.h"

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/fp8_block.h"

namespace halfbyte {

void decode_row(const MatrixView& weight, int64_t row, double* out) {
  const int64_t cols = weight.cols;
  switch (weight.format) {
    case WeightFormat::kF32: {
      const float* values = static_cast<const float*>(weight.values) + row * cols;
      for (int64_t c = 0; c < cols; ++c) out[c] = values[c];
      return;
    }
    case WeightFormat::kBf16: {
      const uint16_t* values = static_cast<const uint16_t*>(weight.values) + row * cols;
      for (int64_t c = 0; c < cols; ++c) out[c] = bf16_to_float(values[c]);
      return;
    }
    case WeightFormat::kFp8Block: {
      const uint8_t* codes = static_cast<const uint8_t*>(weight.values) + row * cols;
      const float* scales =
          static_cast<const float*>(weight.scales) + row / kFp8Tile * fp8_tiles(cols);
      for (int64_t c = 0; c < cols; ++c)
        out[c] = double{e4m3_to_float(codes[c])} * double{scales[c / kFp8Tile]};
      return;
    }
    case WeightFormat::kNvfp4: {
      const uint8_t* codes = static_cast<const uint8_t*>(weight.values) + row * (cols / 2);
      const uint8_t* scales = static_cast<const uint8_t*>(weight.scales) + row * (cols / 16);
      for (int64_t c = 0; c < cols; ++c)
        out[c] = double{e2m1_to_float(e2m1_code_at(codes, c))} *
                 double{e4m3_to_float(scales[c / 16])} * double{weight.global_scale};
      return;
    }
    case WeightFormat::kMxfp4: {
      const uint8_t* codes = static_cast<const uint8_t*>(weight.values) + row * (cols / 2);
      const uint8_t* scales = static_cast<const uint8_t*>(weight.scales) + row * (cols / 32);
      for (int64_t c = 0; c < cols; ++c)
        out[c] =
            double{e2m1_to_float(e2m1_code_at(codes, c))} * double{e8m0_to_float(scales[c / 32])};
      return;
    }
  }
}

size_t value_bytes(const MatrixView& weight) {
  const size_t elements = static_cast<size_t>(weight.rows) * static_cast<size_t>(weight.cols);
  switch (weight.format) {
    case WeightFormat::kF32:
      return elements * 4;
    case WeightFormat::kBf16:
      return elements * 2;
    case WeightFormat::kFp8Block:
      return elements;
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4:
      return elements / 2;
  }
  return 0;
}

size_t scale_bytes(const MatrixView& weight) {
  const size_t rows = static_cast<size_t>(weight.rows), cols = static_cast<size_t>(weight.cols);
  switch (weight.format) {
    case WeightFormat::kFp8Block:
      return static_cast<size_t>(fp8_tiles(weight.rows) * fp8_tiles(weight.cols)) * 4;
    case WeightFormat::kNvfp4:
      return rows * (cols / 16);
    case WeightFormat::kMxfp4:
      return rows * (cols / 32);
    default:
      return 0;
  }
}

}  // namespace halfbyte

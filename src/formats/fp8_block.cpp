#include "formats/fp8_block.h"

#include "formats/e4m3.h"

namespace halfbyte {

void dequantize_fp8_block(const uint8_t* codes, const float* scales, int64_t rows, int64_t cols,
                          float* out) {
  const int64_t tiles_across = fp8_tiles(cols);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c)
      out[r * cols + c] =
          kE4m3Values[codes[r * cols + c]] * scales[r / kFp8Tile * tiles_across + c / kFp8Tile];
}

}  // namespace halfbyte

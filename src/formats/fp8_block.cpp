#include "formats/fp8_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "formats/e4m3.h"
#include "formats/nvfp4.h"
#include "formats/quant_kernels.h"
#include "halfbyte/error.h"

namespace halfbyte {
namespace {

template <class T>
void quantize(const T* values, int64_t rows, int64_t cols, uint8_t* codes, float* scales) {
  const QuantKernels& kernels = best_quant_kernels();
  const int64_t tiles = fp8_tiles(cols);
  std::vector<float> strip;
  std::vector<uint32_t> most(static_cast<size_t>(tiles));
  for (int64_t top = 0; top < rows; top += kFp8Tile, scales += tiles) {
    const int64_t height = std::min(kFp8Tile, rows - top);
    const T* from = values + top * cols;
    const float* x = nullptr;  // (height, cols)
    if constexpr (sizeof(T) == 2) {
      strip.resize(static_cast<size_t>(height * cols));
      kernels.widen_bf16(from, height * cols, strip.data());
      x = strip.data();
    } else {
      x = from;
    }
    if (const int64_t bad = find_non_finite(from, height * cols); bad >= 0)
      throw Error(ErrorKind::kInput, "",
                  fmt::format("the value at row {}, column {} is not finite", top + bad / cols,
                              bad % cols));
    std::fill(most.begin(), most.end(), 0u);
    for (int64_t r = 0; r < height; ++r)
      for (int64_t t = 0; t < tiles; ++t)
        most[static_cast<size_t>(t)] =
            std::max(most[static_cast<size_t>(t)],
                     kernels.max_bits_f32(x + r * cols + t * kFp8Tile,
                                          std::min(kFp8Tile, cols - t * kFp8Tile)));
    for (int64_t t = 0; t < tiles; ++t) {
      const float amax = std::bit_cast<float>(most[static_cast<size_t>(t)]);
      scales[t] = amax == 0 ? 1.0f : std::max(amax / kE4m3Max, std::numeric_limits<float>::min());
      for (int64_t r = 0; r < height; ++r)
        kernels.encode_e4m3(x + r * cols + t * kFp8Tile, std::min(kFp8Tile, cols - t * kFp8Tile),
                            scales[t], codes + (top + r) * cols + t * kFp8Tile);
    }
  }
}

}  // namespace

void dequantize_fp8_block(const uint8_t* codes, const float* scales, int64_t rows, int64_t cols,
                          float* out) {
  const int64_t tiles_across = fp8_tiles(cols);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c)
      out[r * cols + c] =
          kE4m3Values[codes[r * cols + c]] * scales[r / kFp8Tile * tiles_across + c / kFp8Tile];
}

void quantize_fp8_block(const float* values, int64_t rows, int64_t cols, uint8_t* codes,
                        float* scales) {
  quantize(values, rows, cols, codes, scales);
}
void quantize_fp8_block(const uint16_t* bf16, int64_t rows, int64_t cols, uint8_t* codes,
                        float* scales) {
  quantize(bf16, rows, cols, codes, scales);
}

}  // namespace halfbyte

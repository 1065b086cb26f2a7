// The inner loops of the CPU, one set for each instruction set, behind one table of functions.
//
//   sums[m][r] += sum over groups ( scale[group][r] * sum over k in group ( w[r][k] x[m][k] ) )
//
// for one tile of 16 rows r (simd/tiles.h), M tokens m, columns k. Within a group of columns that
// share a scale (64 where there is none) the even pairs of columns are summed from zero, the odd
// pairs likewise, then the two; groups follow each other. This order is the same for every M and
// for any cut of the columns into several calls, so a token's sums do not depend on its company.
// Levels differ from each other by rounding only.
//
// Activations are packed as pairs of neighbouring columns, [k/2][M], so that a kernel reads one
// ascending stream. Checked: tests/unit/simd/kernels_test.cpp against double-precision sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/cpu_device.h"
#include "simd/tiles.h"

namespace halfbyte {

// One packed pair: two BF16, the even column in the low half; or two floats.
enum class PairFormat { kBf16, kF32 };
constexpr size_t pair_bytes(PairFormat format) { return format == PairFormat::kBf16 ? 4 : 8; }

inline constexpr int kMaxTileTokens = 8;

// `sums` (M, 16) fp32 is read and written; tile 64-byte aligned.
using TileDot = void (*)(const std::byte* tile, int64_t blocks, const std::byte* pairs,
                         float* sums);

struct Kernels {
  SimdLevel level = SimdLevel::kScalar;
  // What BF16 activations are packed as. F32 ones always become F32 pairs.
  PairFormat bf16_pairs = PairFormat::kF32;
  // The largest M of `dot` for each kind of pair.
  int max_tokens[2] = {0, 0};
  // dot[pairs][format][M], 1 <= M <= max_tokens. kF32 tiles exist for F32 pairs only.
  TileDot dot[2][kTileFormats][kMaxTileTokens + 1] = {};

  // rows[m] (cols) BF16, or F32 if `rows_are_f32` -> pairs [padded_cols/2][M], zeros past `cols`.
  void (*pack_pairs)(const void* const* rows, bool rows_are_f32, int M, int64_t cols,
                     int64_t padded_cols, PairFormat format, std::byte* pairs) = nullptr;

  // One tile of results, h (M, 16), becomes columns of the next product: 8 pairs of each token,
  // rounded to BF16 (nearest even) unless they are to stay F32.
  void (*store_pairs)(const float* h, bool keep_f32, int M, PairFormat format,
                      std::byte* pairs) = nullptr;

  // y[i] = (BF16 or F32) (x[i]), round to nearest even.
  void (*store_row)(const float* x, int64_t count, DType dtype, void* y) = nullptr;
  // y[i] += factor * x[i]: a product and a sum, each rounded.
  void (*add_scaled)(const float* x, float factor, int64_t count, float* y) = nullptr;

  // Reads `bytes` (a multiple of 256) in ascending order and returns a checksum: the probe of what
  // memory can deliver.
  uint64_t (*read)(const std::byte* data, size_t bytes) = nullptr;
  // Multiplies and adds in registers as fast as it can; returns how many floating-point operations
  // it did in `rounds` rounds: the roof of `dot` with BF16 activations.
  double (*spin)(int64_t rounds, float* sink) = nullptr;

  PairFormat pairs_for(DType x, TileFormat weights) const {
    return x == DType::kBf16 && weights != TileFormat::kF32 ? bf16_pairs : PairFormat::kF32;
  }
  int max_tokens_for(PairFormat pairs) const { return max_tokens[static_cast<int>(pairs)]; }
  TileDot dot_for(PairFormat pairs, TileFormat weights, int M) const {
    return dot[static_cast<int>(pairs)][static_cast<int>(weights)][M];
  }
};

// Throws Error{kUnsupported} for a level that this build lacks.
const Kernels& kernels(SimdLevel level);

}  // namespace halfbyte

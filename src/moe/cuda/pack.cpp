#include "moe/cuda/pack.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "formats/check_matrix.h"
#include "formats/e8m0.h"
#include "formats/mxfp4.h"
#include "moe/cuda/layout.h"

namespace halfbyte::hopper {

namespace {

// kPlaced[i][byte]: what two codes (the even column in the low nibble) add to two words as their
// pair i (encode_words).
constexpr auto kPlaced = [] {
  std::array<std::array<WordPair, 256>, 8> table{};
  for (uint32_t pair = 0; pair < 8; ++pair)
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t pairs[8] = {};
      pairs[pair] = place_code(byte & 15) | place_code(byte >> 4) << 16;
      table[pair][byte] = encode_words(pairs);
    }
  return table;
}();

// A matrix and, if it is MXFP4, its largest exponent.
struct Source {
  const MatrixView& matrix;
  int e_max = 0;

  explicit Source(const MatrixView& view) : matrix(view) {
    if (view.format != WeightFormat::kMxfp4) return;
    const auto largest =
        mxfp4_max_exponent(static_cast<const uint8_t*>(view.values),
                           static_cast<const uint8_t*>(view.scales), view.rows, view.cols);
    e_max = largest.value_or(0) + kE8m0Bias;
  }
  float factor() const {
    return matrix.format == WeightFormat::kMxfp4 ? e8m0_to_float(static_cast<uint8_t>(e_max))
                                                 : matrix.global_scale;
  }
};

// Rows 0..7 or 8..15 of a slab.
struct HalfSlab {
  const Source& source;
  int64_t first_row;  // in the matrix
  uint32_t half;      // 0: rows g, 1: rows g + 8
};

// A slab being made: what several rows of a lane share is or-ed together.
struct Slab {
  std::array<uint32_t, kCodeBytes / 4> codes{};  // (2, 32, 4)
  std::array<uint32_t, 32> nvfp4_scales{};
  std::array<uint8_t, 64> mxfp4_scales{};
};

// The 16 columns that lane (g, t) owns of half h: `stored` are their 8 bytes.
void add_codes(uint64_t stored, uint32_t half, uint32_t* words) {
  for (size_t i = 0; i < 4; ++i)
    for (size_t columns = 0; columns < 4; columns += 2, stored >>= 8) {
      const WordPair& placed = kPlaced[i % 2 * 4 + columns + half][stored & 0xFF];
      words[i / 2 * 2] |= placed.first;
      words[i / 2 * 2 + 1] |= placed.second;
    }
}

void add_rows(const HalfSlab& rows, int64_t block, Slab& slab) {
  const MatrixView& matrix = rows.source.matrix;
  const bool mxfp4 = matrix.format == WeightFormat::kMxfp4;
  const int64_t group = scale_group(matrix.format);
  const int64_t count = std::min<int64_t>(kSlabRows / 2, matrix.rows - rows.first_row);
  for (int64_t g = 0; g < count; ++g) {
    const int64_t row = rows.first_row + g;
    const auto* codes = static_cast<const uint8_t*>(matrix.values) + row * (matrix.cols / 2);
    const auto* scales = static_cast<const uint8_t*>(matrix.scales) + row * (matrix.cols / group);
    for (int h = 0; h < 2; ++h)
      for (int t = 0; t < 4; ++t) {
        const int64_t col = block * kBlockCols + column(matrix.format, h, t);
        if (col >= matrix.cols) continue;
        const auto lane = static_cast<size_t>(4 * g + t);
        const uint8_t scale = scales[col / group];
        uint64_t stored;
        std::memcpy(&stored, codes + col / 2, sizeof stored);
        if (mxfp4) {
          slab.mxfp4_scales[2 * lane + rows.half] =
              static_cast<uint8_t>(encode_e8m0_scale(scale, rows.source.e_max));
        } else {
          if (scale == 0) continue;
          const uint32_t byte = encode_e4m3_scale(scale);
          slab.nvfp4_scales[lane] |= encode_scales(h == 0 ? byte : 0, h == 1 ? byte : 0, 0, 0)
                                     << (16 * rows.half);
        }
        add_codes(stored, rows.half, &slab.codes[static_cast<size_t>(h) * 128 + lane * 4]);
      }
  }
}

// `upper` and `lower` give the rows 0..7 and 8..15 of slab s: they begin at s * stride, and at
// s * stride + lower_first.
struct SlabRows {
  const Source& upper;
  const Source& lower;
  int64_t stride, lower_first;
};

void pack_matrix(WeightFormat format, const SlabRows& rows, const MatrixLayout& layout,
                 std::byte* out) {
  for (int64_t tile = 0; tile < layout.tiles; ++tile)
    for (int64_t block = 0; block < layout.blocks; ++block)
      for (int64_t s = tile * kTileSlabs; s < (tile + 1) * kTileSlabs; ++s) {
        Slab slab;
        add_rows({rows.upper, s * rows.stride, 0}, block, slab);
        add_rows({rows.lower, s * rows.stride + rows.lower_first, 1}, block, slab);
        std::memcpy(out, slab.codes.data(), kCodeBytes);
        if (format == WeightFormat::kMxfp4)
          std::memcpy(out + kCodeBytes, slab.mxfp4_scales.data(), sizeof slab.mxfp4_scales);
        else
          std::memcpy(out + kCodeBytes, slab.nvfp4_scales.data(), sizeof slab.nvfp4_scales);
        out += slab_bytes(format);
      }
}

}  // namespace

void pack_expert_host(const MoeShape& shape, const ExpertWeights& expert,
                      std::span<std::byte> packed) {
  const ExpertLayout layout = expert_layout(shape);
  HB_CHECK(packed.size() == layout.bytes);
  HB_CHECK(shape.weights == WeightFormat::kNvfp4 || shape.weights == WeightFormat::kMxfp4);
  const bool gated = shape.activation.gated();
  const Source up(expert.up), down(expert.down), gate(gated ? expert.gate : expert.up);
  if (gated)
    pack_matrix(shape.weights, {gate, up, kSlabRows / 2, 0}, layout.up, packed.data());
  else
    pack_matrix(shape.weights, {up, up, kSlabRows, kSlabRows / 2}, layout.up, packed.data());
  pack_matrix(shape.weights, {down, down, kSlabRows, kSlabRows / 2}, layout.down,
              packed.data() + layout.down_offset);

  const std::array<float, kFactorBytes / sizeof(float)> factors = {gated ? gate.factor() : 0,
                                                                   up.factor(), down.factor()};
  std::memcpy(packed.data() + layout.factor_offset, factors.data(), kFactorBytes);
}

StagedExpert staged_expert(const MoeShape& shape) {
  const size_t weights =
      static_cast<size_t>(shape.hidden) * static_cast<size_t>(shape.intermediate);
  const size_t codes = weights / 2;
  const size_t scales = weights / static_cast<size_t>(scale_group(shape.weights));
  const size_t gates = shape.activation.gated() ? 1 : 0;
  StagedExpert staged;
  staged.up_codes = staged.gate_codes + gates * codes;
  staged.gate_scales = staged.up_codes + codes;
  staged.up_scales = staged.gate_scales + gates * scales;
  staged.down_codes = staged.up_scales + scales;
  staged.down_scales = staged.down_codes + codes;
  staged.end = staged.down_scales + scales;
  staged.global_scales = expert_layout(shape).factor_offset;
  return staged;
}

}  // namespace halfbyte::hopper

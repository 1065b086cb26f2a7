// How a routed expert lies in GPU memory: one form, read by every Hopper kernel, as large as in the
// checkpoint (where widths are multiples of 128).
//
//   expert = gate and up (2F, L) | down (L, F) | 128 B: fp32 factors of gate, up, down, then 0
//   matrix = tiles of 64 rows, one after the other
//   tile   = blocks of 64 rows x 128 columns, along K
//   block  = 4 slabs of 16 rows x 128 columns
//   slab   = 1024 B of codes, then its scales
//
// A slab is what the 32 lanes of a warp hold as operand A of mma m16n8k16 (and of each warp's
// quarter of wgmma m64nNk16). Lane l = 4 g + t owns rows g and g + 8. Of a half h (0, 1) it owns
// the 16 columns `column(format, h, t)` onwards, 4 of them an instruction i (0..3), in the
// fragment's positions 2t, 2t+1, 2t+8, 2t+9. Those of two instructions are two 32-bit words
// (`encode_words`) at h * 512 + l * 16 + i * 4. Operand B of that lane is then 16 neighbouring
// activations of a token.
//
//   NVFP4  half h = columns 64 h + ..., lane t owns a group of 16: scales are 4 B a lane at
//          1024 + 4 l (`encode_scales`): rows g, g + 8, both halves.     slab 1152 B, 4.5 bits
//   MXFP4  lane t owns columns 32 t .. 32 t + 31, one group: 2 B a lane at 1024 + 2 l: rows g and
//          g + 8.                                                        slab 1088 B, 4.25 bits
//
// A gated slab holds rows 8 s .. 8 s + 7 of gate as rows 0..7 and the same rows of up as
// rows 8..15, so that a thread has both of one hidden value. Rows are padded to 64 and columns to
// 128 with zero bytes.
//
// Decoding (decode.cuh) gives BF16 values that are exact: code * scale * 2^-7 for NVFP4, code *
// 2^(e - e_max) for MXFP4; factors make up for the rest: true = decoded * decode_gain * factor.
// Checked by tests/unit/moe/cuda/layout_test.cpp against a plain product.
#pragma once

#include <cstddef>
#include <cstdint>

#include "halfbyte/moe.h"

#ifdef __CUDACC__
#define HB_HOST_DEVICE __host__ __device__
#else
#define HB_HOST_DEVICE
#endif

namespace halfbyte::hopper {

constexpr int kSlabRows = 16;
constexpr int kTileRows = 64;
constexpr int kTileSlabs = kTileRows / kSlabRows;
constexpr int kBlockCols = 128;
constexpr int kCodeBytes = 1024;  // of a slab
constexpr int kFactorBytes = 128;

HB_HOST_DEVICE constexpr int slab_bytes(WeightFormat format) {
  return format == WeightFormat::kMxfp4 ? kCodeBytes + 64 : kCodeBytes + 128;
}
// First column, within its block, of the 16 that lane t (= lane % 4) owns of half h.
HB_HOST_DEVICE constexpr int column(WeightFormat format, int h, int t) {
  return format == WeightFormat::kMxfp4 ? 32 * t + 16 * h : 64 * h + 16 * t;
}
// What the accumulators are multiplied by, exactly, before the factor of the matrix.
HB_HOST_DEVICE constexpr float decode_gain(WeightFormat format) {
  return format == WeightFormat::kMxfp4 ? 1.0f : 128.0f;
}

HB_HOST_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Sizes of one packed matrix of (rows, cols).
struct MatrixLayout {
  int tiles = 0;   // of 64 rows
  int blocks = 0;  // of 128 columns
  int block_bytes = 0;
  size_t bytes() const {
    return static_cast<size_t>(tiles) * static_cast<size_t>(blocks) *
           static_cast<size_t>(block_bytes);
  }
};

struct ExpertLayout {
  MatrixLayout up;    // gate and up (2F, L), or up alone (F, L)
  MatrixLayout down;  // (L, F)
  size_t down_offset = 0;
  size_t factor_offset = 0;
  size_t bytes = 0;
};

inline MatrixLayout matrix_layout(WeightFormat format, int rows, int cols) {
  return {ceil_div(rows, kTileRows), ceil_div(cols, kBlockCols), kTileSlabs * slab_bytes(format)};
}

inline ExpertLayout expert_layout(const MoeShape& shape) {
  ExpertLayout layout;
  const int up_rows = (shape.activation.gated() ? 2 : 1) * shape.intermediate;
  layout.up = matrix_layout(shape.weights, up_rows, shape.hidden);
  layout.down = matrix_layout(shape.weights, shape.hidden, shape.intermediate);
  layout.down_offset = layout.up.bytes();
  layout.factor_offset = layout.down_offset + layout.down.bytes();
  layout.bytes = layout.factor_offset + kFactorBytes;
  return layout;
}

// A code's place in a BF16 pattern: sign at bit 15, exponent and mantissa at 8:6; its value is then
// code * 2^-126 (0.5 as a subnormal).
HB_HOST_DEVICE constexpr uint32_t place_code(uint32_t code) {
  return ((code >> 3) << 15) | ((code & 7) << 6);
}
HB_HOST_DEVICE constexpr uint32_t rotate_right(uint32_t x, int n) {
  return (x >> n) | (x << ((32 - n) & 31));
}

// Two words, of instructions i and i + 1 (i even), 16 codes. r[0..3] and r[4..7]: for each of the
// two instructions the four BF16 pairs that decoding shall give (before scaling): rows g, g+8, g,
// g+8; columns (0, 1), (0, 1), (2, 3), (2, 3); the first of a pair in the low half.
//
// Decoding turns a word left by a number for each pair and masks what is then in place. Three pairs
// of four bits fit into 16; the fourth pairs of both words share what is left of them: bits
// kFirstWordBits of the first, the other bits of the second.
constexpr uint32_t kFirstWordBits = 0x06030603u;

struct WordPair {
  uint32_t first = 0, second = 0;
};
HB_HOST_DEVICE constexpr WordPair encode_words(const uint32_t (&r)[8]) {
  const uint32_t shared = rotate_right(r[3], 24) | rotate_right(r[7], 30);
  return {r[0] | rotate_right(r[1], 4) | rotate_right(r[2], 10) | (shared & kFirstWordBits),
          rotate_right(r[4], 2) | rotate_right(r[5], 6) | rotate_right(r[6], 12) |
              (shared & ~kFirstWordBits)};
}

// The byte that stands for an E4M3 scale s > 0: the BF16 pattern 0x7000 | byte << 4 is s * 2^119,
// so byte 8 k + m stands for (1 + m / 8) 2^(k - 22). Subnormal scales are normalised. (A scale of
// zero is packed as codes of zero and byte 0.)
HB_HOST_DEVICE constexpr uint32_t encode_e4m3_scale(uint32_t e4m3) {
  // e4m3 is 8 e + m: (1 + m / 8) 2^(e - 7), or m 2^-9 if e = 0.
  if (e4m3 >= 8) return e4m3 + 8 * 15;
  const uint32_t log2 = e4m3 >= 4 ? 2 : e4m3 >= 2 ? 1 : 0;
  return e4m3 == 0 ? 0 : (e4m3 << (3 - log2)) + 8 * (log2 + 12);
}

// The byte that stands for an E8M0 scale e: BF16 pattern byte << 7, 2^(e - e_max + 126); with the
// 2^-126 of the codes that is 2^(e - e_max). `e_max` is the largest e of the matrix's blocks that
// are not all zero: exact for the 132 powers of two below it, and what is smaller is 0 beside it.
HB_HOST_DEVICE constexpr uint32_t encode_e8m0_scale(int e8m0, int e_max) {
  const int byte = e8m0 - e_max + 253;
  return static_cast<uint32_t>(byte < 1 ? 1 : byte > 253 ? 253 : byte);
}

// The scale word of a lane, NVFP4. In the low half, row g: half 0 at bits 11:4, where its pattern
// wants it, and half 1 at bits 3:0 and 15:12, which is there once the two bytes are swapped. In the
// high half, row g + 8. Zeros leave their places free, so that words of one lane can be or-ed.
HB_HOST_DEVICE constexpr uint32_t encode_scales(uint32_t g0, uint32_t g1, uint32_t g8_0,
                                                uint32_t g8_1) {
  const uint32_t low = (g0 << 4) | ((g1 & 15) << 12) | (g1 >> 4);
  const uint32_t high = (g8_0 << 4) | ((g8_1 & 15) << 12) | (g8_1 >> 4);
  return low | (high << 16);
}

}  // namespace halfbyte::hopper

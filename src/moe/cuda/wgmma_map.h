// Where things lie for the wgmma kernel: index maps that the kernel, its launcher and the tests
// share.
//
//   stage   = weights of 128 packed rows for each consuming warpgroup x 128 columns (2 blocks of
//             layout.h each), then operand B:
//             2 panels of (rows, 64 columns), 128 B a row, its 16-byte pieces at
//             piece ^ (row % 8): the 128-byte swizzle of wgmma. rows: those of the chunk, rounded
//             up to 8.
//   order   operand B has inside each 128 columns the order in which decoded weights leave the
//             registers: position -> natural column is `natural_column`.
//   h       (hidden rows): of each chunk, F / 128 blocks one after the other, each block the two
//             panels of a stage as they lie in shared memory: one copy brings it.
//   tiles   tile = chunk * row_tiles + row_tile. Thread blocks take them in this order, the
//             first by their index, then whoever is free: the chunks of an expert follow each
//             other, so its weights come from HBM once.
//
// Checked by tests/unit/moe/cuda/wgmma_map_test.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>

#include "moe/cuda/layout.h"

namespace halfbyte::hopper {

constexpr int kAtoms = 2;  // tiles of layout.h (64 packed rows) that a warpgroup has of a tile
constexpr int kPanelCols = 64;
constexpr int kPanelRowBytes = 128;
constexpr int kMaxStages = 8;

HB_HOST_DEVICE constexpr int round_up_8(int n) { return (n + 7) & ~7; }

// The column, within its block of 128, whose value lies at `position` of operand B.
HB_HOST_DEVICE constexpr int natural_column(WeightFormat format, int position) {
  const int half = position / 64, instruction = position / 16 % 4, p = position % 16;
  return column(format, half, p % 8 / 2) + 4 * instruction + 2 * (p / 8) + p % 2;
}
// Its inverse.
HB_HOST_DEVICE constexpr int stored_position(WeightFormat format, int c) {
  const bool wide = format == WeightFormat::kMxfp4;
  const int half = wide ? c / 16 % 2 : c / 64, t = wide ? c / 32 : c / 16 % 4;
  const int instruction = c / 4 % 4, j = c % 4;
  return half * 64 + instruction * 16 + 2 * t + 8 * (j / 2) + j % 2;
}
// Byte of the value (row, position) in the panels of `rows` rows, a multiple of 8.
HB_HOST_DEVICE constexpr int panel_byte(int rows, int row, int position) {
  const int panel = position / kPanelCols, byte = position % kPanelCols * 2;
  return panel * rows * kPanelRowBytes + row * kPanelRowBytes + ((byte / 16) ^ (row % 8)) * 16 +
         byte % 16;
}
// The row of h, in units of padded F, at which a chunk begins: room for its rows rounded up to 8,
// whatever the chunks before it hold.
HB_HOST_DEVICE constexpr int hidden_row(int chunk, int first_row) {
  return (first_row / 8 + chunk) * 8;
}

// Up to where the swizzle of the panels repeats.
HB_HOST_DEVICE constexpr int stage_weight_bytes(WeightFormat format, int warpgroups) {
  return ceil_div(warpgroups * kAtoms * kTileSlabs * slab_bytes(format), 1024) * 1024;
}
// Shared memory of the ring of stages: as many as fit.
struct Ring {
  int stage_bytes = 0, num_stages = 0;
};
constexpr Ring ring_for(WeightFormat format, int warpgroups, int chunk_rows, int room) {
  Ring ring;
  ring.stage_bytes =
      stage_weight_bytes(format, warpgroups) + round_up_8(chunk_rows) * 2 * kPanelRowBytes;
  ring.num_stages = std::min(kMaxStages, room / ring.stage_bytes);
  return ring;
}

// The kernels, by the most rows of a chunk: each has some N compiled in, the last as many as that.
// Fewer rows leave registers for more consuming warpgroups, whose packed rows share operand B.
struct WgmmaKernel {
  int rows, warpgroups;
};
constexpr WgmmaKernel kWgmmaKernels[] = {{32, 4}, {64, 3}, {96, 3}, {160, 2}};
constexpr int kWgmmaRows = 160;
// The first of them that takes chunks of chunk_rows.
constexpr WgmmaKernel wgmma_kernel_for(int chunk_rows) {
  for (const WgmmaKernel& kernel : kWgmmaKernels)
    if (chunk_rows <= kernel.rows) return kernel;
  return *std::rbegin(kWgmmaKernels);
}

// The most rows of a chunk where experts have `mean` rows: the mean and 2.5 standard deviations, so
// that of uniform routing hardly an expert is cut; no more, since of shorter stages there are more.
inline int wgmma_chunk_rows(double mean) {
  const int rows =
      static_cast<int>(std::clamp<double>(mean + 2.5 * std::sqrt(mean), 1, kWgmmaRows));
  const int step = rows <= 96 ? 8 : 16;  // of the N compiled in
  return ceil_div(rows, step) * step;
}

constexpr int kProducerWarps = 4;

// Arrivals that complete a phase of a stage's barriers. full: of each producing warp's first
// thread, which expects the bytes of its copies, and, where rows are gathered, of every producer
// once its own are there.
HB_HOST_DEVICE constexpr int full_arrivals(bool gathered) {
  return kProducerWarps * (gathered ? 33 : 1);
}
// empty: of one lane of each consuming warp.
HB_HOST_DEVICE constexpr int empty_arrivals(int warpgroups) { return 4 * warpgroups; }

// A place in the ring; producers and consumers go through the same sequence. A consumer waits for
// the full barrier's phase of parity `phase`, a producer for the empty one's of the other parity,
// which a new barrier has behind it.
struct Cursor {
  int stage = 0;
  uint32_t phase = 0;
  HB_HOST_DEVICE constexpr void advance(int num_stages) {
    if (++stage == num_stages) stage = 0, phase ^= 1;
  }
};

}  // namespace halfbyte::hopper

#include "moe/cuda/wgmma_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace halfbyte::hopper {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kNvfp4, WeightFormat::kMxfp4};

// Instruction 4 h + i multiplies A's K positions 0..15 with rows 16 (4 h + i).. of operand B; of A,
// lane t holds positions 2 t, 2 t + 1, 2 t + 8, 2 t + 9 (PTX ISA, m64k16), which are four
// neighbouring weights from column(format, h, t) + 4 i on (layout.h).
TEST(WgmmaMap, OperandBHasTheOrderOfDecodedWeights) {
  for (const WeightFormat format : kFormats) {
    for (int h = 0; h < 2; ++h)
      for (int i = 0; i < 4; ++i)
        for (int t = 0; t < 4; ++t) {
          const int held[4] = {2 * t, 2 * t + 1, 2 * t + 8, 2 * t + 9};
          for (int j = 0; j < 4; ++j)
            EXPECT_EQ(natural_column(format, 16 * (4 * h + i) + held[j]),
                      column(format, h, t) + 4 * i + j);
        }
    std::set<int> columns;
    for (int position = 0; position < kBlockCols; ++position) {
      columns.insert(natural_column(format, position));
      EXPECT_EQ(stored_position(format, natural_column(format, position)), position);
    }
    EXPECT_EQ(columns.size(), 128u);
    EXPECT_EQ(*columns.rbegin(), 127);
  }
}

// The 128-byte swizzle of the PTX ISA: bits 4..6 of an address are xored with bits 7..9.
TEST(WgmmaMap, PanelsAreSwizzledAsTheTensorCoresReadThem) {
  for (int rows : {8, 40, 160}) {
    std::set<int> bytes;
    for (int row = 0; row < rows; ++row)
      for (int position = 0; position < kBlockCols; ++position) {
        const int plain = position / 64 * rows * 128 + row * 128 + position % 64 * 2;
        const int byte = panel_byte(rows, row, position);
        EXPECT_EQ(byte, plain ^ ((plain >> 7 & 7) << 4)) << rows << " " << row << " " << position;
        bytes.insert(byte);
      }
    EXPECT_EQ(bytes.size(), static_cast<size_t>(rows) * 128);
    EXPECT_EQ(*bytes.rbegin(), rows * 256 - 2);
  }
}

TEST(WgmmaMap, ChunksOfHiddenRowsDoNotOverlap) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    int first_row = 0, end = 0;
    const int chunks = 1 + static_cast<int>(random() % 100);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int rows = 1 + static_cast<int>(random() % (round % 2 == 0 ? 160 : 9));
      EXPECT_GE(hidden_row(chunk, first_row), end);
      end = hidden_row(chunk, first_row) + round_up_8(rows);
      first_row += rows;
    }
    EXPECT_LE(end, first_row + 8 * chunks + 8);
  }
}

TEST(WgmmaMap, RingsFitAndHaveAtLeastThreeStages) {
  constexpr int kRoom = 204 * 1024;
  for (const WeightFormat format : kFormats)
    for (int rows = 1; rows <= kWgmmaRows; ++rows) {
      const int warpgroups = wgmma_kernel_for(rows).warpgroups;
      const Ring ring = ring_for(format, warpgroups, rows, kRoom);
      EXPECT_GE(ring.num_stages, 3) << rows;
      EXPECT_LE(ring.num_stages, kMaxStages);
      EXPECT_LE(ring.num_stages * ring.stage_bytes, kRoom);
      EXPECT_GE(stage_weight_bytes(format, warpgroups), warpgroups * 8 * slab_bytes(format));
      // Panels start where the swizzle repeats.
      EXPECT_EQ(stage_weight_bytes(format, warpgroups) % 1024, 0);
      EXPECT_EQ(ring.stage_bytes % 1024, 0);
    }
}

TEST(WgmmaMap, ChunksHaveRoomForTheMeanAndSomeDeviations) {
  EXPECT_EQ(wgmma_chunk_rows(0.01), 8);
  EXPECT_EQ(wgmma_chunk_rows(16), 32);    // 16 + 10
  EXPECT_EQ(wgmma_chunk_rows(36), 56);    // 36 + 15
  EXPECT_EQ(wgmma_chunk_rows(100), 128);  // 100 + 25
  EXPECT_EQ(wgmma_chunk_rows(1e6), kWgmmaRows);
  for (double mean = 0.1; mean < 400; mean += 0.1) {
    const int rows = wgmma_chunk_rows(mean);
    EXPECT_EQ(rows % (rows <= 96 ? 8 : 16), 0);
    EXPECT_GE(wgmma_kernel_for(rows).rows, rows);
    EXPECT_GE(rows, std::min<double>(kWgmmaRows, mean));  // the workspace counts on it
  }
}

// ---- the ring's protocol, step by step in any order

// An mbarrier: a phase ends with its last arrival.
struct Barrier {
  int arrivals = 0, pending = 0;
  uint32_t parity = 0;  // of the phase that runs
  explicit Barrier(int n) : arrivals(n), pending(n) {}
  bool passes(uint32_t p) const { return parity != p; }
  void arrive() {
    if (--pending == 0) pending = arrivals, parity ^= 1;
  }
};

enum class Outcome { kDone, kDeadlock, kWrongStage };

// Producer threads and consumer warps, each advanced at random as far as its barriers let it.
// Consumers hold a stage until they have the next, or the tile's last until it is finished.
Outcome simulate(bool gathered, int warpgroups, int num_stages, int tiles, int blocks, int full,
                 int empty, uint32_t seed) {
  struct Worker {
    Cursor at;
    int step = 0, held = -1;
  };
  const int num_producers = kProducerWarps * (gathered ? 32 : 1);
  std::vector<Worker> producers(static_cast<size_t>(num_producers)),
      consumers(static_cast<size_t>(4 * warpgroups));
  std::vector<Barrier> fulls(static_cast<size_t>(num_stages), Barrier(full)),
      empties(static_cast<size_t>(num_stages), Barrier(empty));
  // What each producer has written into a stage.
  std::vector<std::vector<int>> content(static_cast<size_t>(num_stages),
                                        std::vector<int>(static_cast<size_t>(num_producers), -1));
  const int steps = tiles * blocks;
  std::mt19937 random(seed);
  for (int idle = 0; idle < 20'000;) {
    bool all_done = true, moved = false;
    const size_t which = random() % (producers.size() + consumers.size());
    if (which < producers.size()) {
      Worker& w = producers[which];
      const auto stage = static_cast<size_t>(w.at.stage);
      if (w.step < steps && empties[stage].passes(w.at.phase ^ 1)) {
        content[stage][which] = w.step++;
        if (!gathered || which % 32 == 0) fulls[stage].arrive();
        if (gathered) fulls[stage].arrive();
        w.at.advance(num_stages);
        moved = true;
      }
    } else {
      Worker& w = consumers[which - producers.size()];
      const auto stage = static_cast<size_t>(w.at.stage);
      if (w.step < steps && fulls[stage].passes(w.at.phase)) {
        for (int c : content[stage])
          if (c != w.step) return Outcome::kWrongStage;
        if (w.held >= 0) {
          for (int c : content[static_cast<size_t>(w.held)])
            if (c != w.step - 1) return Outcome::kWrongStage;
          empties[static_cast<size_t>(w.held)].arrive();
        }
        w.held = w.at.stage;
        w.at.advance(num_stages);
        if (++w.step % blocks == 0) {
          empties[static_cast<size_t>(w.held)].arrive();
          w.held = -1;
        }
        moved = true;
      }
    }
    for (const Worker& w : producers) all_done &= w.step == steps;
    for (const Worker& w : consumers) all_done &= w.step == steps;
    if (all_done) return Outcome::kDone;
    idle = moved ? 0 : idle + 1;
  }
  return Outcome::kDeadlock;
}

TEST(WgmmaMap, RingDeliversEveryStageWhateverTheOrder) {
  for (bool gathered : {false, true})
    for (int warpgroups : {2, 3, 4})
      for (int num_stages : {3, 4, 8})
        for (int blocks : {1, 2, 3, 5})
          for (uint32_t seed = 0; seed < 2; ++seed)
            EXPECT_EQ(simulate(gathered, warpgroups, num_stages, 4, blocks, full_arrivals(gathered),
                               empty_arrivals(warpgroups), seed),
                      Outcome::kDone)
                << gathered << " " << warpgroups << " " << num_stages << " " << blocks << " "
                << seed;
}

TEST(WgmmaMap, RingWithAnArrivalTooManyOrTooFewIsCaught) {
  for (bool gathered : {false, true})
    for (int warpgroups : {2, 3, 4}) {
      const int full = full_arrivals(gathered), empty = empty_arrivals(warpgroups);
      EXPECT_EQ(simulate(gathered, warpgroups, 3, 4, 5, full + 1, empty, 1), Outcome::kDeadlock);
      EXPECT_EQ(simulate(gathered, warpgroups, 3, 4, 5, full, empty + 1, 1), Outcome::kDeadlock);
      EXPECT_NE(simulate(gathered, warpgroups, 3, 4, 5, full, empty - 1, 1), Outcome::kDone);
      EXPECT_NE(simulate(gathered, warpgroups, 3, 4, 5, full - 1, empty, 1), Outcome::kDone);
    }
}

}  // namespace
}  // namespace halfbyte::hopper

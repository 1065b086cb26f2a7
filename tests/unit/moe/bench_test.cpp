#include "moe/bench.h"

#include <gtest/gtest.h>

#include "halfbyte/error.h"

namespace halfbyte {
namespace {

TEST(BenchShapes, NamesAndSizes) {
  const MoeShape k3 = find_bench_shape("k3-tp4").moe;
  EXPECT_EQ(k3.hidden, 3584);
  EXPECT_EQ(k3.intermediate, 768);
  EXPECT_EQ(k3.num_experts, 896);
  EXPECT_EQ(k3.top_k, 16);
  EXPECT_EQ(k3.activation.kind, ActivationKind::kSitu);
  const BenchShape ep8 = find_bench_shape("k3-ep8");
  EXPECT_EQ(ep8.moe.num_experts, 112);
  EXPECT_EQ(ep8.routed_experts(), 896);
  EXPECT_EQ(find_bench_shape("kimi-k2").routed_experts(), 384);
  const MoeShape own = find_bench_shape("64x32x8x2").moe;
  EXPECT_EQ(own.hidden, 64);
  EXPECT_EQ(own.intermediate, 32);
  EXPECT_EQ(own.num_experts, 8);
  EXPECT_EQ(own.top_k, 2);
  EXPECT_EQ(find_dense_shape("128x256").inner, 256);
  for (const char* bad : {"", "k4", "64x32x8", "64x32x8x", "64x32x8x0", "64x32x8x2x1", "-1x2x3x4",
                          "64x32x8x99999999999"})
    EXPECT_THROW(find_bench_shape(bad), Error) << bad;
  EXPECT_THROW(find_dense_shape("128"), Error);
}

TEST(BenchSpread, IsTheMedianAndTheTenths) {
  const Spread spread = spread_of({5, 1, 4, 2, 3, 11, 10, 9, 8, 7, 6});
  EXPECT_EQ(spread.p10, 2);
  EXPECT_EQ(spread.median, 6);
  EXPECT_EQ(spread.p90, 10);
  EXPECT_EQ(spread_of({7}).p90, 7);
}

TEST(Bench, LinesThatOtherWorkHasSpoiltAreMarked) {
  BenchLine line;
  line.probes = {.p10 = 30e9, .median = 34e9, .p90 = 36e9};
  line.of_probe = line.of_roof = 0.99;
  EXPECT_FALSE(is_disturbed(line));
  line.of_probe = 1.04;
  EXPECT_TRUE(is_disturbed(line));
  line.of_probe = 0.99;
  line.of_roof = 1.04;
  EXPECT_TRUE(is_disturbed(line));
  line.of_roof = 0.99;
  line.probes.p10 = 20e9;
  EXPECT_TRUE(is_disturbed(line));
}

TEST(Bench, LinesCountWhatACallMovesAndComputes) {
  CpuDevice device(best_simd_level(), {.threads = 1}, {});
  BenchShape shape = find_bench_shape("64x32x4x4");
  const std::vector<BenchLine> lines =
      bench_moe(device, shape, {.tokens = {1, 2}, .repetitions = 3});
  ASSERT_EQ(lines.size(), 2u);
  for (const BenchLine& line : lines) {
    EXPECT_EQ(line.repetitions, 3);
    EXPECT_EQ(line.flops, 2.0 * line.tokens * 4 * 3 * 64 * 32);
    EXPECT_GT(line.bytes, 4 * 3 * 64 * 32 * 4.5 / 8);  // every expert of every token: all four
    EXPECT_GT(line.seconds.median, 0);
    EXPECT_GT(line.of_roof, 0);
  }
}

// Half of the experts are elsewhere: so is half of the work.
TEST(Bench, ExpertsElsewhereAreNotCounted) {
  CpuDevice device(best_simd_level(), {.threads = 1}, {});
  BenchShape shape = find_bench_shape("64x32x8x8");
  shape.all_experts = 16;
  const std::vector<BenchLine> lines = bench_moe(device, shape, {.tokens = {64}, .repetitions = 3});
  const double all = 2.0 * 64 * 8 * 3 * 64 * 32;
  EXPECT_NEAR(lines.at(0).flops, all / 2, all / 8);
}

}  // namespace
}  // namespace halfbyte

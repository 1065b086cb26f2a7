// Linear on every level of the CPU against double-precision sums over decoded rows.
#include "ops/cpu/cpu_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "formats/bf16.h"
#include "formats/decode.h"
#include "halfbyte/error.h"
#include "support/moe.h"

namespace halfbyte {
namespace {

using testing_moe::random_matrix;
using testing_moe::StoredMatrix;

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBf16,
                                     WeightFormat::kFp8Block, WeightFormat::kNvfp4,
                                     WeightFormat::kMxfp4};

std::vector<SimdLevel> levels() {
  std::vector<SimdLevel> known;
  for (SimdLevel level : {SimdLevel::kScalar, SimdLevel::kAvx2, SimdLevel::kAvx512})
    if (machine_has(level)) known.push_back(level);
  return known;
}

std::vector<float> run(const Linear& linear, const TensorView& x, DType y_dtype) {
  const int64_t count = x.rows * linear.out_features();
  std::vector<uint32_t> bits(static_cast<size_t>(count), 0xFFFFFFFFu);
  linear.run(x, TensorView::of(bits.data(), y_dtype, x.rows, linear.out_features()));
  std::vector<float> y(static_cast<size_t>(count));
  for (size_t i = 0; i < y.size(); ++i) {
    if (y_dtype == DType::kF32)
      std::memcpy(&y[i], &bits[i], 4);
    else
      y[i] = bf16_to_float(reinterpret_cast<const uint16_t*>(bits.data())[i]);
  }
  return y;
}

// |y - exact| <= n u Σ|w||x|, u = 2^-24: n is at most 64 additions inside a group and one for each
// group; a product of two BF16 is exact in fp32. F32 weights add one rounding each.
void expect_close(const std::vector<float>& y, const StoredMatrix& weight,
                  const std::vector<float>& x, int64_t tokens) {
  const int64_t K = weight.view.cols, N = weight.view.rows;
  std::vector<double> row(static_cast<size_t>(K));
  for (int64_t n = 0; n < N; ++n) {
    decode_row(weight.view, n, row.data());
    for (int64_t t = 0; t < tokens; ++t) {
      double exact = 0, size = 0;
      for (int64_t k = 0; k < K; ++k) {
        const double product =
            row[static_cast<size_t>(k)] * double{x[static_cast<size_t>(t * K + k)]};
        exact += product;
        size += std::fabs(product);
      }
      const double terms = 64 + static_cast<double>(K) / 16;
      ASSERT_NEAR(double{y[static_cast<size_t>(t * N + n)]}, exact,
                  terms * std::ldexp(1, -24) * size + 1e-30)
          << "row " << n << " token " << t;
    }
  }
}

TEST(CpuLinear, EveryFormatAndLevelAgreesWithDouble) {
  std::mt19937 random(5);
  for (SimdLevel level : levels()) {
    CpuDevice device(level, {.threads = 2}, {});
    for (WeightFormat format : kFormats)
      for (const auto& [rows, cols] :
           {std::pair{1, 32}, {16, 64}, {33, 96}, {160, 288}, {130, 1056}})
        for (int tokens : {1, 2, 3, 5, 12, 13, 30}) {
          const StoredMatrix weight = random_matrix(format, rows, cols, random);
          const auto linear = cpu::load_cpu_linear(device, weight.view);
          EXPECT_EQ(linear->in_features(), cols);
          EXPECT_EQ(linear->out_features(), rows);
          std::vector<uint16_t> x =
              testing_moe::random_bf16(static_cast<size_t>(tokens * cols), random);
          std::vector<float> wide(x.size());
          for (size_t i = 0; i < x.size(); ++i) wide[i] = bf16_to_float(x[i]);
          SCOPED_TRACE(std::string(name_of(level)) + " " + name_of(format) + " " +
                       std::to_string(rows) + "x" + std::to_string(cols) +
                       " T=" + std::to_string(tokens));
          expect_close(run(*linear, testing_moe::bf16_view(x, tokens, cols), DType::kF32), weight,
                       wide, tokens);
          expect_close(
              run(*linear, TensorView::of(wide.data(), DType::kF32, tokens, cols), DType::kF32),
              weight, wide, tokens);
          if (HasFatalFailure()) return;
        }
  }
}

// moe-faults B54: router gates need their last bits. F32 weights that BF16 cannot hold stay F32.
TEST(CpuLinear, KeepsTheLastBitsOfF32Weights) {
  for (SimdLevel level : levels()) {
    CpuDevice device(level, {.threads = 1}, {});
    const float weights[2] = {1.0f + 0x1p-9f, 1.0f};
    MatrixView view{
        .format = WeightFormat::kF32, .rows = 2, .cols = 1, .values = weights, .name = {}};
    const auto linear = cpu::load_cpu_linear(device, view);
    uint16_t one = float_to_bf16(1);
    const std::vector<float> y =
        run(*linear, TensorView::of(&one, DType::kBf16, 1, 1), DType::kF32);
    EXPECT_EQ(y[0], 1.0f + 0x1p-9f);
    EXPECT_EQ(y[1], 1.0f);
  }
}

TEST(CpuLinear, F32WeightsThatBf16HoldsTakeHalfTheMemory) {
  CpuDevice device(SimdLevel::kScalar, {.threads = 1}, {});
  std::vector<float> weights(16 * 64, 1.5f);
  MatrixView view{
      .format = WeightFormat::kF32, .rows = 16, .cols = 64, .values = weights.data(), .name = {}};
  EXPECT_EQ(cpu::load_cpu_linear(device, view)->weight_bytes(), 16u * 64 * 2);
  weights[7] = 1.0f + 0x1p-20f;
  EXPECT_EQ(cpu::load_cpu_linear(device, view)->weight_bytes(), 16u * 64 * 4);
}

TEST(CpuLinear, BitwiseTheSameForAnyThreadsAndAnyCompany) {
  std::mt19937 random(6);
  for (SimdLevel level : levels())
    for (WeightFormat format : kFormats) {
      const StoredMatrix weight = random_matrix(format, 80, 1312, random);
      const int tokens = 200;  // more than one pass
      std::vector<uint16_t> x =
          testing_moe::random_bf16(static_cast<size_t>(tokens) * 1312, random);
      std::vector<float> expected;
      for (int threads = 1; threads <= 4; ++threads) {
        CpuDevice device(level, {.threads = threads}, {});
        const auto linear = cpu::load_cpu_linear(device, weight.view);
        const TensorView all = testing_moe::bf16_view(x, tokens, 1312);
        const std::vector<float> y = run(*linear, all, DType::kF32);
        if (threads == 1) expected = y;
        EXPECT_EQ(y, expected);
        for (int t : {0, 11, 12, 191, 192, 199}) {
          const std::vector<float> alone = run(*linear, all.row_slice(t, 1), DType::kF32);
          EXPECT_TRUE(std::equal(alone.begin(), alone.end(), expected.begin() + t * 80))
              << name_of(level) << " " << name_of(format) << " token " << t;
        }
      }
    }
}

TEST(CpuLinear, StridedViewsNoTokensAndBf16Output) {
  std::mt19937 random(7);
  for (SimdLevel level : levels()) {
    CpuDevice device(level, {.threads = 2}, {});
    const StoredMatrix weight = random_matrix(WeightFormat::kBf16, 20, 64, random);
    const auto linear = cpu::load_cpu_linear(device, weight.view);
    std::vector<uint16_t> x = testing_moe::random_bf16(3 * 100, random);
    std::vector<uint16_t> y(3 * 50, 0x1234);
    const TensorView wide_x = TensorView::of(x.data(), DType::kBf16, 3, 100);
    const TensorView wide_y = TensorView::of(y.data(), DType::kBf16, 3, 50);
    linear->run(wide_x.col_slice(10, 64), wide_y.col_slice(5, 20));
    std::vector<uint16_t> dense(3 * 64);
    for (size_t t = 0; t < 3; ++t)
      std::copy_n(x.begin() + static_cast<int64_t>(t) * 100 + 10, 64,
                  dense.begin() + static_cast<int64_t>(t) * 64);
    const std::vector<float> expected =
        run(*linear, testing_moe::bf16_view(dense, 3, 64), DType::kF32);
    for (size_t t = 0; t < 3; ++t)
      for (size_t n = 0; n < 50; ++n)
        EXPECT_EQ(y[t * 50 + n],
                  n >= 5 && n < 25 ? float_to_bf16(expected[t * 20 + n - 5]) : 0x1234);
    linear->run(wide_x.row_slice(0, 0).col_slice(0, 64), wide_y.row_slice(0, 0).col_slice(0, 20));
  }
}

// Teeth: the comparison above notices one flipped sign bit.
TEST(CpuLinear, OneFlippedSignIsCaught) {
  std::mt19937 random(8);
  CpuDevice device(best_simd_level(), {.threads = 1}, {});
  StoredMatrix weight = random_matrix(WeightFormat::kNvfp4, 16, 1024, random);
  std::vector<uint16_t> x = testing_moe::random_bf16(1024, random);
  const TensorView view = testing_moe::bf16_view(x, 1, 1024);
  const std::vector<float> before =
      run(*cpu::load_cpu_linear(device, weight.view), view, DType::kF32);
  size_t i = 0;
  while ((weight.values[i] & 7) == 0) ++i;
  weight.values[i] ^= 8;
  const std::vector<float> after =
      run(*cpu::load_cpu_linear(device, weight.view), view, DType::kF32);
  double size = 0;
  std::vector<double> row(1024);
  decode_row(weight.view, 0, row.data());
  for (size_t k = 0; k < 1024; ++k) size += std::fabs(row[k] * double{bf16_to_float(x[k])});
  EXPECT_GT(std::fabs(double{before[0]} - double{after[0]}), (64 + 64) * std::ldexp(1, -24) * size);
}

TEST(CpuLinear, RefusesAScaleThatIsNan) {
  std::mt19937 random(9);
  CpuDevice device(SimdLevel::kScalar, {.threads = 1}, {});
  StoredMatrix weight = random_matrix(WeightFormat::kNvfp4, 16, 32, random);
  weight.scales[3] = 0x7F;
  EXPECT_THROW(cpu::load_cpu_linear(device, weight.view), Error);
}

}  // namespace
}  // namespace halfbyte

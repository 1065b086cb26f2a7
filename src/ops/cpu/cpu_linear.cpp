// y[t][n] = global_scale * sum_k w[n][k] x[t][k], in fp32, rounded once to the dtype of y.
//
// Letters: T tokens, N out, K in. Tokens go through in passes of kPassTokens: packed once (scratch
// of the device), then runs of tiles are handed to the threads; a thread multiplies its run with
// every token block of the pass and stores finished rows of 16 outputs. Sums do not depend on T, on
// the passes or on the threads. Checked: tests/unit/ops/cpu_linear_test.cpp against "ref"; timed:
// `halfbyte bench dense`.
#include "ops/cpu/cpu_linear.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "formats/check_matrix.h"
#include "simd/kernels.h"
#include "simd/tile_product.h"

namespace halfbyte::cpu {

namespace {

constexpr int64_t kPassTokens = 192;
constexpr int kMaxRun = 8;  // tiles that a thread takes at once

class CpuLinear : public Linear {
 public:
  CpuLinear(CpuDevice& device, const MatrixView& weight)
      : device_(device),
        kernels_(kernels(device.level())),
        rows_(weight.rows),
        cols_(weight.cols),
        scale_(weight.format == WeightFormat::kNvfp4 ? weight.global_scale : 1.0f),
        layout_(TileLayout::of(tile_format(weight), weight.rows, weight.cols)),
        tiles_(device.allocate(layout_.bytes())) {
    device.pool().parallel_for(
        layout_.tiles, [&](int64_t tile) { pack_tile(weight, layout_, tile, tile_at(tile)); });
    device.reserve_scratch(pass_bytes(PairFormat::kF32));
  }

  int64_t in_features() const override { return cols_; }
  int64_t out_features() const override { return rows_; }
  size_t weight_bytes() const override { return layout_.bytes(); }

  void run(TensorView x, TensorView y) const override {
    HB_CHECK(x.cols == cols_ && y.cols == rows_ && x.rows == y.rows);
    HB_CHECK(x.dtype == DType::kBf16 || x.dtype == DType::kF32);
    HB_CHECK(y.dtype == DType::kBf16 || y.dtype == DType::kF32);
    for (int64_t begin = 0; begin < x.rows; begin += kPassTokens) {
      const int64_t count = std::min(kPassTokens, x.rows - begin);
      run_pass(x.row_slice(begin, count), y.row_slice(begin, count));
    }
  }

 private:
  std::byte* tile_at(int64_t tile) const {
    return static_cast<std::byte*>(tiles_.data()) + static_cast<size_t>(tile) * layout_.tile_bytes;
  }
  size_t pass_bytes(PairFormat format) const {
    return static_cast<size_t>(kPassTokens * layout_.padded_cols / 2) * pair_bytes(format);
  }

  void run_pass(const TensorView& x, const TensorView& y) const {
    const PairFormat format = kernels_.pairs_for(x.dtype, layout_.format);
    const TokenBlocks blocks(x.rows, kernels_.max_tokens_for(format));
    const size_t token_bytes = static_cast<size_t>(layout_.padded_cols / 2) * pair_bytes(format);

    // Pack.
    std::byte* packed = device_.scratch();
    const auto pairs_of = [&](int64_t block) {
      return packed + static_cast<size_t>(blocks.begin(block)) * token_bytes;
    };
    const int64_t pack_cost = x.rows * cols_ / 4;
    device_.pool().parallel_for(blocks.count, pack_cost, [&](int64_t block) {
      std::array<const void*, kMaxTileTokens> rows{};
      for (int m = 0; m < blocks.size(block); ++m)
        rows[static_cast<size_t>(m)] = x.row_slice(blocks.begin(block) + m, 1).data;
      kernels_.pack_pairs(rows.data(), x.dtype == DType::kF32, blocks.size(block), cols_,
                          layout_.padded_cols, format, pairs_of(block));
    });

    // Multiply.
    const int run = run_length();
    const int64_t runs = (layout_.tiles + run - 1) / run;
    const int64_t cost =
        layout_.tiles * static_cast<int64_t>(layout_.tile_bytes) / 16 * blocks.count;
    device_.pool().parallel_for(runs, cost, [&](int64_t item) {
      const int64_t tile = item * run;
      const TileRun tiles{tile_at(tile), layout_.tile_bytes,
                          static_cast<int>(std::min<int64_t>(run, layout_.tiles - tile))};
      for (int64_t block = 0; block < blocks.count; ++block) {
        alignas(64) std::array<float, kMaxRun * kMaxTileTokens * kTileRows> sums;
        const int M = blocks.size(block);
        multiply_tiles(kernels_, layout_, tiles, {pairs_of(block), format, M}, sums.data());
        for (int m = 0; m < M; ++m)
          store_outputs(tiles.count, M, m, sums.data(), tile * kTileRows,
                        y.row_slice(blocks.begin(block) + m, 1));
      }
    });
  }

  // Enough runs that threads end together, long enough that each is a stream.
  int run_length() const {
    const int64_t wanted = int64_t{device_.pool().size()} * 16;
    return static_cast<int>(std::clamp<int64_t>(layout_.tiles / wanted, 1, kMaxRun));
  }

  // y[first_row ..] = scale * the sums of token m.
  void store_outputs(int tiles, int M, int m, const float* sums, int64_t first_row,
                     const TensorView& y) const {
    for (int tile = 0; tile < tiles; ++tile) {
      const int64_t row = first_row + tile * kTileRows;
      const float* from = sums + (int64_t{tile} * M + m) * kTileRows;
      std::array<float, kTileRows> scaled;
      for (size_t r = 0; r < kTileRows; ++r) scaled[r] = scale_ * from[r];
      const int64_t count = std::min<int64_t>(kTileRows, rows_ - row);
      kernels_.store_row(scaled.data(), count, y.dtype, y.col_slice(row, count).data);
    }
  }

  CpuDevice& device_;
  const Kernels& kernels_;
  int64_t rows_, cols_;
  float scale_;
  TileLayout layout_;
  Buffer tiles_;
};

}  // namespace

std::unique_ptr<Linear> load_cpu_linear(CpuDevice& device, const MatrixView& weight) {
  check_matrix(weight);
  return std::make_unique<CpuLinear>(device, weight);
}

}  // namespace halfbyte::cpu

// Packed experts, read as the lanes of a warp read them, against a plain product of the weights
// that the checkpoint stores. Activations are small, so that every sum is exact in a double
// whatever its order: results are compared bit for bit.
#include "moe/cuda/pack.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "formats/decode.h"
#include "moe/cuda/layout.h"
#include "support/hopper_layout.h"
#include "support/moe.h"

namespace halfbyte::hopper {
namespace {

using testing_moe::StoredExperts;
using testing_moe::StoredMatrix;

constexpr int kTokens = 8;  // columns of an mma

struct Product {
  std::vector<double> sums;  // (rows of the packed matrix, kTokens)
  int inexact = 0;           // elements that decoding would have had to round
};

// x (kTokens, cols padded to 128), 0 where there is no column.
using Activations = std::vector<double>;

// mma m16n8k16 with fragments as PTX defines them: lane 4 g + t holds of A the pairs
// (g, 2t) (g+8, 2t) (g, 2t+8) (g+8, 2t+8), of B column g at 2t, 2t+1, 2t+8, 2t+9.
struct Fragments {
  double a[16][16], b[16][kTokens];

  void accumulate(double* sums) const {
    for (int r = 0; r < 16; ++r)
      for (int n = 0; n < kTokens; ++n)
        for (int k = 0; k < 16; ++k) sums[r * kTokens + n] += a[r][k] * b[k][n];
  }
};

Product multiply_packed(WeightFormat format, const MatrixLayout& layout, const std::byte* packed,
                        const Activations& x) {
  const size_t x_cols = static_cast<size_t>(layout.blocks) * kBlockCols;
  Product product;
  product.sums.resize(static_cast<size_t>(layout.tiles) * kTileRows * kTokens);
  for (int tile = 0; tile < layout.tiles; ++tile)
    for (int block = 0; block < layout.blocks; ++block)
      for (int s = 0; s < kTileSlabs; ++s, packed += slab_bytes(format)) {
        double* sums =
            &product.sums[static_cast<size_t>(tile * kTileRows + s * kSlabRows) * kTokens];
        for (int h = 0; h < 2; ++h)
          for (int i = 0; i < 4; ++i) {
            Fragments fragments;
            for (int lane = 0; lane < 32; ++lane) {
              const int g = lane / 4, t = lane % 4;
              WordPair words;
              uint32_t patterns;
              std::memcpy(&words, packed + h * 512 + lane * 16 + i / 2 * 8, 8);
              if (format == WeightFormat::kMxfp4) {
                uint16_t bytes;
                std::memcpy(&bytes, packed + kCodeBytes + lane * 2, 2);
                patterns = testing_hopper::mxfp4_patterns(bytes);
              } else {
                uint32_t scales;
                std::memcpy(&scales, packed + kCodeBytes + lane * 4, 4);
                patterns = testing_hopper::nvfp4_patterns(scales, h);
              }
              const testing_hopper::Pairs pairs = testing_hopper::unpack_words(words);
              for (int r = 0; r < 4; ++r)
                for (int j = 0; j < 2; ++j) {
                  const uint32_t scale = r % 2 == 0 ? patterns & 0xFFFF : patterns >> 16;
                  const double value = testing_hopper::product(
                      pairs[static_cast<size_t>(i % 2 * 4 + r)] >> (16 * j) & 0xFFFF, scale);
                  product.inexact += !testing_hopper::is_bf16(value);
                  fragments.a[g + r % 2 * 8][2 * t + r / 2 * 8 + j] = value;
                }
              const double* activations =
                  &x[static_cast<size_t>(g) * x_cols +
                     static_cast<size_t>(block * kBlockCols + column(format, h, t) + 4 * i)];
              for (int j = 0; j < 4; ++j)
                fragments.b[2 * t + j / 2 * 8 + j % 2][g] = activations[j];
            }
            fragments.accumulate(sums);
          }
      }
  return product;
}

// Row `row` of a packed matrix as the checkpoint has it: which matrix, and where in it.
struct Origin {
  const MatrixView* matrix;
  int64_t row;
};
Origin origin_of(const ExpertWeights& expert, bool gated_pair, const MatrixView& plain, int row) {
  if (!gated_pair) return {&plain, row};
  return {row % 16 < 8 ? &expert.gate : &expert.up, row / 16 * 8 + row % 8};
}

struct Comparison {
  int wrong = 0;    // sums that differ
  int inexact = 0;  // decoded weights that are no BF16 numbers
};

class PackedExpert {
 public:
  PackedExpert(const MoeShape& shape, const ExpertWeights& expert)
      : shape_(shape), layout_(expert_layout(shape)), bytes_(layout_.bytes, std::byte{0xFF}) {
    pack_expert_host(shape, expert, bytes_);
  }

  float factor(int i) const {
    float value;
    std::memcpy(&value, bytes_.data() + layout_.factor_offset + 4 * static_cast<size_t>(i), 4);
    return value;
  }

  // Sums over x of both packed matrices, against the weights in `expert`.
  Comparison compare(const ExpertWeights& expert, const Activations& x_up,
                     const Activations& x_down) const {
    const bool gated = shape_.activation.gated();
    Comparison result;
    compare_matrix(expert, gated, expert.up, layout_.up, 0, x_up, result);
    compare_matrix(expert, false, expert.down, layout_.down, layout_.down_offset, x_down, result);
    return result;
  }

  const ExpertLayout& layout() const { return layout_; }

 private:
  void compare_matrix(const ExpertWeights& expert, bool gated_pair, const MatrixView& plain,
                      const MatrixLayout& layout, size_t offset, const Activations& x,
                      Comparison& result) const {
    const Product product = multiply_packed(shape_.weights, layout, bytes_.data() + offset, x);
    result.inexact += product.inexact;
    const size_t x_cols = static_cast<size_t>(layout.blocks) * kBlockCols;
    std::vector<double> weights(static_cast<size_t>(plain.cols));
    for (int row = 0; row < layout.tiles * kTileRows; ++row) {
      const Origin origin = origin_of(expert, gated_pair, plain, row);
      std::fill(weights.begin(), weights.end(), 0.0);
      if (origin.row < origin.matrix->rows) {
        MatrixView view = *origin.matrix;
        view.global_scale = 1;
        decode_row(view, origin.row, weights.data());
      }
      double gain = double{decode_gain(shape_.weights)};
      if (shape_.weights == WeightFormat::kMxfp4)
        gain *= double{factor(origin.matrix == &expert.gate ? 0
                              : origin.matrix == &expert.up ? 1
                                                            : 2)};
      for (int n = 0; n < kTokens; ++n) {
        double sum = 0;
        for (size_t c = 0; c < weights.size(); ++c)
          sum += weights[c] * x[static_cast<size_t>(n) * x_cols + c];
        result.wrong += product.sums[static_cast<size_t>(row * kTokens + n)] * gain != sum;
      }
    }
  }

  MoeShape shape_;
  ExpertLayout layout_;
  std::vector<std::byte> bytes_;
};

// Small numbers, none of them 0: a wrong weight anywhere moves a sum.
Activations random_activations(const MatrixLayout& layout, int cols, std::mt19937& random) {
  const double values[] = {-2, -1, 1, 0.5, 3, -0.5, 1.5, -3};
  const size_t x_cols = static_cast<size_t>(layout.blocks) * kBlockCols;
  Activations x(kTokens * x_cols);
  for (size_t n = 0; n < kTokens; ++n)
    for (size_t c = 0; c < static_cast<size_t>(cols); ++c) x[n * x_cols + c] = values[random() % 8];
  return x;
}

struct Case {
  const char* name;
  WeightFormat format;
  ActivationKind activation;
  int hidden, intermediate;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

MoeShape shape_of(const Case& c) {
  MoeShape shape;
  shape.num_experts = 1;
  shape.top_k = 1;
  shape.hidden = c.hidden;
  shape.intermediate = c.intermediate;
  shape.activation.kind = c.activation;
  shape.weights = c.format;
  return shape;
}

class HopperPack : public testing::TestWithParam<Case> {
 protected:
  HopperPack()
      : shape_(shape_of(GetParam())),
        experts_(testing_hopper::random_experts(shape_, random_)),
        expert_(experts_.views[0]) {
    const ExpertLayout layout = expert_layout(shape_);
    x_up_ = random_activations(layout.up, shape_.hidden, random_);
    x_down_ = random_activations(layout.down, shape_.intermediate, random_);
  }
  Comparison compare(const PackedExpert& packed, const ExpertWeights& expert) const {
    return packed.compare(expert, x_up_, x_down_);
  }

  std::mt19937 random_{7};
  MoeShape shape_;
  StoredExperts experts_;
  ExpertWeights expert_;
  Activations x_up_, x_down_;
};

TEST_P(HopperPack, LanesGetTheSumsOfThePlainProductBitForBit) {
  const PackedExpert packed(shape_, expert_);
  const Comparison result = compare(packed, expert_);
  EXPECT_EQ(result.wrong, 0);
  EXPECT_EQ(result.inexact, 0);
  if (shape_.weights == WeightFormat::kNvfp4) {
    EXPECT_EQ(packed.factor(0), shape_.activation.gated() ? expert_.gate.global_scale : 0);
    EXPECT_EQ(packed.factor(1), expert_.up.global_scale);
    EXPECT_EQ(packed.factor(2), expert_.down.global_scale);
  }
  for (int i = 3; i < kFactorBytes / 4; ++i) EXPECT_EQ(packed.factor(i), 0) << i;
}

// Teeth: the comparison sees one nibble, one scale, gate for up.
TEST_P(HopperPack, OneWrongNibbleScaleOrMatrixIsSeen) {
  const PackedExpert packed(shape_, expert_);
  for (StoredMatrix& matrix : experts_.matrices)
    for (int i = 0; i < 5; ++i) {
      const int64_t group = matrix.view.format == WeightFormat::kNvfp4 ? 16 : 32;
      const size_t at = random_() % matrix.values.size();
      const size_t scale_at = at * 2 / static_cast<size_t>(group);
      uint8_t& scale = matrix.scales[scale_at];
      const uint8_t kept_scale = scale, kept = matrix.values[at];
      if (matrix.view.format == WeightFormat::kMxfp4 || (kept_scale & 0x7F) != 0) {
        matrix.values[at] ^= i % 2 == 0 ? 0x01 : 0x10;
        EXPECT_GE(compare(packed, expert_).wrong, kTokens);  // one row
        matrix.values[at] = kept;
      }
      scale ^= 0x01;
      EXPECT_GE(compare(packed, expert_).wrong, 1);
      scale = kept_scale;
    }
  if (shape_.activation.gated()) {
    ExpertWeights swapped = expert_;
    std::swap(swapped.gate, swapped.up);
    EXPECT_GT(compare(packed, swapped).wrong, shape_.intermediate * kTokens);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, HopperPack,
    testing::Values(
        Case{"nvfp4_even", WeightFormat::kNvfp4, ActivationKind::kSitu, 256, 128},
        Case{"nvfp4_rows_not_64", WeightFormat::kNvfp4, ActivationKind::kSwiglu, 144, 48},
        Case{"nvfp4_narrow", WeightFormat::kNvfp4, ActivationKind::kSwiglu, 128, 16},
        Case{"nvfp4_tails", WeightFormat::kNvfp4, ActivationKind::kSwigluClamped, 192, 208},
        Case{"nvfp4_not_gated", WeightFormat::kNvfp4, ActivationKind::kRelu2, 272, 80},
        Case{"nvfp4_smallest", WeightFormat::kNvfp4, ActivationKind::kRelu2, 16, 16},
        Case{"mxfp4_even", WeightFormat::kMxfp4, ActivationKind::kSwigluClamped, 256, 128},
        Case{"mxfp4_tails", WeightFormat::kMxfp4, ActivationKind::kSwigluClamped, 320, 160},
        Case{"mxfp4_not_gated", WeightFormat::kMxfp4, ActivationKind::kRelu2, 96, 32}),
    [](const auto& info) { return std::string(info.param.name); });

// Exponents 132 binades apart in one matrix are exact, and a block of zeros has no say in e_max.
// One weight a sum, so that sums stay exact.
TEST(HopperPackMxfp4, FarExponentsAreExactAndZeroBlocksDoNotCount) {
  std::mt19937 random(9);
  const MoeShape shape = shape_of({"", WeightFormat::kMxfp4, ActivationKind::kSwiglu, 128, 32});
  StoredExperts experts = testing_hopper::random_experts(shape, random);
  for (StoredMatrix& matrix : experts.matrices) {
    for (uint8_t& scale : matrix.scales) scale = static_cast<uint8_t>(100 + random() % 133);
    matrix.scales[0] = 232;
    matrix.values[0] = 0x17;
    matrix.scales[1 % matrix.scales.size()] = 254;
    std::memset(matrix.values.data() + 16, 0x80, 16);
  }
  const ExpertWeights& expert = experts.views[0];
  const PackedExpert packed(shape, expert);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(packed.factor(i), 0x1p105f);  // 232 - 127
  for (int round = 0; round < 16; ++round) {
    Activations one_hot(kTokens * kBlockCols);
    for (size_t n = 0; n < kTokens; ++n)
      one_hot[n * kBlockCols + (static_cast<size_t>(round) * kTokens + n)] = 1;
    Activations one_hot_down = one_hot;  // columns from 32 on have no weights
    const Comparison result = packed.compare(expert, one_hot, one_hot_down);
    EXPECT_EQ(result.wrong, 0);
    EXPECT_EQ(result.inexact, 0);
  }
}

TEST(HopperPackMxfp4, AllZeroAndSmallestExponentsHaveUsableFactors) {
  std::mt19937 random(10);
  const MoeShape shape = shape_of({"", WeightFormat::kMxfp4, ActivationKind::kSwiglu, 32, 32});
  StoredExperts experts = testing_hopper::random_experts(shape, random);
  std::fill(experts.matrices[0].values.begin(), experts.matrices[0].values.end(), uint8_t{0});
  std::fill(experts.matrices[1].scales.begin(), experts.matrices[1].scales.end(), uint8_t{0});
  const PackedExpert packed(shape, experts.views[0]);
  EXPECT_EQ(packed.factor(0), 1.0f);
  EXPECT_EQ(packed.factor(1), 0x1p-127f);
  Activations x = random_activations(packed.layout().up, 32, random);
  EXPECT_EQ(packed.compare(experts.views[0], x, x).wrong, 0);
}

// Staged experts fit where their packed form will be, and tensors are aligned for the GPU.
TEST(HopperPackStaged, LiesInThePackedExpert) {
  for (WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kMxfp4})
    for (ActivationKind activation : {ActivationKind::kSwiglu, ActivationKind::kRelu2})
      for (int hidden = 32; hidden <= 320; hidden += 32)
        for (int intermediate = 32; intermediate <= 320; intermediate += 32) {
          const MoeShape shape = shape_of({"", format, activation, hidden, intermediate});
          const ExpertLayout layout = expert_layout(shape);
          const StagedExpert staged = staged_expert(shape);
          EXPECT_LE(staged.end, layout.factor_offset);
          for (size_t offset : {staged.up_codes, staged.gate_scales, staged.up_scales,
                                staged.down_codes, staged.down_scales})
            EXPECT_EQ(offset % 16, 0u);
        }
}

}  // namespace
}  // namespace halfbyte::hopper

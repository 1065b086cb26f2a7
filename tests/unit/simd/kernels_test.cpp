// The inner loops of every level against sums in double.
#include "simd/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "support/moe.h"

namespace halfbyte {
namespace {

std::vector<SimdLevel> levels() {
  std::vector<SimdLevel> known;
  for (SimdLevel level : {SimdLevel::kScalar, SimdLevel::kAvx2, SimdLevel::kAvx512})
    if (machine_has(level)) known.push_back(level);
  return known;
}

// One tile of 16 rows as a stored matrix, packed.
struct Tile {
  TileLayout layout;
  Buffer bytes;
  explicit Tile(const MatrixView& view)
      : layout(TileLayout::of(tile_format(view), view.rows, view.cols)),
        bytes(allocate_host_memory(layout.bytes())) {
    pack_tile(view, layout, 0, static_cast<std::byte*>(bytes.data()));
  }
};

// The 16 sums of a tile with the column `one` of x set to 1 and all others to 0: that column's
// weights.
std::vector<float> column(const Kernels& k, PairFormat pairs, const Tile& tile, int64_t one) {
  std::vector<uint16_t> x(static_cast<size_t>(tile.layout.padded_cols));
  x[static_cast<size_t>(one)] = float_to_bf16(1);
  std::vector<float> wide(x.size());
  wide[static_cast<size_t>(one)] = 1;
  const bool f32 = pairs == PairFormat::kF32;
  const void* row = f32 ? static_cast<const void*>(wide.data()) : x.data();
  std::vector<std::byte> packed(x.size() / 2 * pair_bytes(pairs));
  k.pack_pairs(&row, f32, 1, static_cast<int64_t>(x.size()), tile.layout.padded_cols, pairs,
               packed.data());
  std::vector<float> sums(16);
  k.dot_for(pairs, tile.layout.format, 1)(static_cast<const std::byte*>(tile.bytes.data()),
                                          tile.layout.blocks, packed.data(), sums.data());
  return sums;
}

std::vector<PairFormat> pair_formats(const Kernels& k) {
  if (k.bf16_pairs == PairFormat::kF32) return {PairFormat::kF32};
  return {PairFormat::kBf16, PairFormat::kF32};
}

// moe-faults B19: every byte of two codes, at every byte of a lane, in every lane, exact.
TEST(Kernels, DecodeEveryCodeByteAtEveryPlace) {
  for (SimdLevel level : levels()) {
    const Kernels& k = kernels(level);
    for (WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kMxfp4})
      for (int step = 0; step < 256; step += 16) {
        // Row r holds the bytes step + r, step + r + 37, ...: each byte meets each place and
        // sixteen neighbours.
        testing_moe::StoredMatrix weight;
        weight.view = {.format = format, .rows = 16, .cols = 128, .name = {}};
        weight.values.resize(16 * 64);
        for (size_t r = 0; r < 16; ++r)
          for (size_t b = 0; b < 64; ++b)
            weight.values[r * 64 + b] =
                static_cast<uint8_t>(static_cast<size_t>(step) + r + b * 37);
        weight.scales.assign(16 * 8, format == WeightFormat::kNvfp4 ? 0x38 : 127);  // 1
        weight.view.values = weight.values.data();
        weight.view.scales = weight.scales.data();
        const Tile tile(weight.view);
        for (PairFormat pairs : pair_formats(k))
          for (int64_t c = 0; c < 128; ++c) {
            const std::vector<float> got = column(k, pairs, tile, c);
            for (size_t r = 0; r < 16; ++r)
              ASSERT_EQ(got[r], e2m1_to_float(e2m1_code_at(&weight.values[r * 64], c)))
                  << name_of(level) << " row " << r << " column " << c;
          }
      }
  }
}

TEST(Kernels, DecodeEveryScaleByte) {
  for (SimdLevel level : levels()) {
    const Kernels& k = kernels(level);
    for (WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kMxfp4}) {
      const int group = format == WeightFormat::kNvfp4 ? 16 : 32;
      for (int first = 0; first < (format == WeightFormat::kNvfp4 ? 127 : 255); first += 16) {
        testing_moe::StoredMatrix weight;
        weight.view = {.format = format, .rows = 16, .cols = 128, .name = {}};
        weight.values.assign(16 * 64, 0x12);  // even columns 1, odd columns 0.5
        weight.scales.resize(static_cast<size_t>(16 * 128 / group));
        for (size_t i = 0; i < weight.scales.size(); ++i) {
          const int byte = first + static_cast<int>(i) / (128 / group);
          weight.scales[i] =
              static_cast<uint8_t>(std::min(byte, format == WeightFormat::kNvfp4 ? 126 : 254));
        }
        weight.view.values = weight.values.data();
        weight.view.scales = weight.scales.data();
        const Tile tile(weight.view);
        for (PairFormat pairs : pair_formats(k))
          for (int64_t c : {0, 17, 63, 64, 127}) {
            const std::vector<float> got = column(k, pairs, tile, c);
            for (size_t r = 0; r < 16; ++r) {
              const uint8_t byte = weight.scales[r * static_cast<size_t>(128 / group)];
              const double scale = format == WeightFormat::kNvfp4 ? double{e4m3_to_float(byte)}
                                                                  : std::ldexp(1, byte - 127);
              // 2^127 code 1 is the largest; E8M0's smallest gives fp32 subnormals: exact too.
              ASSERT_EQ(double{got[r]}, (c % 2 == 0 ? 1.0 : 0.5) * scale)
                  << name_of(level) << " scale byte " << int{byte};
            }
          }
      }
    }
  }
}

TEST(Kernels, DecodeEveryE4m3Code) {
  for (SimdLevel level : levels()) {
    const Kernels& k = kernels(level);
    testing_moe::StoredMatrix weight;
    weight.view = {.format = WeightFormat::kFp8Block, .rows = 16, .cols = 64, .name = {}};
    weight.values.resize(16 * 64);
    for (size_t r = 0; r < 16; ++r)
      for (size_t c = 0; c < 64; ++c) {
        const auto code = static_cast<uint8_t>(r * 16 + c * 5);
        weight.values[r * 64 + c] = e4m3_is_nan(code) ? uint8_t{0} : code;
      }
    const float scale = 0.25f;
    weight.view.values = weight.values.data();
    weight.view.scales = &scale;
    const Tile tile(weight.view);
    for (PairFormat pairs : pair_formats(k))
      for (int64_t c = 0; c < 64; ++c) {
        const std::vector<float> got = column(k, pairs, tile, c);
        for (size_t r = 0; r < 16; ++r)
          ASSERT_EQ(got[r], e4m3_to_float(weight.values[r * 64 + static_cast<size_t>(c)]) * scale)
              << name_of(level) << " row " << r << " column " << c;
      }
  }
}

TEST(Kernels, RoundingToPairsAndRowsIsToNearestEven) {
  for (SimdLevel level : levels()) {
    const Kernels& k = kernels(level);
    std::vector<float> h(16);
    for (size_t i = 0; i < 16; ++i)
      h[i] = (1.0f + 0x1p-8f) * std::ldexp(1.0f, static_cast<int>(i)) + (i % 3 == 1 ? 0x1p-6f : 0);
    std::vector<uint32_t> pairs(8);
    k.store_pairs(h.data(), false, 1, PairFormat::kBf16,
                  reinterpret_cast<std::byte*>(pairs.data()));
    std::vector<uint16_t> row(16);
    k.store_row(h.data(), 16, DType::kBf16, row.data());
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(pairs[i / 2] >> (i % 2 * 16) & 0xFFFF, float_to_bf16(h[i]));
      EXPECT_EQ(row[i], float_to_bf16(h[i]));
    }
  }
}

}  // namespace
}  // namespace halfbyte

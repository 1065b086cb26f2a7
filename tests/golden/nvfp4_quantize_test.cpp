// golden/nvfp4-quantize: ModelOpt's quantiser and the MXFP4 cast, byte for byte.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/mxfp4.h"
#include "formats/nvfp4.h"
#include "formats/quant_kernels.h"
#include "formats/safetensors.h"

namespace halfbyte {
namespace {

SafetensorsFile open_case(const std::string& name) {
  return SafetensorsFile(std::filesystem::path(HALFBYTE_TEST_DATA) / "nvfp4-quantize" /
                         (name + ".safetensors"));
}

// Matrices of a case share the global scale (from the largest of them). Returns how many bytes of
// codes and scales differ from the file.
int64_t quantize_and_compare(const std::string& name, const std::vector<std::string>& matrices) {
  const SafetensorsFile file = open_case(name);
  float amax = 0;
  for (const auto& m : matrices) {
    const StoredTensor& input = file.get(m + ".input");
    amax = std::max(amax, input.dtype == DType::kF32
                              ? max_magnitude(input.as<float>(), input.elements())
                              : max_magnitude(input.as<uint16_t>(), input.elements()));
  }
  const float global_scale = nvfp4_global_scale(amax, ScaleChoice::kMax);
  int64_t different = 0;
  for (const auto& m : matrices) {
    const StoredTensor& input = file.get(m + ".input");
    EXPECT_EQ(global_scale, *file.get(m + ".weight_scale_2").as<float>());
    const int64_t rows = input.shape[0], cols = input.shape[1];
    std::vector<uint8_t> codes(static_cast<size_t>(rows * cols / 2));
    std::vector<uint8_t> scales(static_cast<size_t>(rows * cols / 16));
    if (input.dtype == DType::kF32)
      quantize_nvfp4(input.as<float>(), rows, cols, global_scale, ScaleChoice::kMax, codes.data(),
                     scales.data());
    else
      quantize_nvfp4(input.as<uint16_t>(), rows, cols, global_scale, ScaleChoice::kMax,
                     codes.data(), scales.data());
    const auto* expected_codes = file.get(m + ".weight").as<uint8_t>();
    const auto* expected_scales = file.get(m + ".weight_scale").as<uint8_t>();
    for (size_t i = 0; i < codes.size(); ++i) different += codes[i] != expected_codes[i];
    for (size_t i = 0; i < scales.size(); ++i) different += scales[i] != expected_scales[i];
    std::vector<float> values(static_cast<size_t>(rows * cols));
    dequantize_nvfp4(codes.data(), scales.data(), rows, cols, global_scale, values.data());
    const auto* expected_values = file.get(m + ".dequantized").as<float>();
    for (size_t i = 0; i < values.size(); ++i) different += values[i] != expected_values[i];
  }
  return different;
}

TEST(Nvfp4QuantizeGolden, GaussBf16) { EXPECT_EQ(quantize_and_compare("q1_gauss_bf16", {"w"}), 0); }
TEST(Nvfp4QuantizeGolden, Edges) { EXPECT_EQ(quantize_and_compare("q2_edges", {"w"}), 0); }
TEST(Nvfp4QuantizeGolden, GateAndUpShareTheGlobalScale) {
  EXPECT_EQ(quantize_and_compare("q3_gate_up_shared", {"gate", "up"}), 0);
}
TEST(Nvfp4QuantizeGolden, HeavyTail) { EXPECT_EQ(quantize_and_compare("q4_heavy_tail", {"w"}), 0); }

// Teeth: with each matrix's own global scale, `up` of q3 comes out differently.
TEST(Nvfp4QuantizeGolden, AnOwnGlobalScaleForUpWouldBeSeen) {
  const SafetensorsFile file = open_case("q3_gate_up_shared");
  const auto amax = [&](const char* name) {
    const StoredTensor& input = file.get(name);
    return max_magnitude(input.as<uint16_t>(), input.elements());
  };
  EXPECT_NE(nvfp4_global_scale(amax("up.input"), ScaleChoice::kMax),
            nvfp4_global_scale(amax("gate.input"), ScaleChoice::kMax));
}

void cast_and_compare(const std::string& name) {
  const SafetensorsFile file = open_case(name);
  const StoredTensor& packed = file.get("weight_packed");
  const auto* codes = packed.as<uint8_t>();
  const auto* mx_scales = file.get("mx_scale").as<uint8_t>();
  const int64_t rows = packed.shape[0], cols = packed.shape[1] * 2;
  const int m = nvfp4_cast_exponent(mxfp4_max_exponent(codes, mx_scales, rows, cols));
  const float global_scale = std::ldexp(1.0f, m);
  EXPECT_EQ(global_scale, *file.get("weight_scale_2").as<float>());

  std::vector<uint8_t> out_codes(static_cast<size_t>(rows * cols / 2));
  std::vector<uint8_t> out_scales(static_cast<size_t>(rows * cols / 16));
  const CastCounts counts =
      cast_mxfp4_to_nvfp4(codes, mx_scales, rows, cols, m, out_codes.data(), out_scales.data());
  std::vector<float> source(static_cast<size_t>(rows * cols)), result(source.size());
  dequantize_mxfp4(codes, mx_scales, rows, cols, source.data());
  dequantize_nvfp4(out_codes.data(), out_scales.data(), rows, cols, global_scale, result.data());
  const auto* expected_source = file.get("source_dequantized").as<float>();
  for (size_t i = 0; i < source.size(); ++i) ASSERT_EQ(source[i], expected_source[i]);

  const auto* expected_codes = file.get("weight").as<uint8_t>();
  const auto* expected_scales = file.get("weight_scale").as<uint8_t>();
  const auto* classes = file.get("block_class").as<uint8_t>();
  const auto* best_sse = file.get("best_sse").as<float>();
  CastCounts expected;
  for (size_t block = 0; block < out_scales.size(); ++block) {
    double sse = 0;
    for (size_t i = block * 16; i < block * 16 + 16; ++i)
      sse += (static_cast<double>(source[i]) - result[i]) *
             (static_cast<double>(source[i]) - result[i]);
    if (classes[block] == 0) {
      ++expected.exact;
      EXPECT_EQ(out_scales[block], expected_scales[block]) << block;
      for (size_t i = block * 8; i < block * 8 + 8; ++i)
        EXPECT_EQ(out_codes[i], expected_codes[i]) << block;
    } else if (classes[block] == 2) {
      ++expected.recoded;
      EXPECT_EQ(sse, 0) << block;
    } else {
      ++expected.lossy;
      EXPECT_GT(sse, 0) << block;
      EXPECT_LE(static_cast<float>(sse), best_sse[block]) << block;
    }
  }
  EXPECT_EQ(counts.exact, expected.exact);
  EXPECT_EQ(counts.recoded, expected.recoded);
  EXPECT_EQ(counts.lossy, expected.lossy);
}

TEST(Mxfp4CastGolden, Exact) { cast_and_compare("mx1_exact"); }
TEST(Mxfp4CastGolden, Recoded) { cast_and_compare("mx2_recode"); }
TEST(Mxfp4CastGolden, Lossy) { cast_and_compare("mx3_lossy"); }

}  // namespace
}  // namespace halfbyte

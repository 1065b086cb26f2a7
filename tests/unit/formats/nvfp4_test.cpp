#include "formats/nvfp4.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/quant_kernels.h"
#include "halfbyte/error.h"

namespace halfbyte {
namespace {

using Block = std::array<float, 16>;

struct Quantized {
  uint8_t scale = 0;
  std::string hex;  // packed codes in storage order
};

std::string hex_of(const uint8_t* bytes) {
  static const char* digits = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < 8; ++i) {
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

Quantized quantize(const Block& x, float global_scale, ScaleChoice choice = ScaleChoice::kMax) {
  Quantized result;
  uint8_t codes[8];
  quantize_nvfp4(x.data(), 1, 16, global_scale, choice, codes, &result.scale);
  result.hex = hex_of(codes);
  return result;
}

// The definition, element by element with the scalar codecs; `fault` picks a known mistake.
enum class Fault { kNone, kUnroundedScale, kReciprocal, kTiesAway, kScaleRoundedDown };
Quantized define(const Block& x, float global_scale, Fault fault = Fault::kNone) {
  float amax = 0;
  for (const float v : x) amax = std::max(amax, std::abs(v));
  float s = amax / (6.0f * global_scale);
  if (s == 0) s = 1;
  s = std::min(std::max(s, 0x1p-9f), 448.0f);
  Quantized result;
  result.scale = float_to_e4m3(s);
  if (fault == Fault::kScaleRoundedDown && e4m3_to_float(result.scale) > s) --result.scale;
  const float rounded = fault == Fault::kUnroundedScale ? s : e4m3_to_float(result.scale);
  uint8_t codes[8] = {};
  for (int i = 0; i < 16; ++i) {
    const float divisor = rounded * global_scale;
    const float v = x[static_cast<size_t>(i)];
    const float y = fault == Fault::kReciprocal ? v * (1.0f / divisor) : v / divisor;
    uint8_t code = float_to_e2m1(y);
    if (fault == Fault::kTiesAway)
      code = float_to_e2m1(y < 0 ? std::nextafter(y, -9.0f) : std::nextafter(y, 9.0f));
    codes[i / 2] |= static_cast<uint8_t>(code << (i % 2 * 4));
  }
  result.hex = hex_of(codes);
  return result;
}

const Block kTies = {.25f,  .75f,  1.25f,  1.75f,  2.5f,  3.5f,  5,  6,
                     -.25f, -.75f, -1.25f, -1.75f, -2.5f, -3.5f, -5, -6};
const Block kRealistic = {.75f,  -.33f,  .1f,  .01f, -.02f, .5f, -.74f, .25f,
                          .003f, -.003f, .06f, .12f, -.18f, .4f, -.6f,  0};

// Vectors of the format's description: name, input, global scale, scale byte, codes.
TEST(Nvfp4, Vectors) {
  const Block identity = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -.5f, -1, -1.5f, -2, -3, -4, -6, 0};
  EXPECT_EQ(quantize(identity, 1).scale, 0x38);
  EXPECT_EQ(quantize(identity, 1).hex, "10325476a9cbed0f");
  EXPECT_EQ(quantize(kTies, 1).scale, 0x38);
  EXPECT_EQ(quantize(kTies, 1).hex, "20426476a8caecfe");
  EXPECT_EQ(quantize(Block{}, 0.37f).scale, 0x38);
  EXPECT_EQ(quantize(Block{}, 0.37f).hex, "0000000000000000");
  Block tiny;
  tiny.fill(0x1p-14f);
  tiny[0] = 6 * 0x1p-12f;
  tiny[1] = -3 * 0x1p-12f;
  EXPECT_EQ(quantize(tiny, 1).scale, 0x01);
  EXPECT_EQ(quantize(tiny, 1).hex, "9200000000000000");
  const float global_scale = nvfp4_global_scale(0.75f, ScaleChoice::kMax);
  EXPECT_EQ(std::bit_cast<uint32_t>(global_scale), 0x39924925u);
  EXPECT_EQ(quantize(kRealistic, global_scale).scale, 0x7E);
  EXPECT_EQ(quantize(kRealistic, global_scale).hex, "d702684f80215b0e");
  Block seventh = kRealistic;
  for (float& v : seventh) v /= 7.0f;
  EXPECT_EQ(quantize(seventh, global_scale).scale, 0x68);
  EXPECT_EQ(quantize(seventh, global_scale).hex, "d702684f80215b0e");
}

TEST(Nvfp4, SignIsThatOfTheQuotient) {
  Block x{};
  x[0] = -0.0f;
  x[1] = -1e-3f;
  x[2] = 10;
  x[3] = -std::numeric_limits<float>::denorm_min();  // the quotient underflows to -0.0
  const Quantized q = quantize(x, 1e4f);             // scale clamped to 2^-9
  EXPECT_EQ(q.hex.substr(0, 2), "80");
  EXPECT_EQ(q.hex.substr(2, 2), "01");
}

// B24: a block above what the global scale allows saturates, scale and codes.
TEST(Nvfp4, SaturatesAboveTheCalibratedRange) {
  Block x{};
  x[0] = 2 * 2688.0f;
  x[1] = -2 * 2688.0f;
  EXPECT_EQ(quantize(x, 1).scale, 0x7E);
  EXPECT_EQ(quantize(x, 1).hex.substr(0, 2), "f7");
}

// B35
TEST(Nvfp4, LargeMagnitudesFitThroughTheGlobalScale) {
  Block x{};
  x[5] = 1e5f;
  const float global_scale = nvfp4_global_scale(1e5f, ScaleChoice::kMax);
  uint8_t codes[8], scale;
  float back[16];
  quantize_nvfp4(x.data(), 1, 16, global_scale, ScaleChoice::kMax, codes, &scale);
  dequantize_nvfp4(codes, &scale, 1, 16, global_scale, back);
  EXPECT_LT(std::abs(back[5] / 1e5f - 1), 0.04f);
}

// A third each: normal values; multiples of a quarter; what a quantised matrix looks like, where
// every quotient is a code or the middle between two.
std::vector<Block> random_blocks(int count, float global_scale) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-20, 12);
  std::vector<Block> blocks(static_cast<size_t>(count));
  for (auto& block : blocks) {
    const float size = std::exp2(exponent(random));
    const float scale = e4m3_to_float(static_cast<uint8_t>(1 + random() % 126)) * global_scale;
    const unsigned kind = random() % 3;
    for (float& v : block)
      v = kind == 0   ? bf16_to_float(float_to_bf16(normal(random) * size))
          : kind == 1 ? static_cast<float>(static_cast<int>(random() % 49) - 24) * 0.25f * size
                      : kTies[random() % 16] * scale;
    if (kind == 2) block[0] = 6 * scale;
  }
  return blocks;
}

TEST(Nvfp4, EqualsTheDefinitionOnRandomBlocks) {
  for (const float global_scale : {1.0f, 3.0e-5f, 0.0123f}) {
    for (const Block& x : random_blocks(20000, global_scale)) {
      const Quantized got = quantize(x, global_scale), expected = define(x, global_scale);
      ASSERT_EQ(got.scale, expected.scale);
      ASSERT_EQ(got.hex, expected.hex);
    }
  }
}

// Teeth: each known mistake gives other codes on these very inputs.
int differences(Fault fault) {
  int different = 0;
  for (int step = 0; step < 200; ++step) {
    const float global_scale = 3.0e-5f * (1 + 0.005f * static_cast<float>(step));
    for (const Block& x : random_blocks(100, global_scale))
      different += quantize(x, global_scale).hex != define(x, global_scale, fault).hex;
  }
  return different;
}
TEST(Nvfp4, UnroundedScaleWouldBeSeen) {  // B29
  Block x{};
  x[0] = 6 * 1.06f;  // amax / 6 = 1.06 rounds to 1.0
  x[1] = 5.2f;
  EXPECT_EQ(quantize(x, 1).scale, 0x38);
  EXPECT_EQ(quantize(x, 1).hex.substr(0, 2), "77");
  EXPECT_EQ(define(x, 1, Fault::kUnroundedScale).hex.substr(0, 2), "67");
  EXPECT_GT(differences(Fault::kUnroundedScale), 1000);
}
TEST(Nvfp4, TiesAwayFromZeroWouldBeSeen) {  // B26
  EXPECT_NE(define(kTies, 1, Fault::kTiesAway).hex, quantize(kTies, 1).hex);
}
TEST(Nvfp4, ReciprocalInsteadOfDivisionWouldBeSeen) {
  EXPECT_GT(differences(Fault::kReciprocal), 100);
}
TEST(Nvfp4, ScaleRoundedDownWouldBeSeen) { EXPECT_GT(differences(Fault::kScaleRoundedDown), 1000); }

TEST(Nvfp4, RefusesNonFiniteValues) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> x(3 * 32, 0.5f);
    x[32 + 17] = bad;
    EXPECT_EQ(find_non_finite(x.data(), 96), 49);
    EXPECT_FALSE(std::isfinite(max_magnitude(x.data(), 96)));
    std::vector<uint16_t> bf16(x.size());
    for (size_t i = 0; i < x.size(); ++i) bf16[i] = float_to_bf16(x[i]);
    EXPECT_EQ(find_non_finite(bf16.data(), 96), 49);
    EXPECT_FALSE(std::isfinite(max_magnitude(bf16.data(), 96)));
    std::vector<uint8_t> codes(48), scales(6);
    try {
      quantize_nvfp4(x.data(), 3, 32, 1, ScaleChoice::kMax, codes.data(), scales.data());
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(error.message().find("row 1, column 17"), std::string::npos);
    }
  }
}

TEST(Nvfp4, Bf16AndFloatInputsAgree) {
  std::vector<uint16_t> bf16;
  std::vector<float> wide;
  for (const Block& block : random_blocks(64, 0.01f))
    for (const float v : block) {
      bf16.push_back(float_to_bf16(v));
      wide.push_back(bf16_to_float(bf16.back()));
    }
  for (const auto choice : {ScaleChoice::kMax, ScaleChoice::kMse, ScaleChoice::kFourOverSix}) {
    std::vector<uint8_t> codes_a(512), codes_b(512), scales_a(64), scales_b(64);
    quantize_nvfp4(bf16.data(), 8, 128, 0.01f, choice, codes_a.data(), scales_a.data());
    quantize_nvfp4(wide.data(), 8, 128, 0.01f, choice, codes_b.data(), scales_b.data());
    EXPECT_EQ(codes_a, codes_b);
    EXPECT_EQ(scales_a, scales_b);
  }
}

// Sum of squared errors of a quantised matrix.
double squared_error(const std::vector<float>& x, int64_t rows, int64_t cols, ScaleChoice choice,
                     std::vector<uint8_t>* scales_out = nullptr) {
  const float global_scale = nvfp4_global_scale(max_magnitude(x.data(), rows * cols), choice);
  std::vector<uint8_t> codes(x.size() / 2), scales(x.size() / 16);
  std::vector<float> back(x.size());
  quantize_nvfp4(x.data(), rows, cols, global_scale, choice, codes.data(), scales.data());
  dequantize_nvfp4(codes.data(), scales.data(), rows, cols, global_scale, back.data());
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i)
    sum += (static_cast<double>(x[i]) - back[i]) * (static_cast<double>(x[i]) - back[i]);
  if (scales_out != nullptr) *scales_out = scales;
  return sum;
}

std::vector<float> gaussian(int64_t count) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = normal(random);
  return x;
}

// Known from simulation: -27 % of the mean squared error for the sweep, -16 % for four over six.
TEST(Nvfp4, ScaleSearchLowersTheError) {
  const std::vector<float> x = gaussian(64 * 1024);
  std::vector<uint8_t> scales;
  const double plain = squared_error(x, 64, 1024, ScaleChoice::kMax);
  EXPECT_NEAR(squared_error(x, 64, 1024, ScaleChoice::kMse) / plain, 1 - 0.27, 0.02);
  EXPECT_NEAR(squared_error(x, 64, 1024, ScaleChoice::kFourOverSix, &scales) / plain, 1 - 0.16,
              0.02);
  // B34: the global scale leaves room for 1.5, so that no scale exceeds 384.
  EXPECT_LE(*std::max_element(scales.begin(), scales.end()), 0x7C);
  EXPECT_EQ(nvfp4_global_scale(3.0f, ScaleChoice::kFourOverSix), 3.0f / (6 * 256));
}

// The sweep against an exhaustive search in double with the scalar codecs, over rows of equal
// blocks, and over rows whose blocks differ by many powers of two, as all share the range of scales
// that are tried.
TEST(Nvfp4, SweepFindsTheLeastErrorOfAll126Scales) {
  std::vector<float> x = gaussian(256 * 16);
  for (const Block& block : random_blocks(1024, 1.0f))
    x.insert(x.end(), block.begin(), block.end());
  const int64_t rows = static_cast<int64_t>(x.size()) / 256;
  const float global_scale = nvfp4_global_scale(
      max_magnitude(x.data(), static_cast<int64_t>(x.size())), ScaleChoice::kMse);
  std::vector<uint8_t> codes(x.size() / 2), scales(x.size() / 16);
  quantize_nvfp4(x.data(), rows, 256, global_scale, ScaleChoice::kMse, codes.data(), scales.data());
  for (size_t b = 0; b < scales.size(); ++b) {
    double size = 0;
    for (size_t i = b * 16; i < b * 16 + 16; ++i) size += static_cast<double>(x[i]) * x[i];
    const auto error_at = [&](int scale) {
      const double step =
          static_cast<double>(e4m3_to_float(static_cast<uint8_t>(scale))) * global_scale;
      double sum = 0;
      for (size_t i = b * 16; i < b * 16 + 16; ++i) {
        const double q = e2m1_to_float(float_to_e2m1(static_cast<float>(x[i] / step))) * step;
        sum += (x[i] - q) * (x[i] - q);
      }
      return sum;
    };
    double least = error_at(1);
    for (int scale = 2; scale <= 126; ++scale) least = std::min(least, error_at(scale));
    // 16 squares of fp32 differences, each within a few ulp of its exact value; and a difference of
    // two nearly equal numbers is known to an ulp of them.
    EXPECT_LE(error_at(scales[b]), least * (1 + 64 * 0x1p-23) + size * 0x1p-44) << b;
  }
}

// Weights of an all but dead expert: the squares must not underflow.
TEST(Nvfp4, SearchWorksForTinyMatrices) {
  std::vector<float> x = gaussian(4096);
  const double usual = squared_error(x, 16, 256, ScaleChoice::kMse);
  for (float& v : x) v *= 0x1p-70f;
  EXPECT_EQ(squared_error(x, 16, 256, ScaleChoice::kMse), usual * 0x1p-140);
}

TEST(Nvfp4, ZeroBlocksAndTinyGlobalScales) {
  EXPECT_EQ(nvfp4_global_scale(0, ScaleChoice::kMax), 1.0f);
  EXPECT_EQ(nvfp4_global_scale(1e-37f, ScaleChoice::kMax), 0x1p-126f);
  for (const auto choice : {ScaleChoice::kMax, ScaleChoice::kMse, ScaleChoice::kFourOverSix}) {
    EXPECT_EQ(quantize(Block{}, 1e-5f, choice).scale, 0x38);
    EXPECT_EQ(quantize(Block{}, 1e-5f, choice).hex, "0000000000000000");
  }
  // The divisor underflows: codes are zero, not NaN's.
  Block x{};
  x[0] = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(quantize(x, 1e-43f).hex, "0000000000000000");
}

TEST(Nvfp4, ChoicesHaveNames) {
  for (const auto choice : {ScaleChoice::kMax, ScaleChoice::kMse, ScaleChoice::kFourOverSix})
    EXPECT_EQ(parse_scale_choice(name_of(choice)), choice);
  EXPECT_THROW(parse_scale_choice("best"), Error);
}

// Every instruction set gives the bytes of the plain twin.
TEST(QuantKernels, AllInstructionSetsGiveTheSameBytes) {
  std::string names;
  for (const auto* kernels : quant_kernels()) names += std::string(kernels->name) + " ";
  RecordProperty("instruction_sets", names);
  const QuantKernels& plain = *quant_kernels().front();
  ASSERT_STREQ(plain.name, "scalar");
  for (const int count : {1, 7, 16, 33, 224}) {
    std::vector<float> x;
    std::vector<uint16_t> bf16;
    for (const Block& block : random_blocks(count, 3e-5f))
      for (const float v : block) {
        x.push_back(v);
        bf16.push_back(float_to_bf16(v));
      }
    const size_t blocks = static_cast<size_t>(count);
    const auto all = [&](const QuantKernels& k, float global_scale) {
      std::vector<uint8_t> bytes(blocks * 25);
      std::vector<float> numbers(blocks * (16 * 2 + 2) + 2);
      float* scale = numbers.data() + blocks * 33;
      k.max_scales(x.data(), count, global_scale, 1.0f, bytes.data());
      k.encode(x.data(), bytes.data(), count, global_scale, bytes.data() + blocks);
      k.encode_e4m3(x.data(), count * 16, global_scale, bytes.data() + blocks * 9);
      k.transpose_magnitudes(x.data(), count, global_scale, numbers.data());
      for (size_t g = 0; g < blocks; ++g) scale[g] = kE4m3Values[bytes[g]];
      k.squared_errors(numbers.data(), scale, count, numbers.data() + blocks * 16);
      k.widen_bf16(bf16.data(), count * 16, numbers.data() + blocks * 17);
      numbers[blocks * 34] = std::bit_cast<float>(k.max_bits_f32(x.data(), count * 16));
      numbers[blocks * 34 + 1] = std::bit_cast<float>(k.max_bits_bf16(bf16.data(), count * 16));
      return std::make_pair(bytes, numbers);
    };
    for (const auto* kernels : quant_kernels())
      for (const float global_scale : {1.0f, 3e-5f, 1e-40f}) {
        const auto [bytes, numbers] = all(*kernels, global_scale);
        const auto [plain_bytes, plain_numbers] = all(plain, global_scale);
        EXPECT_EQ(bytes, plain_bytes) << kernels->name;
        EXPECT_EQ(std::memcmp(numbers.data(), plain_numbers.data(), numbers.size() * 4), 0)
            << kernels->name;
      }
  }
}

}  // namespace
}  // namespace halfbyte

// Crafted modules: each rule of formats/stored_matrix.h, and each way to break it.
#include "formats/stored_matrix.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "formats/decode.h"
#include "support/craft.h"
#include "support/temp_directory.h"

namespace halfbyte {
namespace {

std::string f32(std::vector<float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::string filled(size_t count, int byte) { return std::string(count, static_cast<char>(byte)); }

// A NVFP4 module "m" of 4 x 32 in ModelOpt's layout. Global scale first: it is the wider element.
std::vector<CraftedTensor> nvfp4() {
  return {
      {"m.weight_scale_2", DType::kF32, {}, f32({0.5f})},
      {"m.weight", DType::kU8, {4, 16}, filled(64, 0x2A)},  // element 0: code A (-1), element 1: 1
      {"m.weight_scale", DType::kF8E4M3, {4, 2}, filled(8, 0x40)}};
}
std::vector<CraftedTensor> mxfp4() {
  return {{"m.weight_packed", DType::kU8, {4, 32}, filled(128, 0x2A)},
          {"m.weight_scale", DType::kU8, {4, 2}, filled(8, 128)}};
}
std::vector<CraftedTensor> compressed_nvfp4() {
  return {{"m.weight_global_scale", DType::kF32, {1}, f32({2.0f})},
          {"m.weight_packed", DType::kU8, {4, 16}, filled(64, 0x2A)},
          {"m.weight_scale", DType::kF8E4M3, {4, 2}, filled(8, 0x40)}};
}
// 130 x 200: edge tiles in both directions.
std::vector<CraftedTensor> fp8() {
  return {{"m.weight_scale", DType::kF32, {2, 1, 2, 1}, f32({1, 2, 3, 4})},
          {"m.weight", DType::kF8E4M3, {130, 200}, filled(130 * 200, 0x38)}};
}
std::vector<CraftedTensor> bf16() { return {{"m.weight", DType::kBf16, {2, 3}, filled(12, 0)}}; }

CraftedTensor& part(std::vector<CraftedTensor>& tensors, const std::string& name) {
  for (auto& tensor : tensors)
    if (tensor.name == "m." + name) return tensor;
  throw std::out_of_range(name);
}

class StoredMatrix : public testing::Test {
 protected:
  const Checkpoint& open(const std::vector<CraftedTensor>& tensors) {
    checkpoint_.reset();
    write_safetensors(directory_ / "model.safetensors", tensors);
    checkpoint_ = std::make_unique<Checkpoint>(directory_.path());
    return *checkpoint_;
  }
  MatrixView get(const std::vector<CraftedTensor>& tensors) {
    return get_matrix(open(tensors), "m");
  }
  // What reading it says, without "DIR/model.safetensors: tensor ".
  std::string message(const std::vector<CraftedTensor>& tensors) {
    std::string text = message_of([&] { get(tensors); });
    const std::string prefix = (directory_ / "model.safetensors").string() + ": tensor ";
    return text.rfind(prefix, 0) == 0 ? text.substr(prefix.size()) : text;
  }

  TempDirectory directory_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

double element(const MatrixView& view, int64_t row, int64_t col) {
  std::vector<double> values(static_cast<size_t>(view.cols));
  decode_row(view, row, values.data());
  return values[static_cast<size_t>(col)];
}

TEST_F(StoredMatrix, ReadsWhatIsStored) {
  const MatrixView modelopt = get(nvfp4());
  EXPECT_EQ(modelopt.format, WeightFormat::kNvfp4);
  EXPECT_EQ(modelopt.rows, 4);
  EXPECT_EQ(modelopt.cols, 32);
  EXPECT_EQ(modelopt.global_scale, 0.5f);
  EXPECT_EQ(modelopt.name, "m.weight");
  EXPECT_EQ(element(modelopt, 3, 0), -1.0 * 2.0 * 0.5);
  EXPECT_EQ(element(modelopt, 3, 1), 1.0 * 2.0 * 0.5);

  const MatrixView compressed = get(compressed_nvfp4());
  EXPECT_EQ(compressed.format, WeightFormat::kNvfp4);
  EXPECT_EQ(compressed.global_scale, 0.5f);  // the reciprocal of what is stored
  EXPECT_EQ(element(compressed, 3, 0), -1.0);

  const MatrixView mx = get(mxfp4());
  EXPECT_EQ(mx.format, WeightFormat::kMxfp4);
  EXPECT_EQ(mx.cols, 64);
  EXPECT_EQ(element(mx, 2, 62), -2.0);

  const MatrixView blocks = get(fp8());
  EXPECT_EQ(blocks.format, WeightFormat::kFp8Block);
  EXPECT_EQ(element(blocks, 129, 199), 4.0);
  EXPECT_EQ(element(blocks, 127, 128), 2.0);
  auto flat = fp8();
  part(flat, "weight_scale").shape = {2, 2};
  EXPECT_EQ(element(get(flat), 129, 0), 3.0);

  EXPECT_EQ(get(bf16()).format, WeightFormat::kBf16);
  EXPECT_EQ(get({{"m.weight", DType::kF32, {2, 3}, ""}}).format, WeightFormat::kF32);
  EXPECT_FALSE(find_matrix(open(bf16()), "other").has_value());
}

TEST_F(StoredMatrix, TheGroupSaysWhatScaleBytesMeanNotTheirDtype) {
  auto tensors = nvfp4();
  part(tensors, "weight_scale").dtype = DType::kU8;
  EXPECT_EQ(get(tensors).format, WeightFormat::kNvfp4);
  EXPECT_EQ(element(get(tensors), 0, 1), 1.0);  // 0x40 is 2 as E4M3, 2^-63 as E8M0
  part(tensors, "weight_scale").dtype = DType::kF8E8M0;
  EXPECT_EQ(message(tensors), "m.weight_scale: is F8_E8M0, but one scale per 16 is F8_E4M3 or U8");

  tensors = mxfp4();
  part(tensors, "weight_scale").dtype = DType::kF8E8M0;
  EXPECT_EQ(get(tensors).format, WeightFormat::kMxfp4);
  part(tensors, "weight_scale").dtype = DType::kF8E4M3;
  EXPECT_EQ(message(tensors), "m.weight_scale: is F8_E4M3, but one scale per 32 is F8_E8M0 or U8");
}

TEST_F(StoredMatrix, AcceptsSpuriousDimensionsAndIgnoresActivationScales) {
  auto tensors = nvfp4();
  part(tensors, "weight_scale").shape = {1, 4, 2};
  part(tensors, "weight_scale_2").shape = {1};
  tensors.insert(
      tensors.begin(),
      {"m.input_scale", DType::kF32, {}, f32({std::numeric_limits<float>::quiet_NaN()})});
  EXPECT_EQ(get(tensors).global_scale, 0.5f);
}

TEST_F(StoredMatrix, NamesAMissingPart) {
  for (const char* name : {"weight", "weight_scale", "weight_scale_2"}) {
    auto tensors = nvfp4();
    std::erase_if(tensors,
                  [&](const auto& tensor) { return tensor.name == std::string("m.") + name; });
    EXPECT_NE(message(tensors).find("m."), std::string::npos) << name;
  }
  auto tensors = fp8();
  tensors.erase(tensors.begin());
  EXPECT_EQ(message(tensors), "m.weight: is F8_E4M3, but has no weight_scale");
  tensors = nvfp4();
  tensors.erase(tensors.begin());
  EXPECT_EQ(message(tensors),
            "m.weight: is NVFP4, but has neither weight_scale_2 nor weight_global_scale");
  tensors = nvfp4();
  tensors.erase(tensors.begin() + 1);
  EXPECT_EQ(message(tensors), "m.weight_scale: is a scale without a weight");
  EXPECT_NE(message_of([&] {
              get_matrix(open(bf16()), "other");
            }).find("matrix other is missing: neither other.weight nor other.weight_packed"),
            std::string::npos);
}

TEST_F(StoredMatrix, RefusesAMatrixStoredTwice) {
  auto tensors = mxfp4();
  tensors.insert(tensors.begin(), {"m.weight", DType::kBf16, {4, 64}, ""});
  EXPECT_EQ(
      message(tensors),
      "m.weight: does not go with m.weight_packed (U8): the matrix is stored twice, or in two "
      "formats");
  tensors = bf16();
  tensors.push_back({"m.weight_scale", DType::kF8E4M3, {2, 1}, ""});
  EXPECT_NE(message(tensors).find("m.weight_scale: does not go with m.weight (BF16)"),
            std::string::npos);
  tensors = mxfp4();
  tensors.insert(tensors.begin(), {"m.weight_scale_2", DType::kF32, {}, f32({1})});
  EXPECT_NE(message(tensors).find("m.weight_scale_2: does not go with"), std::string::npos);
  tensors = compressed_nvfp4();
  tensors.insert(tensors.begin(), {"m.weight_scale_2", DType::kF32, {}, f32({1})});
  EXPECT_NE(message(tensors).find("m.weight_global_scale: does not go with"), std::string::npos);
}

TEST_F(StoredMatrix, ChecksTheGlobalScale) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {0.0f, -0.5f, inf, -inf, nan, 1e-40f, 2688.0f, 1e5f}) {
    auto tensors = nvfp4();
    part(tensors, "weight_scale_2").bytes = f32({bad});
    EXPECT_EQ(message(tensors).rfind("m.weight_scale_2: is ", 0), 0u) << bad;
  }
  for (const float bad : {0.0f, -2.0f, inf, nan, 1e-5f}) {
    auto tensors = compressed_nvfp4();
    part(tensors, "weight_global_scale").bytes = f32({bad});
    EXPECT_EQ(message(tensors).rfind("m.weight_global_scale: is ", 0), 0u) << bad;
  }
  auto tensors = nvfp4();
  part(tensors, "weight_scale_2").bytes = f32({2688.0f});
  EXPECT_EQ(
      message(tensors),
      "m.weight_scale_2: is 2688, so the matrix would be scaled by 2688: expected below 16; is "
      "it the reciprocal instead of the multiplier?");
  for (const float good : {1e-7f, 0x1p-126f, 1.0f}) {
    part(tensors, "weight_scale_2").bytes = f32({good});
    EXPECT_EQ(message(tensors), "") << good;
  }
  part(tensors, "weight_scale_2") = {"m.weight_scale_2", DType::kF32, {2}, f32({1, 1})};
  EXPECT_EQ(message(tensors), "m.weight_scale_2: is F32 [2], expected one F32");
  part(tensors, "weight_scale_2") = {"m.weight_scale_2", DType::kBf16, {}, ""};
  EXPECT_EQ(message(tensors), "m.weight_scale_2: is BF16 [], expected one F32");
}

TEST_F(StoredMatrix, FindsBadScales) {
  for (const int byte : {0x00, 0x01, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF}) {
    auto tensors = nvfp4();
    part(tensors, "weight_scale").bytes[5] = static_cast<char>(byte);
    const bool bad = byte == 0x7F || byte >= 0x80;
    EXPECT_EQ(message(tensors),
              bad ? fmt::format("m.weight_scale: scale [2, 1] is byte 0x{:02X}, expected a finite "
                                "number that is not negative (1 of 8 scales are wrong)",
                                byte)
                  : "");
    tensors = mxfp4();
    part(tensors, "weight_scale").bytes[7] = static_cast<char>(byte);
    EXPECT_EQ(message(tensors).empty(), byte != 0xFF) << byte;
  }
  for (const float bad : {-1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    auto tensors = fp8();
    part(tensors, "weight_scale").bytes = f32({1, 2, bad, 4});
    EXPECT_EQ(message(tensors).rfind("m.weight_scale: scale [1, 0] is ", 0), 0u)
        << message(tensors);
  }
}

TEST_F(StoredMatrix, CountsEveryByteWhereverItLies) {
  // All 256 codes in every lane and round of the loop.
  std::string bytes;
  for (int i = 0; i < 256 * 97; ++i) bytes += static_cast<char>(i * 7);
  MatrixView view;
  view.format = WeightFormat::kNvfp4;
  view.rows = 97;
  view.cols = 256 * 16;
  view.values = view.scales = bytes.data();
  ScaleCounts counts = count_scales(view);
  EXPECT_EQ(counts.total, 256 * 97);
  EXPECT_EQ(counts.nan, 2 * 97);
  EXPECT_EQ(counts.negative, 127 * 97);
  EXPECT_EQ(counts.zero, 2 * 97);
  EXPECT_EQ(counts.subnormal, 14 * 97);
  // One lane that is hit in every round does not wrap.
  bytes.assign(64 * 1000 + 13, '\0');
  view.values = view.scales = bytes.data();
  view.rows = 1;
  view.cols = static_cast<int64_t>(bytes.size()) * 16;
  counts = count_scales(view);
  EXPECT_EQ(counts.zero, 64 * 1000 + 13);
  view.format = WeightFormat::kMxfp4;
  view.cols *= 2;
  EXPECT_EQ(count_scales(view).subnormal, 64 * 1000 + 13);
}

TEST_F(StoredMatrix, ChecksShapes) {
  auto tensors = nvfp4();
  part(tensors, "weight_scale") = {"m.weight_scale", DType::kF8E4M3, {4, 3}, ""};
  EXPECT_EQ(
      message(tensors),
      "m.weight_scale: has 3 scales a row for 32 columns, expected one per 16 (NVFP4: 2) or per "
      "32 (MXFP4: 1) and columns that this divides");
  // 24 columns: not a multiple of 16, whatever the scales are.
  for (const int64_t groups : {1, 2}) {
    tensors = nvfp4();
    part(tensors, "weight") = {"m.weight", DType::kU8, {4, 12}, ""};
    part(tensors, "weight_scale") = {"m.weight_scale", DType::kF8E4M3, {4, groups}, ""};
    EXPECT_NE(message(tensors).find("for 24 columns"), std::string::npos);
  }
  tensors = nvfp4();
  part(tensors, "weight_scale").shape = {2, 4};
  EXPECT_EQ(message(tensors), "m.weight_scale: has shape [2, 4], expected 4 rows as [4, 16]");
  tensors = nvfp4();
  part(tensors, "weight").shape = {64};
  EXPECT_EQ(message(tensors), "m.weight: has shape [64], expected a matrix");
  tensors = fp8();
  part(tensors, "weight_scale") = {"m.weight_scale", DType::kF32, {}, ""};
  EXPECT_EQ(message(tensors),
            "m.weight_scale: is F32 [], expected F32 [2, 1, 2, 1]: one per 128 x 128 tile of "
            "[130, 200]");
  EXPECT_NE(message({{"m.weight", DType::kBf16, {0, 4}, ""}}), "");

  const Checkpoint& checkpoint = open(nvfp4());
  EXPECT_NO_THROW(get_matrix(checkpoint, "m", 4, 32));
  EXPECT_NE(message_of([&] {
              get_matrix(checkpoint, "m", 32, 4);
            }).find("tensor m.weight: is a matrix of [4, 32], expected [32, 4]"),
            std::string::npos);
}

TEST_F(StoredMatrix, RefusesWhatItCannotRun) {
  EXPECT_NE(
      message({{"m.weight", DType::kF16, {2, 2}, ""}}).find("m.weight: is F16; halfbyte runs"),
      std::string::npos);
  auto tensors = nvfp4();
  tensors.insert(tensors.begin() + 1, {"m.pre_quant_scale", DType::kBf16, {32}, ""});
  EXPECT_EQ(message(tensors),
            "m.pre_quant_scale: belongs to a quantisation that halfbyte does not run");
}

TEST_F(StoredMatrix, RefusesMisalignedFloats) {
  // A header of odd length, as early writers made them.
  std::string header = R"({"m.weight":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}})";
  if (header.size() % 2 == 0) header += ' ';
  write_bytes(directory_ / "model.safetensors", safetensors_bytes(header, 4));
  const Checkpoint checkpoint(directory_.path());
  const std::string message = message_of([&] { get_matrix(checkpoint, "m"); });
  EXPECT_NE(
      message.find("model.safetensors: tensor m.weight: begins at byte " +
                   std::to_string(8 + header.size()) + " of the file, not at a multiple of 4"),
      std::string::npos)
      << message;
  EXPECT_NE(message.find("any current safetensors writer mends it"), std::string::npos) << message;
}

TEST(StoredMatrixGolden, ReadsEveryLayoutOfTheFixtures) {
  const auto format = [](const char* folder, const std::string& module) {
    const Checkpoint checkpoint(std::string(HALFBYTE_TEST_DATA "/") + folder);
    return get_matrix(checkpoint, module).format;
  };
  const std::string layer = "language_model.model.layers.1.";
  EXPECT_EQ(format("k3-tiny-nvfp4", layer + "block_sparse_moe.experts.3.w2"), WeightFormat::kNvfp4);
  EXPECT_EQ(format("k3-tiny-nvfp4", layer + "self_attn.b_proj"), WeightFormat::kFp8Block);
  EXPECT_EQ(format("k3-tiny-nvfp4", layer + "block_sparse_moe.gate"), WeightFormat::kBf16);
  EXPECT_EQ(format("k3-tiny-mxfp4", layer + "block_sparse_moe.experts.3.w2"), WeightFormat::kMxfp4);
  EXPECT_EQ(format("k3-tiny-bf16", layer + "block_sparse_moe.experts.3.w2"), WeightFormat::kBf16);
}

// The MXFP4 fixture and its BF16 twin are the same numbers: an independent check of every byte.
TEST(StoredMatrixGolden, Mxfp4ExpertsEqualTheirBf16Twins) {
  const Checkpoint packed(HALFBYTE_TEST_DATA "/k3-tiny-mxfp4");
  const Checkpoint plain(HALFBYTE_TEST_DATA "/k3-tiny-bf16");
  int64_t differing = 0, differing_if_swapped = 0;
  for (const char* projection : {"w1", "w2", "w3"}) {
    const std::string module =
        std::string("language_model.model.layers.2.block_sparse_moe.experts.5.") + projection;
    const MatrixView a = get_matrix(packed, module), b = get_matrix(plain, module);
    ASSERT_EQ(a.rows, b.rows);
    ASSERT_EQ(a.cols, b.cols);
    for (int64_t r = 0; r < a.rows; ++r)
      for (int64_t c = 0; c < a.cols; ++c) {
        differing += element(a, r, c) != element(b, r, c);
        differing_if_swapped += element(a, r, c ^ 1) != element(b, r, c);
      }
  }
  EXPECT_EQ(differing, 0);
  EXPECT_GT(differing_if_swapped, 1000);  // teeth: nibbles in the other order are seen
}

}  // namespace
}  // namespace halfbyte

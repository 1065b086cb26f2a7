#include "formats/quant_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/craft.h"
#include "support/temp_directory.h"

namespace halfbyte {
namespace {

QuantConfig hf(const std::string& quantization) {
  const JsonDocument document = JsonDocument::from_text(
      R"({"producer": {"name": "modelopt"}, "quantization": )" + quantization + "}",
      "hf_quant_config.json");
  return QuantConfig::from_hf_quant_config(document.root());
}
QuantConfig model(const std::string& quantization_config) {
  const JsonDocument document = JsonDocument::from_text(
      R"({"quantization_config": )" + quantization_config + "}", "config.json");
  return QuantConfig::from_model_config(document.root());
}
std::string claim(const QuantConfig& config, const std::string& module) {
  const QuantClaim result = config.claim_for(module);
  return std::string(result.format ? name_of(*result.format) : "none") +
         (result.is_explicit ? " explicit" : "");
}

constexpr const char* kMixed = R"({"quant_algo": "MIXED_PRECISION", "group_size": 16,
  "kv_cache_quant_algo": null,
  "quantized_layers": {
    "language_model.model.layers.1.block_sparse_moe.experts": {"quant_algo": "NVFP4", "group_size": 16},
    "model.layers.9.mlp.experts": {"quant_algo": "W4A16_NVFP4"},
    "model.layers.2.mlp": {"quant_algo": "NVFP4"},
    "language_model.model.layers.1.self_attn.q_proj": {"quant_algo": "FP8_PB_WO"}},
  "exclude_modules": ["*shared_experts*", "lm_head"]})";

TEST(QuantConfig, OneAlgorithmForAllButTheExcluded) {
  for (const char* algorithm : {"NVFP4", "W4A16_NVFP4"}) {
    const QuantConfig config =
        hf(fmt::format(R"({{"quant_algo": "{}", "group_size": 16, "kv_cache_quant_algo": "FP8",
                            "exclude_modules": ["lm_head", "model.layers.3.self_attn*"]}})",
                       algorithm));
    EXPECT_EQ(config.algorithm(), algorithm);
    EXPECT_EQ(config.kv_cache(), "FP8");
    EXPECT_EQ(claim(config, "model.layers.2.self_attn.q_proj"), "nvfp4");
    EXPECT_EQ(claim(config, "language_model.model.layers.3.self_attn.q_proj"), "none explicit");
    EXPECT_EQ(claim(config, "language_model.lm_head"), "none explicit");
    EXPECT_EQ(config.claim_for("lm_head").source,
              "hf_quant_config.json: quantization.exclude_modules: lm_head");
  }
}

TEST(QuantConfig, MixedFilesNameWhatIsQuantised) {
  const QuantConfig config = hf(kMixed);
  const std::string layer = "language_model.model.layers.";
  EXPECT_EQ(claim(config, layer + "1.block_sparse_moe.experts.3.w1"), "nvfp4 explicit");
  EXPECT_EQ(claim(config, layer + "1.block_sparse_moe.experts"), "nvfp4 explicit");
  EXPECT_EQ(claim(config, "model.layers.1.block_sparse_moe.experts.3.w1"), "nvfp4 explicit");
  EXPECT_EQ(claim(config, layer + "1.self_attn.q_proj"), "fp8_block explicit");
  EXPECT_EQ(claim(config, layer + "1.self_attn.k_proj"), "none");  // absent: unquantised
  EXPECT_EQ(claim(config, layer + "10.block_sparse_moe.experts.3.w1"), "none");
  EXPECT_EQ(claim(config, layer + "1.block_sparse_moe.shared_experts.up_proj"), "none explicit");
  // An alias that some engine uses for a bank.
  EXPECT_EQ(claim(config, layer + "9.block_sparse_moe.experts.0.w2"), "nvfp4 explicit");
  // A parent's entry does not speak of its router.
  EXPECT_EQ(claim(config, "model.layers.2.mlp.gate"), "nvfp4");
  EXPECT_EQ(claim(config, "model.layers.2.mlp.up_proj"), "nvfp4 explicit");
}

TEST(QuantConfig, TheNearestEntryCounts) {
  const QuantConfig config = hf(R"({"quant_algo": "MIXED_PRECISION", "quantized_layers": {
      "model.layers.1": {"quant_algo": "FP8_PB_WO"},
      "language_model.model.layers.1.mlp": {"quant_algo": "NVFP4"}}})");
  EXPECT_EQ(claim(config, "layers.1.mlp.up_proj"), "nvfp4 explicit");
  EXPECT_EQ(claim(config, "layers.1.self_attn.q_proj"), "fp8_block explicit");
}

TEST(QuantConfig, ReadsConfigJson) {
  const QuantConfig modelopt = model(R"({"quant_method": "modelopt", "quant_algo": "NVFP4",
      "config_groups": {"group_0": {"targets": ["Linear"],
          "weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
      "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": false},
      "ignore": ["lm_head"]})");
  EXPECT_EQ(claim(modelopt, "model.layers.0.mlp.up_proj"), "nvfp4");
  EXPECT_EQ(claim(modelopt, "lm_head"), "none explicit");
  EXPECT_EQ(modelopt.kv_cache(), "float 8 bits");
  // Without quant_algo the group says what it is.
  EXPECT_EQ(claim(model(R"({"quant_method": "modelopt", "config_groups": {"group_0": {
      "weights": {"num_bits": 4, "type": "float", "group_size": 16}}}})"),
                  "x"),
            "nvfp4");
  const JsonDocument plain = JsonDocument::from_text(R"({"model_type": "kimi_linear"})", "c");
  EXPECT_FALSE(QuantConfig::from_model_config(plain.root()).present());
  EXPECT_FALSE(hf(R"({"quant_algo": null})").present());
}

std::string compressed(const std::string& format, int group, const std::string& targets) {
  return fmt::format(R"({{"quant_method": "compressed-tensors", "format": "{}",
      "config_groups": {{"group_0": {{"targets": {}, "input_activations": null,
          "weights": {{"num_bits": 4, "type": "float", "strategy": "group", "group_size": {}}}}}}},
      "ignore": ["re:.*self_attn.*", "lm_head"]}})",
                     format, targets, group);
}

TEST(QuantConfig, ReadsCompressedTensors) {
  const QuantConfig mx = model(compressed("mxfp4-pack-quantized", 32, R"(["Linear"])"));
  EXPECT_EQ(claim(mx, "model.layers.1.block_sparse_moe.experts.0.w1"), "mxfp4");
  EXPECT_EQ(claim(mx, "model.layers.1.self_attn.q_proj"), "none explicit");
  const QuantConfig nv = model(compressed("nvfp4-pack-quantized", 16, R"(["re:.*experts.*"])"));
  EXPECT_EQ(claim(nv, "model.layers.1.block_sparse_moe.experts.0.w1"), "nvfp4");
  EXPECT_EQ(claim(nv, "model.layers.1.mlp.up_proj"), "none");
  EXPECT_NE(
      message_of([] {
        model(compressed("mxfp4-pack-quantized", 16, R"(["Linear"])"));
      }).find("config_groups.group_0: is nvfp4, but the file's format is mxfp4-pack-quantized"),
      std::string::npos);
  EXPECT_NE(message_of([] {
              model(compressed("int-quantized", 16, R"(["Linear"])"));
            }).find("format: int-quantized is not supported"),
            std::string::npos);
}

// An algorithm that we do not know must never mean "unquantised".
TEST(QuantConfig, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(message_of([] { hf(R"({"quant_algo": "FP8_BLOCK_SCALES"})"); }),
            "hf_quant_config.json: quantization.quant_algo: \"FP8_BLOCK_SCALES\" is not known; "
            "halfbyte runs NVFP4, W4A16_NVFP4, MXFP4, FP8_PB_WO");
  EXPECT_EQ(
      message_of([] { hf(R"({"quant_algo": "NVFP4_AWQ"})"); }),
      "hf_quant_config.json: quantization.quant_algo: NVFP4_AWQ is not supported; halfbyte runs "
      "NVFP4, W4A16_NVFP4, MXFP4, FP8_PB_WO");
  EXPECT_EQ(
      message_of([] {
        hf(R"({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "X"}}})");
      }).rfind("hf_quant_config.json: quantization.quantized_layers.a.quant_algo: \"X\" is not", 0),
      0u);
  EXPECT_EQ(message_of([] { hf(R"({"quant_algo": "NVFP4", "group_size": 32})"); }),
            "hf_quant_config.json: quantization.group_size: is 32, but nvfp4 has 16");
  EXPECT_EQ(
      message_of([] {
        hf(R"({"quant_algo": "MIXED_PRECISION",
                     "quantized_layers": {"a": {"quant_algo": "MXFP4", "group_size": 16}}})");
      }),
      "hf_quant_config.json: quantization.quantized_layers.a.group_size: is 16, but mxfp4 has 32");
  EXPECT_EQ(message_of([] { hf(R"({"quant_algo": "MIXED_PRECISION"})"); }),
            "hf_quant_config.json: quantization.quantized_layers: missing");
  EXPECT_EQ(message_of([] { model(R"({"quant_method": "gptq"})"); }),
            "config.json: quantization_config.quant_method: gptq is not supported; halfbyte runs "
            "modelopt, modelopt_mixed and compressed-tensors");
  EXPECT_EQ(message_of([] { model("{}"); }),
            "config.json: quantization_config.quant_method: missing");
  EXPECT_NE(
      message_of([] {
        model(R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "moe_quant_algo": "NVFP4"})");
      }).find("moe_quant_algo: is not supported"),
      std::string::npos);
  EXPECT_NE(message_of([] {
              hf(R"({"quant_algo": "NVFP4", "exclude_modules": ["re:["]})");
            }).find("exclude_modules[0]: \"re:[\" is not a regular expression"),
            std::string::npos);
}

TEST(QuantConfig, OneModuleCannotBeListedAndExcluded) {
  const QuantConfig config = hf(R"({"quant_algo": "MIXED_PRECISION",
      "quantized_layers": {"model.layers.1.x": {"quant_algo": "NVFP4"}}, "exclude_modules": ["*.x"]})");
  EXPECT_EQ(
      message_of([&] { config.claim_for("language_model.model.layers.1.x"); }),
      "hf_quant_config.json: quantization.quantized_layers.model.layers.1.x: is also excluded, "
      "by \"*.x\" of hf_quant_config.json: quantization.exclude_modules");
}

// Rule 6: tensors decide where the list is silent; where it speaks, they must agree.
TEST(QuantConfig, ClaimsAreComparedWithWhatIsStored) {
  const QuantConfig single = hf(R"({"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]})");
  const auto check = [](const QuantConfig& config, const std::string& module, WeightFormat stored) {
    return find_contradiction(config.claim_for(module), stored).value_or("");
  };
  EXPECT_EQ(check(single, "model.layers.1.mlp.gate", WeightFormat::kBf16), "");  // unlisted router
  EXPECT_EQ(check(single, "model.layers.1.mlp.up_proj", WeightFormat::kNvfp4), "");
  EXPECT_EQ(check(single, "model.layers.1.mlp.up_proj", WeightFormat::kMxfp4),
            "is stored as mxfp4, but hf_quant_config.json: quantization claims nvfp4");
  const QuantConfig mixed = hf(kMixed);
  EXPECT_EQ(
      check(mixed, "language_model.model.layers.1.self_attn.q_proj", WeightFormat::kBf16),
      "is stored as bf16, but hf_quant_config.json: quantization.quantized_layers.language_model."
      "model.layers.1.self_attn.q_proj claims fp8_block");
  EXPECT_NE(check(mixed, "model.layers.1.block_sparse_moe.experts.3.w1", WeightFormat::kBf16), "");
  EXPECT_EQ(check(mixed, "model.layers.2.mlp.gate", WeightFormat::kBf16), "");
}

class QuantConfigFiles : public testing::Test {
 protected:
  void write_hf(const std::string& quantization) {
    write_text(directory_ / "hf_quant_config.json", R"({"quantization": )" + quantization + "}");
  }
  void write_model(const std::string& quantization_config) {
    write_text(directory_ / "config.json",
               R"({"quantization_config": )" + quantization_config + "}");
  }
  QuantConfig read() { return QuantConfig::from_directory(directory_.path()); }
  TempDirectory directory_;
};

TEST_F(QuantConfigFiles, EitherFileAloneOrBothInAgreement) {
  EXPECT_FALSE(read().present());
  write_hf(R"({"quant_algo": "NVFP4", "group_size": 16})");
  EXPECT_EQ(claim(read(), "x"), "nvfp4");
  write_model(R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})");
  EXPECT_EQ(claim(read(), "x"), "nvfp4");
  std::filesystem::remove(directory_ / "hf_quant_config.json");
  EXPECT_EQ(claim(read(), "x"), "nvfp4");
}

TEST_F(QuantConfigFiles, BothInContradictionIsAnError) {
  write_hf(R"({"quant_algo": "NVFP4"})");
  write_model(R"({"quant_method": "modelopt", "quant_algo": "MXFP4"})");
  EXPECT_NE(message_of([&] { read(); })
                .find("claims nvfp4 (NVFP4), but " + (directory_ / "config.json").string() +
                      ": quantization_config claims mxfp4 (MXFP4)"),
            std::string::npos);
  const auto mixed = [](const char* name, const char* algorithm) {
    return fmt::format(R"({{"quant_method": "modelopt_mixed", "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {{"{}": {{"quant_algo": "{}"}}}}}})",
                       name, algorithm);
  };
  write_hf(mixed("a", "NVFP4"));
  write_model(mixed("a", "NVFP4"));
  EXPECT_NO_THROW(read());
  write_model(mixed("a", "FP8_PB_WO"));
  EXPECT_NE(message_of([&] { read(); }).find("quantized_layers.a: claims nvfp4, but"),
            std::string::npos);
  write_model(mixed("b", "NVFP4"));
  EXPECT_NE(message_of([&] { read(); }).find("claims nothing for this name"), std::string::npos);
  write_text(directory_ / "config.json",
             R"({"quantization_config": {"quant_algo": "NVFP4"},
                 "text_config": {"quantization_config": {"quant_algo": "NVFP4"}}})");
  EXPECT_NE(message_of([&] { read(); }).find("text_config.quantization_config: given twice"),
            std::string::npos);
}

TEST(QuantConfigGolden, ReadsTheFixtures) {
  const QuantConfig nv = QuantConfig::from_directory(HALFBYTE_TEST_DATA "/k3-tiny-nvfp4");
  EXPECT_EQ(nv.algorithm(), "MIXED_PRECISION");
  const std::string layer = "language_model.model.layers.3.";
  EXPECT_EQ(claim(nv, layer + "block_sparse_moe.experts.7.w2"), "nvfp4 explicit");
  EXPECT_EQ(claim(nv, layer + "self_attn.kv_b_proj"), "fp8_block explicit");
  EXPECT_EQ(claim(nv, layer + "block_sparse_moe.gate"), "none explicit");
  const QuantConfig mx = QuantConfig::from_directory(HALFBYTE_TEST_DATA "/k3-tiny-mxfp4");
  EXPECT_EQ(mx.algorithm(), "mxfp4-pack-quantized");
  EXPECT_EQ(claim(mx, layer + "block_sparse_moe.experts.7.w2"), "mxfp4");
  // Taken literally this config covers the router, which is BF16: no contradiction.
  EXPECT_EQ(claim(mx, layer + "block_sparse_moe.gate"), "mxfp4");
  EXPECT_FALSE(QuantConfig::from_directory(HALFBYTE_TEST_DATA "/kimi-linear-tiny").present());
}

}  // namespace
}  // namespace halfbyte

#include "convert/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "formats/quant_config.h"
#include "halfbyte/error.h"
#include "support/craft.h"
#include "support/temp_directory.h"

namespace halfbyte {
namespace {

using nlohmann::json;

const std::filesystem::path kData = HALFBYTE_TEST_DATA;

TEST(ConvertConfig, ReadsWhatTheConversionNeeds) {
  const ModelFacts k3 = read_model_facts(kData / "k3-tiny-bf16/config.json");
  EXPECT_EQ(k3.num_layers, 9);
  EXPECT_EQ(k3.num_experts, 8);
  EXPECT_EQ(k3.top_k, 3);
  EXPECT_EQ(k3.first_moe_layer, 1);
  EXPECT_GT(read_model_facts(kData / "kimi-linear-tiny/config.json").num_layers, 0);
  TempDirectory directory;
  write_text(directory / "config.json", R"({"text_config": {"num_experts": 4}})");
  EXPECT_NE(
      message_of([&] { read_model_facts(directory / "config.json"); }).find("num_hidden_layers"),
      std::string::npos);
}

TEST(ConvertConfig, ReplacesTheQuantisation) {
  ConfigChanges changes;
  changes.root = "language_model.";
  changes.first_moe_layer = 1;
  changes.nvfp4_banks = {"language_model.model.layers.1.block_sparse_moe.experts"};
  changes.fp8_modules = {"language_model.model.layers.0.self_attn.q_proj"};
  changes.producer_version = "7";
  const ConfigFiles files = rewrite_config(kData / "k3-tiny-mxfp4/config.json", changes);
  const json config = json::parse(files.config_json);
  const json before = json::parse(read_text(kData / "k3-tiny-mxfp4/config.json"));

  // Everything else is as it was, in its order.
  json text = before["text_config"];
  text.erase("quantization_config");
  EXPECT_EQ(config["text_config"], text);
  EXPECT_LT(files.config_json.find("\"architectures\""), files.config_json.find("\"text_config\""));

  const json& quantization = config["quantization_config"];
  EXPECT_EQ(quantization["quant_method"], "modelopt_mixed");
  EXPECT_EQ(quantization["quant_algo"], "MIXED_PRECISION");
  EXPECT_EQ(quantization["group_size"], 16);
  EXPECT_TRUE(quantization["kv_cache_quant_algo"].is_null());
  const json expected_layers = {
      {"language_model.model.layers.1.block_sparse_moe.experts",
       {{"quant_algo", "NVFP4"}, {"group_size", 16}}},
      {"model.layers.1.mlp.experts", {{"quant_algo", "NVFP4"}, {"group_size", 16}}},
      {"language_model.model.layers.0.self_attn.q_proj", {{"quant_algo", "FP8_PB_WO"}}}};
  EXPECT_EQ(quantization["quantized_layers"], expected_layers);

  // The same excluded modules as the fixture made in ModelOpt's layout.
  const json golden = json::parse(read_text(kData / "k3-tiny-nvfp4/config.json"));
  EXPECT_EQ(quantization["exclude_modules"], golden["quantization_config"]["exclude_modules"]);

  json wrapped = json::parse(files.hf_quant_config_json);
  EXPECT_EQ(wrapped["producer"], json({{"name", "modelopt"}, {"version", "7"}}));
  wrapped["quantization"]["quant_method"] = "modelopt_mixed";
  EXPECT_EQ(wrapped["quantization"], quantization);
}

TEST(ConvertConfig, TruncatesLayersAndExperts) {
  ConfigChanges changes;
  changes.num_layers = 5;
  changes.num_experts = 4;
  const json text = json::parse(
      rewrite_config(kData / "k3-tiny-bf16/config.json", changes).config_json)["text_config"];
  EXPECT_EQ(text["num_hidden_layers"], 5);
  EXPECT_EQ(text["num_experts"], 4);
  EXPECT_EQ(text["linear_attn_config"]["kda_layers"], json({1, 2, 3, 5}));
  EXPECT_EQ(text["linear_attn_config"]["full_attn_layers"], json({4}));
}

TEST(ConvertConfig, ATextConfigOfNullIsNone) {
  TempDirectory directory;
  json config = json::parse(read_text(kData / "kimi-linear-tiny/config.json"));
  config["text_config"] = nullptr;
  write_text(directory / "config.json", config.dump());
  ConfigChanges changes;
  changes.num_experts = 4;
  const json result = json::parse(rewrite_config(directory / "config.json", changes).config_json);
  EXPECT_EQ(result["num_experts"], 4);
  EXPECT_TRUE(result["text_config"].is_null());
}

// The reader of claims understands what is written, and finds no contradiction in it.
TEST(ConvertConfig, IsReadBackAsClaims) {
  ConfigChanges changes;
  changes.nvfp4_banks = {"model.layers.1.block_sparse_moe.experts"};
  TempDirectory directory;
  const ConfigFiles files = rewrite_config(kData / "kimi-linear-tiny/config.json", changes);
  write_text(directory / "config.json", files.config_json);
  write_text(directory / "hf_quant_config.json", files.hf_quant_config_json);
  const QuantConfig claims = QuantConfig::from_directory(directory.path());
  EXPECT_EQ(claims.claim_for("model.layers.1.block_sparse_moe.experts.3.w1").format,
            WeightFormat::kNvfp4);
  EXPECT_FALSE(claims.claim_for("model.layers.1.self_attn.q_proj").format.has_value());
  EXPECT_FALSE(claims.claim_for("model.layers.1.block_sparse_moe.gate").format.has_value());
}

}  // namespace
}  // namespace halfbyte

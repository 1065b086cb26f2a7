#include "model/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/craft.h"
#include "support/sparse_checkpoint.h"
#include "support/tiny_model.h"

namespace halfbyte {
namespace {

using Json5 = nlohmann::ordered_json;

ModelConfig parse(const Json5& config) {
  return parse_model_config(JsonDocument::from_text(config.dump(), "config.json").root());
}

std::string refused(const std::function<void(Json5& config, Json5& text)>& change) {
  Json5 config = golden_config("k3-tiny-bf16");
  change(config, config["text_config"]);
  return message_of([&] { parse(config); });
}

TEST(ModelConfig, ReadsKimiK3) {
  const ModelConfig c =
      parse_model_config(JsonDocument::from_text(k3_config_json(), "config.json").root());
  EXPECT_TRUE(c.nested);
  EXPECT_EQ(c.num_layers, 93);
  EXPECT_EQ(c.hidden, 7168);
  EXPECT_EQ(c.expert_width(), 3584);
  EXPECT_EQ(c.residual_block_size, 12);
  EXPECT_EQ(c.activation.kind, ActivationKind::kSitu);
  EXPECT_EQ(c.attention[91], AttentionKind::kMla);
  EXPECT_EQ(c.attention[92], AttentionKind::kMla);
  EXPECT_EQ(std::count(c.attention.begin(), c.attention.end(), AttentionKind::kKda), 69);
  EXPECT_FALSE(c.is_moe(0));
  EXPECT_TRUE(c.is_moe(1));
}

TEST(ModelConfig, ReadsKimiLinear) {
  const ModelConfig c = parse(golden_config("kimi-linear-tiny"));
  EXPECT_FALSE(c.nested);
  EXPECT_FALSE(c.residual_block_size);
  EXPECT_FALSE(c.mla.q_rank);
  EXPECT_FALSE(c.mla.output_gate);
  EXPECT_FALSE(c.kda.gate_lower_bound);
  EXPECT_FALSE(c.kda.full_rank_gate);
  EXPECT_FALSE(c.moe.latent);
  EXPECT_EQ(c.activation.kind, ActivationKind::kSwiglu);
  EXPECT_FLOAT_EQ(c.moe.scale, 2.446f);
  EXPECT_TRUE(c.unknown_keys.empty());
}

TEST(ModelConfig, KeysWithoutMeaningAreIgnoredAndUnknownOnesListed) {
  Json5 config = golden_config("k3-tiny-bf16");
  config["text_config"]["temperature"] = 1.0;
  config["text_config"]["head_dim"] = 74;
  config["text_config"]["brand_new_feature"] = true;
  EXPECT_EQ(parse(config).unknown_keys, std::vector<std::string>{"brand_new_feature"});
}

TEST(ModelConfig, EveryKeyThatMattersIsMissedByName) {
  for (const char* key : {"vocab_size",
                          "hidden_size",
                          "num_hidden_layers",
                          "intermediate_size",
                          "hidden_act",
                          "rms_norm_eps",
                          "num_attention_heads",
                          "kv_lora_rank",
                          "qk_nope_head_dim",
                          "qk_rope_head_dim",
                          "v_head_dim",
                          "mla_use_nope",
                          "linear_attn_config",
                          "num_experts",
                          "num_experts_per_token",
                          "num_shared_experts",
                          "moe_intermediate_size",
                          "first_k_dense_replace",
                          "moe_layer_freq",
                          "moe_router_activation_func",
                          "moe_renormalize",
                          "routed_scaling_factor"}) {
    const std::string message = refused([&](Json5&, Json5& text) { text.erase(key); });
    EXPECT_NE(message.find("config.json"), std::string::npos) << key << ": " << message;
    EXPECT_NE(message.find(key), std::string::npos) << message;
  }
  for (const char* key :
       {"num_heads", "head_dim", "short_conv_kernel_size", "kda_layers", "full_attn_layers"}) {
    const std::string message =
        refused([&](Json5&, Json5& text) { text["linear_attn_config"].erase(key); });
    EXPECT_NE(message.find(key), std::string::npos) << message;
  }
}

TEST(ModelConfig, SaysWhatCameAndWhatWasExpected) {
  const auto expect = [](const std::function<void(Json5&, Json5&)>& change,
                         const std::vector<std::string>& parts) {
    const std::string message = refused(change);
    EXPECT_FALSE(message.empty());
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  };
  expect([](Json5& c, Json5&) { c["model_type"] = "llama"; }, {"model_type", "llama", "kimi_k3"});
  expect([](Json5&, Json5& t) { t["hidden_act"] = "gelu"; }, {"hidden_act", "gelu", "situ"});
  expect([](Json5&, Json5& t) { t["num_experts"] = 0; }, {"num_experts", "0"});
  expect([](Json5&, Json5& t) { t["num_experts"] = -8; }, {"num_experts", "-8"});
  expect([](Json5&, Json5& t) { t["num_experts_per_token"] = 9; },
         {"num_experts_per_token", "9", "num_experts = 8"});
  expect([](Json5&, Json5& t) { t["moe_router_activation_func"] = "softmax"; },
         {"softmax", "sigmoid"});
  expect([](Json5&, Json5& t) { t["topk_method"] = "greedy"; }, {"greedy", "noaux_tc"});
  expect([](Json5&, Json5& t) { t["mla_use_nope"] = false; }, {"mla_use_nope"});
  expect([](Json5&, Json5& t) { t["tie_word_embeddings"] = true; }, {"tie_word_embeddings"});
  expect([](Json5&, Json5& t) { t["num_nextn_predict_layers"] = 1; }, {"num_nextn_predict_layers"});
  expect([](Json5&, Json5& t) { t["num_key_value_heads"] = 2; }, {"num_key_value_heads", "4"});
  expect([](Json5&, Json5& t) { t["activation_situ_beta"] = -4; }, {"activation_situ_beta", "-4"});
  expect([](Json5&, Json5& t) { t["rms_norm_eps"] = "small"; }, {"rms_norm_eps"});
  expect([](Json5&, Json5& t) { t["hidden_size"] = 64.5; }, {"hidden_size"});
  expect([](Json5&, Json5& t) { t["routed_expert_hidden_size"] = nullptr; },
         {"latent_moe_use_norm"});
  expect([](Json5&, Json5& t) { t["linear_attn_config"]["gate_lower_bound"] = 5; },
         {"gate_lower_bound", "5"});
  expect([](Json5&, Json5& t) { t["linear_attn_config"]["new_gate"] = 5; }, {"new_gate"});
  // Groups.
  expect([](Json5&, Json5& t) { t["num_expert_group"] = 3; }, {"num_expert_group", "3"});
  expect([](Json5&, Json5& t) { t["num_expert_group"] = 4; }, {"topk_group", "1", "2 experts"});
  expect([](Json5&, Json5& t) { t["topk_group"] = 2; }, {"topk_group", "2"});
  // Layers: 1 to 9, each once.
  expect([](Json5&, Json5& t) { t["linear_attn_config"]["kda_layers"].push_back(4); },
         {"layer 4", "twice"});
  expect([](Json5&, Json5& t) { t["linear_attn_config"]["kda_layers"].push_back(10); }, {"10"});
  expect([](Json5&, Json5& t) { t["linear_attn_config"]["full_attn_layers"].erase(0); },
         {"layer 4", "neither"});
}

// What reading says after `spoil` has changed the language model's object; "" if it reads.
std::string message_after(const std::function<void(Json5& text)>& spoil) {
  return refused([&](Json5&, Json5& text) { spoil(text); });
}

std::string message_with(const std::string& key, const Json5& value) {
  return message_after([&](Json5& text) { text[key] = value; });
}

TEST(ModelConfig, NumbersThatNoModelHasAreRefused) {
  EXPECT_EQ(message_with("vocab_size", 163840), "");
  constexpr int64_t kHuge = (int64_t{1} << 31) - 1;
  // 17 GB for the kinds of so many layers.
  EXPECT_EQ(message_with("num_hidden_layers", kHuge),
            "config.json: text_config.num_hidden_layers: is 2147483647, expected a value from 1 to "
            "4096");
  // Each of these is added to, or multiplied with, another number.
  for (const char* key : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
                          "attn_res_block_size", "num_shared_experts", "hidden_size"})
    EXPECT_NE(message_with(key, kHuge).find(std::string(key) + ": is 2147483647, expected a value"),
              std::string::npos)
        << key;
}

TEST(ModelConfig, NumbersThatAreNoFp32AreRefused) {
  for (const char* key : {"rms_norm_eps", "routed_scaling_factor", "activation_situ_beta",
                          "activation_situ_linear_beta"})
    for (const double value : {1e308, 1e-60, -1.0})
      EXPECT_NE(message_with(key, value).find("expected an fp32 number above 0"), std::string::npos)
          << key << " " << value;
  EXPECT_NE(message_after([](auto& text) {
              text["linear_attn_config"]["gate_lower_bound"] = -1e308;
            }).find("is -1e+308, expected an fp32 number below 0"),
            std::string::npos);
}

TEST(ModelConfig, WrongTypesAreRefusedAlsoWhereTheValueWouldChangeNothing) {
  EXPECT_EQ(message_with("use_grouped_topk", 1),
            "config.json: text_config.use_grouped_topk: is an integer, expected true or false");
  EXPECT_EQ(message_with("eos_token_id", Json5{3, 4}), "");
  EXPECT_NE(message_with("eos_token_id", Json5{3, -4}).find("eos_token_id"), std::string::npos);
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    for (const Json5& value : {Json5("2"), Json5(2.5), Json5(true), Json5::object()})
      EXPECT_NE(message_with(key, value).find(std::string(key) + ": is "), std::string::npos)
          << key << " " << value;
}

TEST(ModelConfig, AbsentBetasOfSitu) {
  Json5 config = golden_config("k3-tiny-bf16");
  config["text_config"]["activation_situ_beta"] = nullptr;
  config["text_config"]["activation_situ_linear_beta"] = nullptr;
  const ModelConfig c = parse(config);
  EXPECT_EQ(c.activation.beta, 1.0f);
  EXPECT_FALSE(c.activation.linear_beta);
}

}  // namespace
}  // namespace halfbyte

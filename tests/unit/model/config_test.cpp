// A good configuration is spoiled at one key: reading must name the key, what came and what was
// expected.
#include "model/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "support/craft.h"

namespace halfbyte {
namespace {

// What reading says after `spoil` has changed the language model's object; "" if it reads.
template <class F>
std::string message_after(F&& spoil) {
  auto config =
      nlohmann::ordered_json::parse(read_text(HALFBYTE_TEST_DATA "/k3-tiny-bf16/config.json"));
  spoil(config["text_config"]);
  const std::string text = config.dump();
  return message_of(
      [&] { parse_model_config(JsonDocument::from_text(text, "config.json").root()); });
}

std::string message_with(const std::string& key, const nlohmann::ordered_json& value) {
  return message_after([&](auto& text) { text[key] = value; });
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

TEST(ModelConfig, MissingKeysAreNamed) {
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size",
                          "hidden_act", "rms_norm_eps", "kv_lora_rank", "mla_use_nope",
                          "linear_attn_config", "num_experts", "num_experts_per_token",
                          "moe_router_activation_func", "moe_renormalize", "routed_scaling_factor"})
    EXPECT_EQ(message_after([&](auto& text) { text.erase(key); }),
              std::string("config.json: text_config.") + key + ": missing");
}

}  // namespace
}  // namespace halfbyte

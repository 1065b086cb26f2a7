#include "convert/config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "formats/nvfp4.h"
#include "halfbyte/error.h"

namespace halfbyte {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Modules that ModelOpt leaves alone, beside the language model's prefix.
constexpr const char* kExcluded[] = {
    "*block_sparse_moe.gate*",
    "*routed_expert_up_proj*",
    "*routed_expert_down_proj*",
    "*routed_expert_norm*",
    "*shared_experts*",
    "*self_attn.q_conv1d*",
    "*self_attn.k_conv1d*",
    "*self_attn.v_conv1d*",
    "*self_attn.o_norm*",
    "*q_a_layernorm*",
    "*kv_a_layernorm*",
    "*_res_proj*",
    "*_res_norm*",
    "*layernorm*",
};

// Engines that rename modules look a bank up as "model.layers.N.mlp.experts".
std::string alias_of(const std::string& bank) {
  const size_t begin = bank.find("model.layers.");
  const std::string block = ".block_sparse_moe.experts";
  if (begin == std::string::npos || !bank.ends_with(block)) return bank;
  const size_t root =
      bank.starts_with("language_model.") ? std::string("language_model.").size() : begin;
  return bank.substr(root, bank.size() - root - block.size()) + ".mlp.experts";
}

OrderedJson quantization_of(const ConfigChanges& changes) {
  OrderedJson layers = OrderedJson::object();
  // NOTE: the whole members, not operator[]: an ordered object looks a key up one by one.
  auto& members = layers.get_ref<OrderedJson::object_t&>();
  const OrderedJson nvfp4 = {{"quant_algo", "NVFP4"}, {"group_size", kNvfp4Group}};
  for (const auto& bank : changes.nvfp4_banks) {
    members.push_back({bank, nvfp4});
    if (const std::string alias = alias_of(bank); alias != bank) members.push_back({alias, nvfp4});
  }
  for (const auto& module : changes.fp8_modules)
    members.push_back({module, OrderedJson{{"quant_algo", "FP8_PB_WO"}}});

  OrderedJson excluded = OrderedJson::array();
  if (changes.fp8_modules.empty()) excluded.push_back("*self_attn*");
  for (const char* pattern : kExcluded) excluded.push_back(pattern);
  for (int layer = 0; layer < changes.first_moe_layer; ++layer)
    excluded.push_back(fmt::format("{}model.layers.{}.mlp.*", changes.root, layer));
  excluded.push_back(changes.root + "lm_head");
  excluded.push_back("vision_tower*");
  excluded.push_back("mm_projector*");
  return {{"quant_algo", "MIXED_PRECISION"},
          {"group_size", kNvfp4Group},
          {"kv_cache_quant_algo", nullptr},
          {"quantized_layers", std::move(layers)},
          {"exclude_modules", std::move(excluded)}};
}

// 1-based layer numbers, as Kimi's configuration counts.
void keep_up_to(OrderedJson& attention, const char* key, int num_layers) {
  if (!attention.contains(key) || !attention[key].is_array()) return;
  OrderedJson kept = OrderedJson::array();
  for (const auto& layer : attention[key])
    if (layer.is_number_integer() && layer.get<int64_t>() <= num_layers) kept.push_back(layer);
  attention[key] = std::move(kept);
}

}  // namespace

ModelFacts read_model_facts(const std::filesystem::path& config_json) {
  const JsonDocument document = JsonDocument::from_file(config_json);
  const Json root = document.root();
  const Json text = root.find_value("text_config").value_or(root);
  const auto integer = [&](const char* key, int absent) {
    const auto value = text.find_value(key);
    if (!value) return absent;
    const int64_t number = value->integer();
    if (number < 0 || number > 1'000'000) value->fail("is out of range");
    return static_cast<int>(number);
  };
  ModelFacts facts;
  text.get("num_hidden_layers");
  facts.num_layers = integer("num_hidden_layers", 0);
  facts.num_experts = integer("num_experts", 0);
  facts.top_k = integer("num_experts_per_token", 0);
  facts.expert_groups = integer("num_expert_group", 1);
  facts.first_moe_layer = integer("first_k_dense_replace", 0);
  return facts;
}

ConfigFiles rewrite_config(const std::filesystem::path& config_json, const ConfigChanges& changes) {
  OrderedJson root;
  try {
    root = OrderedJson::parse(read_text(config_json));
  } catch (const OrderedJson::exception& error) {
    throw Error(ErrorKind::kInput, config_json.string(), error.what());
  }
  OrderedJson& text =
      root.value("text_config", OrderedJson()).is_null() ? root : root["text_config"];
  if (changes.num_experts) text["num_experts"] = *changes.num_experts;
  if (changes.num_layers) {
    text["num_hidden_layers"] = *changes.num_layers;
    if (text.contains("linear_attn_config")) {
      keep_up_to(text["linear_attn_config"], "kda_layers", *changes.num_layers);
      keep_up_to(text["linear_attn_config"], "full_attn_layers", *changes.num_layers);
    }
  }
  text.erase("quantization_config");
  root.erase("quantization_config");
  const OrderedJson quantization = quantization_of(changes);
  OrderedJson claimed = {{"quant_method", "modelopt_mixed"}};
  for (const auto& [key, value] : quantization.items()) claimed[key] = value;
  root["quantization_config"] = std::move(claimed);
  // NOTE: the producer's name is what loaders recognise the layout by, so it is not ours.
  const OrderedJson wrapped = {
      {"producer", {{"name", "modelopt"}, {"version", changes.producer_version}}},
      {"quantization", quantization}};
  return {root.dump(2) + "\n", wrapped.dump(2) + "\n"};
}

}  // namespace halfbyte

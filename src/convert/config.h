// The two configuration files of a converted checkpoint.
//
// config.json is the source's, with the quantisation replaced by ModelOpt's: mixed precision, which
// module has which format, and what is excluded. hf_quant_config.json wraps the same. Loaders are
// told by it; halfbyte itself goes by the tensors that are there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace halfbyte {

// What the conversion needs to know of the model, from config.json.
struct ModelFacts {
  int num_layers = 0;
  int num_experts = 0;  // 0: none
  int top_k = 0;
  int expert_groups = 1;
  int first_moe_layer = 0;
};
ModelFacts read_model_facts(const std::filesystem::path& config_json);  // throws Error{kInput}

struct ConfigChanges {
  std::optional<int> num_layers;  // kda_layers and full_attn_layers are filtered too
  std::optional<int> num_experts;
  int first_moe_layer = 0;
  std::string root;                      // "language_model." or ""
  std::vector<std::string> nvfp4_banks;  // "...layers.3.block_sparse_moe.experts"
  std::vector<std::string> fp8_modules;  // "...layers.3.self_attn.q_proj"
  std::string producer_version;
};

struct ConfigFiles {
  std::string config_json, hf_quant_config_json;
};
ConfigFiles rewrite_config(const std::filesystem::path& config_json, const ConfigChanges& changes);

}  // namespace halfbyte

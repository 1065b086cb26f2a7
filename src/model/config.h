// The configuration of a Kimi-K3 or Kimi-Linear model, read from its config.json.
//
// One struct serves both: what a model lacks is absent here, and every feature is keyed on that.
// K3 nests the language model in `text_config`; Kimi-Linear is flat. A key that matters and is
// missing, or holds a value that this build cannot run, is an error that names file, key, what came
// and what was expected. Keys that do not change the network are ignored; keys that we do not know
// are listed in `unknown_keys`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "halfbyte/moe.h"

namespace halfbyte {

enum class AttentionKind { kKda, kMla };

struct MlaConfig {
  int heads = 0;
  std::optional<int> q_rank;  // q_lora_rank; none: one q_proj
  int kv_rank = 0;            // width of the cached latent
  int key_dim = 0;            // qk_nope_head_dim
  int shared_key_dim = 0;     // qk_rope_head_dim; never rotated
  int value_dim = 0;
  bool output_gate = false;
};

struct KdaConfig {
  int heads = 0;
  int head_dim = 0;
  int conv_width = 0;
  std::optional<float> gate_lower_bound;  // none: softplus gate
  bool full_rank_gate = false;            // output gate g_proj; else g_b_proj(g_a_proj(x))
};

struct MoeConfig {
  int num_experts = 0;
  int top_k = 0;
  int num_shared_experts = 0;  // one fused MLP of this many times `intermediate`; 0: none
  int intermediate = 0;
  std::optional<int> latent;  // routed_expert_hidden_size; none: experts read the full width
  bool latent_norm = false;   // latent_moe_use_norm
  int groups = 1;
  int chosen_groups = 1;
  bool renormalise = true;
  float scale = 1.0f;
};

struct ModelConfig {
  std::string architecture;  // architectures[0]
  bool nested = false;       // text_config was there (K3)
  int vocab_size = 0;
  int hidden = 0;
  int num_layers = 0;
  int dense_intermediate = 0;
  Activation activation;                   // of every MLP
  float norm_eps = 0;                      // rms_norm_eps
  float latent_norm_eps = 1e-6f;           // q_a_layernorm, kv_a_layernorm: the module's default
  std::optional<int> residual_block_size;  // attn_res_block_size; none: ordinary residuals
  MlaConfig mla;
  KdaConfig kda;
  MoeConfig moe;
  std::vector<AttentionKind> attention;  // (num_layers)
  int first_moe_layer = 0;               // first_k_dense_replace
  int moe_layer_step = 1;                // moe_layer_freq
  std::optional<int> bos_token, eos_token, pad_token;
  std::vector<std::string> unknown_keys;

  bool is_moe(int layer) const { return layer >= first_moe_layer && layer % moe_layer_step == 0; }
  bool has_moe() const;
  // Width of the experts' input and output.
  int expert_width() const { return moe.latent.value_or(hidden); }
};

ModelConfig read_model_config(const std::filesystem::path& directory);  // DIR/config.json
ModelConfig parse_model_config(const Json& root);

}  // namespace halfbyte

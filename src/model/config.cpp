#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "formats/checkpoint.h"
#include "halfbyte/error.h"
#include "ops/router.h"

namespace halfbyte {
namespace {

// Keys of the language model's object that we read, or know not to change the network: identity,
// token ids of other modalities, defaults of the library that wrote the file.
constexpr std::string_view kReadKeys[] = {"architectures",
                                          "model_type",
                                          "vocab_size",
                                          "hidden_size",
                                          "num_hidden_layers",
                                          "intermediate_size",
                                          "hidden_act",
                                          "activation_situ_beta",
                                          "activation_situ_linear_beta",
                                          "rms_norm_eps",
                                          "attn_res_block_size",
                                          "num_attention_heads",
                                          "num_key_value_heads",
                                          "q_lora_rank",
                                          "kv_lora_rank",
                                          "qk_nope_head_dim",
                                          "qk_rope_head_dim",
                                          "v_head_dim",
                                          "mla_use_nope",
                                          "mla_use_output_gate",
                                          "linear_attn_config",
                                          "num_experts",
                                          "num_experts_per_token",
                                          "num_shared_experts",
                                          "moe_intermediate_size",
                                          "routed_expert_hidden_size",
                                          "latent_moe_use_norm",
                                          "first_k_dense_replace",
                                          "moe_layer_freq",
                                          "moe_router_activation_func",
                                          "topk_method",
                                          "use_grouped_topk",
                                          "num_expert_group",
                                          "topk_group",
                                          "moe_renormalize",
                                          "routed_scaling_factor",
                                          "num_nextn_predict_layers",
                                          "tie_word_embeddings",
                                          "bos_token_id",
                                          "eos_token_id",
                                          "pad_token_id"};
constexpr std::string_view kIrrelevantKeys[] = {
    // about the file, the library, training
    "_name_or_path", "auto_map", "dtype", "torch_dtype", "transformers_version",
    "initializer_range", "use_cache", "quantization_config", "compression_config",
    "gradient_checkpointing", "ignore_index", "attention_dropout", "pretraining_tp",
    // about positions, which this network does not have
    "max_position_embeddings", "model_max_length", "rope_theta", "rope_scaling", "rope_parameters",
    "head_dim",
    // about images
    "text_config", "vision_config", "image_placeholder", "media_placeholder_token_id",
    "image_token_id", "image_token_index",
    // about sampling and tasks
    "add_cross_attention", "bad_words_ids", "begin_suppress_tokens", "chunk_size_feed_forward",
    "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample",
    "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
    "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "id2label", "is_decoder",
    "is_encoder_decoder", "label2id", "length_penalty", "max_length", "min_length",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_scores", "prefix", "problem_type",
    "pruned_heads", "remove_invalid_values", "repetition_penalty", "return_dict",
    "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params",
    "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p",
    "torchscript", "typical_p", "use_bfloat16"};
constexpr std::string_view kLinearAttentionKeys[] = {
    "num_heads",          "head_dim",   "short_conv_kernel_size", "gate_lower_bound",
    "use_full_rank_gate", "kda_layers", "full_attn_layers"};

template <size_t N>
bool contains(const std::string_view (&keys)[N], std::string_view key) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

// NOTE: sums and products of two counts stay far from 2^63, whatever a file says.
constexpr int64_t kMaxCount = 1 << 24;
constexpr int64_t kMaxLayers = 4096;

int count_at(const Json& value, int64_t min, int64_t max = kMaxCount) {
  const int64_t n = value.integer();
  if (n < min || n > max)
    value.fail(fmt::format("is {}, expected a value from {} to {}", n, min, max));
  return static_cast<int>(n);
}

int count_of(const Json& object, std::string_view key, int64_t min = 1, int64_t max = kMaxCount) {
  return count_at(object.get(key), min, max);
}

std::optional<int> optional_count(const Json& object, std::string_view key, int64_t min = 1) {
  const auto value = object.find_value(key);
  if (!value) return std::nullopt;
  return count_at(*value, min);
}

bool flag_of(const Json& object, std::string_view key, bool absent) {
  const auto value = object.find_value(key);
  return value ? value->boolean() : absent;
}

float positive(const Json& value) {
  const auto number = static_cast<float>(value.number());
  if (!(std::isfinite(number) && number > 0))
    value.fail(fmt::format("is {}, expected an fp32 number above 0", value.number()));
  return number;
}

// A key that must hold one value, if it is there at all.
void only_flag(const Json& object, std::string_view key, bool expected) {
  const auto value = object.find_value(key);
  if (value && value->boolean() != expected)
    throw Error(ErrorKind::kUnsupported, value->where(),
                fmt::format("is {}, only {} can be run", !expected, expected));
}

void only_text(const Json& object, std::string_view key, std::string_view expected) {
  const auto value = object.find_value(key);
  if (value && value->string() != expected)
    throw Error(ErrorKind::kUnsupported, value->where(),
                fmt::format("is \"{}\", only \"{}\" can be run", value->string(), expected));
}

Activation read_activation(const Json& text) {
  const Json act = text.get("hidden_act");
  Activation activation;
  if (act.string() == "silu") {
    activation.kind = ActivationKind::kSwiglu;
  } else if (act.string() == "situ") {
    activation.kind = ActivationKind::kSitu;
    // The reference reads an absent or zero beta as 1, an absent linear beta as "no tanh".
    const auto beta = text.find_value("activation_situ_beta");
    activation.beta = beta && beta->number() != 0 ? positive(*beta) : 1.0f;
    const auto linear_beta = text.find_value("activation_situ_linear_beta");
    activation.linear_beta =
        linear_beta ? std::optional<float>(positive(*linear_beta)) : std::nullopt;
  } else {
    throw Error(ErrorKind::kUnsupported, act.where(),
                fmt::format("is \"{}\", only \"silu\" and \"situ\" can be run", act.string()));
  }
  return activation;
}

MlaConfig read_mla(const Json& text) {
  MlaConfig mla;
  mla.heads = count_of(text, "num_attention_heads");
  if (const auto kv_heads = text.find_value("num_key_value_heads");
      kv_heads && kv_heads->integer() != mla.heads)
    kv_heads->fail(
        fmt::format("is {}, expected num_attention_heads = {}", kv_heads->integer(), mla.heads));
  mla.q_rank = optional_count(text, "q_lora_rank");
  mla.kv_rank = count_of(text, "kv_lora_rank");
  mla.key_dim = count_of(text, "qk_nope_head_dim");
  mla.shared_key_dim = count_of(text, "qk_rope_head_dim");
  mla.value_dim = count_of(text, "v_head_dim");
  mla.output_gate = flag_of(text, "mla_use_output_gate", false);
  const Json nope = text.get("mla_use_nope");
  if (!nope.boolean())
    throw Error(ErrorKind::kUnsupported, nope.where(),
                "is false, only attention without positions can be run");
  return mla;
}

KdaConfig read_kda(const Json& linear) {
  linear.for_each_member([](std::string_view key, Json value) {
    if (!contains(kLinearAttentionKeys, key)) value.fail("is not known in linear_attn_config");
  });
  KdaConfig kda;
  kda.heads = count_of(linear, "num_heads");
  kda.head_dim = count_of(linear, "head_dim");
  kda.conv_width = count_of(linear, "short_conv_kernel_size", 2, 8);
  kda.full_rank_gate = flag_of(linear, "use_full_rank_gate", false);
  if (const auto bound = linear.find_value("gate_lower_bound")) {
    const auto number = static_cast<float>(bound->number());
    if (!(std::isfinite(number) && number < 0))
      bound->fail(fmt::format("is {}, expected an fp32 number below 0", bound->number()));
    kda.gate_lower_bound = number;
  }
  return kda;
}

// kda_layers and full_attn_layers, both 1-based, cover 1 .. num_layers exactly.
std::vector<AttentionKind> read_attention_kinds(const Json& linear, int num_layers) {
  std::vector<std::optional<AttentionKind>> kinds(static_cast<size_t>(num_layers));
  const auto read = [&](std::string_view key, AttentionKind kind) {
    for (const Json& element : linear.get(key).elements()) {
      const int layer = count_at(element, 1, num_layers);
      if (kinds[layer - 1]) element.fail(fmt::format("layer {} is listed twice", layer));
      kinds[layer - 1] = kind;
    }
  };
  read("kda_layers", AttentionKind::kKda);
  read("full_attn_layers", AttentionKind::kMla);
  std::vector<AttentionKind> all;
  for (int i = 0; i < num_layers; ++i) {
    if (!kinds[i])
      linear.fail(fmt::format("layer {} is neither in kda_layers nor in full_attn_layers", i + 1));
    all.push_back(*kinds[i]);
  }
  return all;
}

MoeConfig read_moe(const Json& text) {
  MoeConfig moe;
  moe.num_experts = count_of(text, "num_experts", 1, kMaxExperts);
  moe.top_k = count_of(text, "num_experts_per_token", 1);
  if (moe.top_k > moe.num_experts)
    text.get("num_experts_per_token")
        .fail(fmt::format("is {}, more than num_experts = {}", moe.top_k, moe.num_experts));
  moe.num_shared_experts = count_of(text, "num_shared_experts", 0);
  moe.intermediate = count_of(text, "moe_intermediate_size");
  moe.latent = optional_count(text, "routed_expert_hidden_size");
  moe.latent_norm = flag_of(text, "latent_moe_use_norm", false);
  if (moe.latent_norm && !moe.latent)
    text.get("latent_moe_use_norm").fail("is true, but routed_expert_hidden_size is absent");
  const Json router = text.get("moe_router_activation_func");
  if (router.string() != "sigmoid")
    throw Error(ErrorKind::kUnsupported, router.where(),
                fmt::format("is \"{}\", only \"sigmoid\" can be run", router.string()));
  only_text(text, "topk_method", "noaux_tc");
  moe.groups = optional_count(text, "num_expert_group").value_or(1);
  moe.chosen_groups = optional_count(text, "topk_group").value_or(1);
  if (moe.chosen_groups > moe.groups)
    text.get("topk_group")
        .fail(fmt::format("is {}, more than num_expert_group = {}", moe.chosen_groups, moe.groups));
  if (moe.groups > moe.chosen_groups) {
    const int size = moe.num_experts / moe.groups;
    if (moe.num_experts % moe.groups != 0 || size < 2)
      text.get("num_expert_group")
          .fail(fmt::format("is {}, expected equal groups of at least 2 of the {} experts",
                            moe.groups, moe.num_experts));
    if (size * moe.chosen_groups < moe.top_k)
      text.get("topk_group")
          .fail(fmt::format("is {}: these groups hold {} experts, fewer than "
                            "num_experts_per_token = {}",
                            moe.chosen_groups, size * moe.chosen_groups, moe.top_k));
    only_flag(text, "use_grouped_topk", true);
  }
  flag_of(text, "use_grouped_topk", true);  // with one group it changes nothing, but is a flag
  moe.renormalise = text.get("moe_renormalize").boolean();
  moe.scale = positive(text.get("routed_scaling_factor"));
  return moe;
}

}  // namespace

bool ModelConfig::has_moe() const {
  for (int i = 0; i < num_layers; ++i)
    if (is_moe(i)) return true;
  return false;
}

ModelConfig parse_model_config(const Json& root) {
  ModelConfig config;
  const Json model_type = root.get("model_type");
  config.nested = model_type.string() == "kimi_k3";
  if (!config.nested && model_type.string() != "kimi_linear")
    throw Error(ErrorKind::kUnsupported, model_type.where(),
                fmt::format("is \"{}\", only \"kimi_k3\" and \"kimi_linear\" can be run",
                            model_type.string()));
  const auto architectures = root.find_value("architectures");
  if (architectures && !architectures->elements().empty())
    config.architecture = architectures->elements().front().string();
  const Json text = config.nested ? root.get("text_config") : root;
  only_text(text, "model_type", "kimi_linear");

  config.vocab_size = count_of(text, "vocab_size");
  config.hidden = count_of(text, "hidden_size");
  config.num_layers = count_of(text, "num_hidden_layers", 1, kMaxLayers);
  config.dense_intermediate = count_of(text, "intermediate_size");
  config.activation = read_activation(text);
  config.norm_eps = positive(text.get("rms_norm_eps"));
  config.residual_block_size = optional_count(text, "attn_res_block_size");
  config.mla = read_mla(text);
  const Json linear = text.get("linear_attn_config");
  config.kda = read_kda(linear);
  config.attention = read_attention_kinds(linear, config.num_layers);
  config.first_moe_layer = count_of(text, "first_k_dense_replace", 0);
  config.moe_layer_step = count_of(text, "moe_layer_freq");
  config.moe = read_moe(text);
  only_flag(text, "tie_word_embeddings", false);
  if (const auto next = text.find_value("num_nextn_predict_layers"); next && next->integer() != 0)
    throw Error(ErrorKind::kUnsupported, next->where(),
                fmt::format("is {}, only 0 can be run", next->integer()));
  if (config.residual_block_size) {
    const int blocks =
        (config.num_layers + *config.residual_block_size - 1) / *config.residual_block_size;
    if (static_cast<size_t>(blocks) + 1 > Ops::kMaxCandidates)
      text.get("attn_res_block_size")
          .fail(fmt::format("is {}: {} blocks, expected at most {}", *config.residual_block_size,
                            blocks, Ops::kMaxCandidates - 1));
  }

  // Lists are for generation configs to choose from; here only the plain form says something.
  const auto token = [&](std::string_view key) -> std::optional<int> {
    const auto value = text.find_value(key);
    if (!value) return std::nullopt;
    if (value->type() != Json::Type::kArray) return count_at(*value, 0, config.vocab_size - 1);
    for (const Json& id : value->elements()) count_at(id, 0, config.vocab_size - 1);
    return std::nullopt;
  };
  config.bos_token = token("bos_token_id");
  config.eos_token = token("eos_token_id");
  config.pad_token = token("pad_token_id");

  text.for_each_member([&](std::string_view key, Json) {
    if (!contains(kReadKeys, key) && !contains(kIrrelevantKeys, key))
      config.unknown_keys.emplace_back(key);
  });
  return config;
}

ModelConfig read_model_config(const std::filesystem::path& directory) {
  check_directory(directory);
  return parse_model_config(JsonDocument::from_file(directory / "config.json").root());
}

}  // namespace halfbyte

#include "model/roster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "formats/bf16.h"
#include "formats/stored_matrix.h"

namespace halfbyte {
namespace {

class Builder {
 public:
  Builder(const ModelConfig& config, std::string_view prefix) : config_(config), prefix_(prefix) {}

  std::vector<RosterEntry> build() && {
    const int64_t hidden = config_.hidden;
    add(TensorRole::kEmbedding, "model.embed_tokens.weight", config_.vocab_size, hidden);
    for (int i = 0; i < config_.num_layers; ++i) add_layer(i);
    if (config_.residual_block_size) add_residual("model.output_attn_res");
    add(TensorRole::kVector, "model.norm.weight", hidden);
    add(TensorRole::kMatrix, "lm_head", config_.vocab_size, hidden);
    return std::move(entries_);
  }

 private:
  void add(TensorRole role, const std::string& name, int64_t rows, int64_t cols = 1) {
    entries_.push_back({prefix_ + name, role, rows, cols});
  }

  void add_residual(const std::string& name) {
    add(TensorRole::kVector, name + "_norm.weight", config_.hidden);
    add(TensorRole::kVector, name + "_proj.weight", config_.hidden);
  }

  void add_mlp(const std::string& name, int64_t width) {
    add(TensorRole::kMatrix, name + "gate_proj", width, config_.hidden);
    add(TensorRole::kMatrix, name + "up_proj", width, config_.hidden);
    add(TensorRole::kMatrix, name + "down_proj", config_.hidden, width);
  }

  void add_kda(const std::string& attention) {
    const KdaConfig& kda = config_.kda;
    const int64_t hidden = config_.hidden, width = int64_t{kda.heads} * kda.head_dim;
    for (const char* which : {"q", "k", "v"}) {
      add(TensorRole::kMatrix, attention + which + "_proj", width, hidden);
      add(TensorRole::kVector, attention + which + "_conv1d.weight", width, kda.conv_width);
    }
    add(TensorRole::kMatrix, attention + "f_a_proj", kda.head_dim, hidden);
    add(TensorRole::kMatrix, attention + "f_b_proj", width, kda.head_dim);
    add(TensorRole::kMatrix, attention + "b_proj", kda.heads, hidden);
    add(TensorRole::kLogDecay, attention + "A_log", kda.heads);
    add(TensorRole::kVector, attention + "dt_bias", width);
    add(TensorRole::kVector, attention + "o_norm.weight", kda.head_dim);
    if (kda.full_rank_gate) {
      add(TensorRole::kMatrix, attention + "g_proj", width, hidden);
    } else {
      add(TensorRole::kMatrix, attention + "g_a_proj", kda.head_dim, hidden);
      add(TensorRole::kMatrix, attention + "g_b_proj", width, kda.head_dim);
    }
    add(TensorRole::kMatrix, attention + "o_proj", hidden, width);
  }

  void add_mla(const std::string& attention) {
    const MlaConfig& mla = config_.mla;
    const int64_t hidden = config_.hidden, heads = mla.heads;
    const int64_t q_width = heads * (mla.key_dim + mla.shared_key_dim);
    const int64_t o_width = heads * mla.value_dim;
    if (mla.q_rank) {
      add(TensorRole::kMatrix, attention + "q_a_proj", *mla.q_rank, hidden);
      add(TensorRole::kVector, attention + "q_a_layernorm.weight", *mla.q_rank);
      add(TensorRole::kMatrix, attention + "q_b_proj", q_width, *mla.q_rank);
    } else {
      add(TensorRole::kMatrix, attention + "q_proj", q_width, hidden);
    }
    add(TensorRole::kMatrix, attention + "kv_a_proj_with_mqa", mla.kv_rank + mla.shared_key_dim,
        hidden);
    add(TensorRole::kVector, attention + "kv_a_layernorm.weight", mla.kv_rank);
    add(TensorRole::kMatrix, attention + "kv_b_proj", heads * (mla.key_dim + mla.value_dim),
        mla.kv_rank);
    if (mla.output_gate) add(TensorRole::kMatrix, attention + "g_proj", o_width, hidden);
    add(TensorRole::kMatrix, attention + "o_proj", hidden, o_width);
  }

  void add_moe(int layer, const std::string& moe_name) {
    const MoeConfig& moe = config_.moe;
    const int64_t hidden = config_.hidden, width = config_.expert_width();
    add(TensorRole::kMatrix, moe_name + "gate", moe.num_experts, hidden);
    add(TensorRole::kVector, moe_name + "gate.e_score_correction_bias", moe.num_experts);
    if (moe.latent) {
      add(TensorRole::kMatrix, moe_name + "routed_expert_down_proj", width, hidden);
      add(TensorRole::kMatrix, moe_name + "routed_expert_up_proj", hidden, width);
    }
    if (moe.latent_norm) add(TensorRole::kVector, moe_name + "routed_expert_norm.weight", width);
    if (moe.num_shared_experts > 0)
      add_mlp(moe_name + "shared_experts.", int64_t{moe.num_shared_experts} * moe.intermediate);
    for (int e = 0; e < moe.num_experts; ++e) {
      add(TensorRole::kExpert, expert_module(layer, e, "w1"), moe.intermediate, width);
      add(TensorRole::kExpert, expert_module(layer, e, "w3"), moe.intermediate, width);
      add(TensorRole::kExpert, expert_module(layer, e, "w2"), width, moe.intermediate);
    }
  }

  void add_layer(int i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    add(TensorRole::kVector, layer + "input_layernorm.weight", config_.hidden);
    add(TensorRole::kVector, layer + "post_attention_layernorm.weight", config_.hidden);
    if (config_.residual_block_size) {
      add_residual(layer + "self_attention_res");
      add_residual(layer + "mlp_res");
    }
    if (config_.attention[i] == AttentionKind::kKda)
      add_kda(layer + "self_attn.");
    else
      add_mla(layer + "self_attn.");
    if (config_.is_moe(i))
      add_moe(i, layer + "block_sparse_moe.");
    else
      add_mlp(layer + "mlp.", config_.dense_intermediate);
  }

  const ModelConfig& config_;
  std::string prefix_;
  std::vector<RosterEntry> entries_;
};

constexpr std::string_view kPrefix = "language_model.";

// The tensors of a module that make up its matrix, or scale activations that we do not quantise.
constexpr std::string_view kMatrixParts[] = {
    "weight",       "weight_packed",       "weight_scale", "weight_scale_2",
    "weight_shape", "weight_global_scale", "input_scale",  "input_global_scale"};

bool is_matrix_part(std::string_view suffix) {
  return std::find(std::begin(kMatrixParts), std::end(kMatrixParts), suffix) !=
         std::end(kMatrixParts);
}

bool is_matrix(TensorRole role) {
  return role == TensorRole::kMatrix || role == TensorRole::kExpert;
}

void check_shape(const Checkpoint& checkpoint, const RosterEntry& entry) {
  const auto matrix = find_matrix(checkpoint, entry.name);
  if (!matrix)
    throw Error(ErrorKind::kInput, checkpoint.directory().string(),
                fmt::format("tensor {}.weight is missing", entry.name));
  if (matrix->rows != entry.rows || matrix->cols != entry.cols)
    throw Error(ErrorKind::kInput, checkpoint.get(matrix->name).where(),
                fmt::format("is a matrix of {} x {}, expected {} x {}", matrix->rows, matrix->cols,
                            entry.rows, entry.cols));
}

std::vector<int64_t> without_ones(std::vector<int64_t> shape) {
  std::erase(shape, 1);
  return shape;
}

void check_plain(const StoredTensor& tensor, const RosterEntry& entry) {
  if (tensor.dtype != DType::kBf16 && tensor.dtype != DType::kF32)
    throw Error(ErrorKind::kInput, tensor.where(),
                fmt::format("is {}, expected BF16 or F32", name_of(tensor.dtype)));
  const int64_t elements = tensor.elements(), expected = entry.rows * entry.cols;
  bool fits = elements == expected;
  // Taps of a convolution lie side by side: (rows, 1, cols), never transposed.
  if (entry.role == TensorRole::kVector && entry.cols > 1)
    fits = without_ones(tensor.shape) == without_ones({entry.rows, entry.cols});
  if (entry.role == TensorRole::kLogDecay) fits = elements >= expected;
  if (entry.role == TensorRole::kEmbedding)
    fits = tensor.shape == std::vector<int64_t>{entry.rows, entry.cols};
  if (!fits)
    throw Error(ErrorKind::kInput, tensor.where(),
                fmt::format("has shape [{}], expected {}{}{}", fmt::join(tensor.shape, ", "),
                            entry.role == TensorRole::kLogDecay ? "at least " : "", entry.rows,
                            entry.cols > 1 ? fmt::format(" x {}", entry.cols) : " values"));
}

// The layer of "model.layers.12.mlp...", or -1.
int layer_of(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return -1;
  int layer = -1;
  std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
  return layer;
}

// Part of a matrix or a vector, not a scale of something that we do not quantise.
bool is_weight(std::string_view name) {
  const std::string_view part = name.substr(name.rfind('.') + 1);
  return part == "weight" || part == "weight_packed" || part == "A_log" || part == "dt_bias";
}

bool is_for_vision(std::string_view name) {
  return name.starts_with("vision_tower.") || name.starts_with("mm_projector.");
}

}  // namespace

std::vector<RosterEntry> make_roster(const ModelConfig& config, std::string_view prefix) {
  return Builder(config, prefix).build();
}

std::string_view name_prefix(const Checkpoint& checkpoint) {
  // NOTE: asked of two names, so that a checkpoint that lacks one still gets a good message.
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"})
    if (checkpoint.find(fmt::format("{}{}", kPrefix, name)) != nullptr) return kPrefix;
  return "";
}

std::string expert_module(int layer, int expert, const char* which) {
  return fmt::format("model.layers.{}.block_sparse_moe.experts.{}.{}", layer, expert, which);
}

void check_entry(const Checkpoint& checkpoint, const RosterEntry& entry) {
  if (is_matrix(entry.role))
    check_shape(checkpoint, entry);
  else
    check_plain(checkpoint.get(entry.name), entry);
}

bool is_compared(const RosterEntry& entry) {
  return entry.role == TensorRole::kMatrix ||
         (entry.role == TensorRole::kExpert && entry.name.find(".experts.0.") != std::string::npos);
}

QuantClaim check_claim(const QuantConfig& claims, const RosterEntry& entry, WeightFormat stored) {
  QuantClaim claim = claims.claim_for(entry.name);
  if (const auto contradiction = find_contradiction(claim, stored))
    throw Error(ErrorKind::kInput, entry.name, *contradiction);
  return claim;
}

std::vector<UnreadTensor> unread_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                                         const std::vector<RosterEntry>& roster) {
  std::unordered_map<std::string_view, TensorRole> wanted;
  wanted.reserve(roster.size());
  for (const RosterEntry& entry : roster) wanted.emplace(entry.name, entry.role);
  const auto is_read = [&](std::string_view name) {
    const size_t dot = name.rfind('.');
    if (dot != std::string_view::npos && is_matrix_part(name.substr(dot + 1))) {
      const auto module = wanted.find(name.substr(0, dot));
      if (module != wanted.end() && is_matrix(module->second)) return true;
    }
    const auto whole = wanted.find(name);
    return whole != wanted.end() && !is_matrix(whole->second);
  };

  std::vector<UnreadTensor> unread;
  for (const StoredTensor* tensor : checkpoint.tensors()) {
    std::string_view name = tensor->name;
    if (is_read(name)) continue;
    if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
    UnreadKind kind = UnreadKind::kHarmless;
    if (is_for_vision(name))
      kind = UnreadKind::kVision;
    else if (layer_of(name) >= config.num_layers)
      kind = UnreadKind::kOtherLayer;
    else if (name.find(".experts.") != std::string_view::npos || name.ends_with(".bias") ||
             (layer_of(name) >= 0 && is_weight(name)))
      kind = UnreadKind::kUnknown;
    unread.push_back({tensor, kind});
  }
  return unread;
}

Error unknown_tensor_error(const StoredTensor& tensor) {
  const char* message = "would not be read: config.json describes a network without it";
  if (tensor.name.ends_with(".bias"))
    message = "is not known: no matrix of this architecture has a bias";
  else if (tensor.name.find(".experts.") != std::string_view::npos)
    message = "is not known: the experts of a layer are experts.N.w1, w2, w3, counted from 0";
  return Error(ErrorKind::kInput, tensor.where(), message);
}

void check_roster(const Checkpoint& checkpoint, const ModelConfig& config,
                  const std::function<void(const Error&)>& report) {
  const std::vector<RosterEntry> roster = make_roster(config, name_prefix(checkpoint));
  QuantConfig claims;
  try {
    claims = QuantConfig::from_directory(checkpoint.directory());
  } catch (const Error& error) {
    report(error);
  }
  for (const RosterEntry& entry : roster) {
    try {
      check_entry(checkpoint, entry);
      if (claims.present() && is_compared(entry))
        check_claim(claims, entry, find_matrix(checkpoint, entry.name)->format);
    } catch (const Error& error) {
      report(error);
    }
  }
  for (const UnreadTensor& unread : unread_tensors(checkpoint, config, roster))
    if (unread.kind == UnreadKind::kUnknown) report(unknown_tensor_error(*unread.tensor));
}

std::vector<float> read_values(const StoredTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  if (tensor.dtype == DType::kF32) {
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  } else {
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t bits;
      std::memcpy(&bits, tensor.bytes.data() + 2 * i, 2);
      values[i] = bf16_to_float(bits);
    }
  }
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      throw Error(ErrorKind::kInput, tensor.where(),
                  fmt::format("value {} is {}, expected finite values", i, values[i]));
  return values;
}

std::vector<float> read_log_decay(const StoredTensor& tensor, int heads) {
  std::vector<float> values = read_values(tensor);
  const auto live = static_cast<size_t>(heads);
  for (size_t i = live; i < values.size(); ++i)
    if (values[i] != 0)
      throw Error(
          ErrorKind::kInput, tensor.where(),
          fmt::format("value {} is {}, expected zeros after the {} heads", i, values[i], heads));
  values.resize(live);
  return values;
}

}  // namespace halfbyte

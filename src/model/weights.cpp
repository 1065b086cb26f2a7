#include "model/weights.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <mutex>

#include "base/threads.h"
#include "formats/stored_matrix.h"
#include "model/roster.h"

namespace halfbyte {
namespace {

// Tells the system that the pages of a matrix will not be read again soon.
void drop_pages(const Checkpoint& checkpoint, const std::string& module) {
  for (const char* part : {".weight", ".weight_packed", ".weight_scale"}) {
    const StoredTensor* tensor = checkpoint.find(module + part);
    if (tensor == nullptr) continue;
    const auto offset = tensor->bytes.data() - tensor->file->bytes().data();
    tensor->file->drop(static_cast<size_t>(offset), tensor->bytes.size());
  }
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const ModelConfig& config, Device& device,
         const LoadOptions& options)
      : checkpoint_(checkpoint),
        config_(config),
        device_(device),
        options_(options),
        prefix_(name_prefix(checkpoint)) {}

  ModelWeights load() && {
    check_roster(checkpoint_, config_, [](const Error& error) { throw error; });
    load_embedding();
    for (int i = 0; i < config_.num_layers; ++i) {
      weights_.layers.push_back(layer(i));
      if (options_.progress) options_.progress(i + 1, config_.num_layers);
    }
    if (config_.residual_block_size) weights_.output_mix = mix("model.output_attn_res");
    weights_.output_norm = vector("model.norm.weight");
    weights_.lm_head = matrix("lm_head", config_.vocab_size, config_.hidden);
    return std::move(weights_);
  }

 private:
  const StoredTensor& tensor(const std::string& name) const {
    return checkpoint_.get(prefix_ + name);
  }
  DeviceVector vector(const std::string& name) const {
    return DeviceVector(device_, read_values(tensor(name)));
  }

  // Nothing reads the stored bytes again once they are packed.
  Matrix matrix(const std::string& module, int64_t rows, int64_t cols) const {
    const std::string name = prefix_ + module;
    Matrix packed = device_.ops().load_linear(get_matrix(checkpoint_, name, rows, cols));
    drop_pages(checkpoint_, name);
    return packed;
  }

  // norm_w * proj_w: exact in fp32 for BF16 weights.
  DeviceVector mix(const std::string& name) const {
    std::vector<float> weight = read_values(tensor(name + "_norm.weight"));
    const std::vector<float> projection = read_values(tensor(name + "_proj.weight"));
    for (size_t i = 0; i < weight.size(); ++i) weight[i] *= projection[i];
    return DeviceVector(device_, weight);
  }

  void load_embedding() {
    const StoredTensor& table = tensor("model.embed_tokens.weight");
    weights_.embedding_memory = device_.allocate(table.bytes.size());
    device_.copy_to_device(weights_.embedding_memory.data(), table.bytes.data(),
                           table.bytes.size());
    weights_.embedding = TensorView::of(weights_.embedding_memory.data(), table.dtype,
                                        config_.vocab_size, config_.hidden);
  }

  GatedMlpWeights mlp(const std::string& name, int64_t width) const {
    return {matrix(name + "gate_proj", width, config_.hidden),
            matrix(name + "up_proj", width, config_.hidden),
            matrix(name + "down_proj", config_.hidden, width)};
  }

  // Stored (P, 1, W), one channel after the other; here (W, P).
  DeviceVector taps(const std::string& name) const {
    const std::vector<float> stored = read_values(tensor(name));
    const size_t width = static_cast<size_t>(config_.kda.conv_width);
    const size_t channels = stored.size() / width;
    std::vector<float> turned(stored.size());
    for (size_t c = 0; c < channels; ++c)
      for (size_t j = 0; j < width; ++j) turned[j * channels + c] = stored[c * width + j];
    return DeviceVector(device_, turned);
  }

  std::unique_ptr<KdaLayerWeights> kda(const std::string& name) const {
    const KdaConfig& kda = config_.kda;
    const int64_t hidden = config_.hidden, width = int64_t{kda.heads} * kda.head_dim;
    auto w = std::make_unique<KdaLayerWeights>();
    w->q = matrix(name + "q_proj", width, hidden);
    w->k = matrix(name + "k_proj", width, hidden);
    w->v = matrix(name + "v_proj", width, hidden);
    w->q_conv = taps(name + "q_conv1d.weight");
    w->k_conv = taps(name + "k_conv1d.weight");
    w->v_conv = taps(name + "v_conv1d.weight");
    w->decay_a = matrix(name + "f_a_proj", kda.head_dim, hidden);
    w->decay_b = matrix(name + "f_b_proj", width, kda.head_dim);
    w->strength = matrix(name + "b_proj", kda.heads, hidden);
    w->log_decay = DeviceVector(device_, read_log_decay(tensor(name + "A_log"), kda.heads));
    w->decay_bias = vector(name + "dt_bias");
    if (kda.full_rank_gate) {
      w->gate_b = matrix(name + "g_proj", width, hidden);
    } else {
      w->gate_a = matrix(name + "g_a_proj", kda.head_dim, hidden);
      w->gate_b = matrix(name + "g_b_proj", width, kda.head_dim);
    }
    w->out_norm = vector(name + "o_norm.weight");
    w->out = matrix(name + "o_proj", hidden, width);
    return w;
  }

  std::unique_ptr<MlaLayerWeights> mla(const std::string& name) const {
    const MlaConfig& mla = config_.mla;
    const int64_t hidden = config_.hidden;
    const LatentAttentionShape shape{.heads = mla.heads,
                                     .latent = mla.kv_rank,
                                     .key_dim = mla.key_dim,
                                     .shared_key_dim = mla.shared_key_dim,
                                     .value_dim = mla.value_dim,
                                     .max_queries = options_.max_chunk};
    auto w = std::make_unique<MlaLayerWeights>();
    if (mla.q_rank) {
      w->q_a = matrix(name + "q_a_proj", *mla.q_rank, hidden);
      w->q_norm = vector(name + "q_a_layernorm.weight");
      w->q_b = matrix(name + "q_b_proj", shape.query_width(), *mla.q_rank);
    } else {
      w->q_b = matrix(name + "q_proj", shape.query_width(), hidden);
    }
    w->kv_a = matrix(name + "kv_a_proj_with_mqa", shape.cache_width(), hidden);
    w->kv_norm = vector(name + "kv_a_layernorm.weight");
    const std::string kv_b = prefix_ + name + "kv_b_proj";
    w->attention = device_.ops().load_latent_attention(
        get_matrix(checkpoint_, kv_b, int64_t{mla.heads} * (mla.key_dim + mla.value_dim),
                   mla.kv_rank),
        shape);
    drop_pages(checkpoint_, kv_b);
    if (mla.output_gate) w->gate = matrix(name + "g_proj", shape.output_width(), hidden);
    w->out = matrix(name + "o_proj", hidden, shape.output_width());
    return w;
  }

  ExpertWeights expert(int layer, int index) const {
    const int64_t inner = config_.moe.intermediate, width = config_.expert_width();
    const auto find = [&](const char* which, int64_t rows, int64_t cols) {
      return get_matrix(checkpoint_, prefix_ + expert_module(layer, index, which), rows, cols);
    };
    return {find("w1", inner, width), find("w3", inner, width), find("w2", width, inner)};
  }

  const MoePlan& plan_for(WeightFormat format) {
    std::unique_ptr<MoePlan>& plan = weights_.plans[format];
    if (plan == nullptr) {
      const MoeShape shape{.num_experts = config_.moe.num_experts,
                           .top_k = config_.moe.top_k,
                           .hidden = config_.expert_width(),
                           .intermediate = config_.moe.intermediate,
                           .activation = config_.activation,
                           .weights = format};
      plan = plan_moe(shape, {.max_tokens = options_.max_chunk}, device_, options_.moe_backend);
      weights_.moe_workspace_bytes =
          std::max(weights_.moe_workspace_bytes, plan->workspace_bytes());
    }
    return *plan;
  }

  // Experts are packed by several threads, each through a staging buffer of one expert, so that no
  // more than the packed form and a few experts are in memory.
  void load_experts(int layer, MoeLayerWeights& w) {
    const WeightFormat format = expert(layer, 0).gate.format;
    const MoePlan& plan = plan_for(format);
    const size_t expert_bytes = plan.layout().expert_bytes;
    w.packed = device_.allocate(plan.layout().packed_bytes);
    std::mutex mutex;
    std::exception_ptr failure;
    packers_.parallel_for(config_.moe.num_experts, [&](int64_t index) {
      try {
        const int e = static_cast<int>(index);
        const ExpertWeights stored = expert(layer, e);
        for (const MatrixView& matrix : {stored.gate, stored.up, stored.down})
          if (matrix.format != format)
            throw Error(ErrorKind::kInput, std::string(matrix.name),
                        fmt::format("is stored as {}, expected {} as the first expert of the layer",
                                    name_of(matrix.format), name_of(format)));
        std::vector<std::byte> staging(expert_bytes);
        plan.pack_expert(stored, staging);
        std::lock_guard lock(mutex);
        device_.copy_to_device(
            static_cast<std::byte*>(w.packed.data()) + static_cast<size_t>(index) * expert_bytes,
            staging.data(), expert_bytes);
        for (const char* which : {"w1", "w3", "w2"})
          drop_pages(checkpoint_, prefix_ + expert_module(layer, e, which));
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    });
    if (failure) std::rethrow_exception(failure);
    w.experts = plan.bind(w.packed.data(), plan.layout().packed_bytes);
  }

  std::unique_ptr<MoeLayerWeights> moe(int layer, const std::string& name) {
    const MoeConfig& moe = config_.moe;
    const int64_t hidden = config_.hidden, width = config_.expert_width();
    auto w = std::make_unique<MoeLayerWeights>();
    w->router = matrix(name + "gate", moe.num_experts, hidden);
    w->router_bias = vector(name + "gate.e_score_correction_bias");
    if (moe.latent) {
      w->latent_down = matrix(name + "routed_expert_down_proj", width, hidden);
      w->latent_up = matrix(name + "routed_expert_up_proj", hidden, width);
    }
    if (moe.latent_norm) w->latent_norm = vector(name + "routed_expert_norm.weight");
    if (moe.num_shared_experts > 0)
      w->shared = mlp(name + "shared_experts.", int64_t{moe.num_shared_experts} * moe.intermediate);
    load_experts(layer, *w);
    return w;
  }

  LayerWeights layer(int i) {
    const std::string name = fmt::format("model.layers.{}.", i);
    LayerWeights w;
    w.attention_norm = vector(name + "input_layernorm.weight");
    w.mlp_norm = vector(name + "post_attention_layernorm.weight");
    if (config_.residual_block_size) {
      w.attention_mix = mix(name + "self_attention_res");
      w.mlp_mix = mix(name + "mlp_res");
    }
    if (config_.attention[i] == AttentionKind::kKda)
      w.kda = kda(name + "self_attn.");
    else
      w.mla = mla(name + "self_attn.");
    if (config_.is_moe(i))
      w.moe = moe(i, name + "block_sparse_moe.");
    else
      w.dense = std::make_unique<GatedMlpWeights>(mlp(name + "mlp.", config_.dense_intermediate));
    return w;
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  Device& device_;
  const LoadOptions& options_;
  std::string prefix_;
  ThreadPool packers_{0};
  ModelWeights weights_;
};

}  // namespace

DeviceVector::DeviceVector(Device& device, const std::vector<float>& values)
    : buffer_(device.allocate(values.size() * sizeof(float))) {
  device.copy_to_device(buffer_.data(), values.data(), values.size() * sizeof(float));
}

ModelWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config, Device& device,
                          const LoadOptions& options) {
  return Loader(checkpoint, config, device, options).load();
}

}  // namespace halfbyte

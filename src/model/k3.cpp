// Kimi-K3 (and Kimi-Linear), layer by layer. The specification's letters: hidden D; `first(x)` is
// the rows of this pass. What a model lacks is absent in its weights, and skipped here.
#include "model/k3.h"

#include <array>

namespace halfbyte {

Forward::Forward(const Model& model, const PassScratch& scratch, Sequence& sequence, int64_t tokens,
                 Trace* trace)
    : config_(model.config_),
      weights_(model.weights_),
      device_(model.device_),
      ops_(model.device_.ops()),
      s_(scratch),
      sequence_(sequence),
      tokens_(tokens),
      trace_(trace) {}

void Forward::run() {
  ops_.embed(weights_.embedding, s_.ids.row<int32_t>(0), residual(0));
  for (int i = 0; i < config_.num_layers; ++i) layer(i);

  trace_prefix_ = "";
  const TensorView x = mix(weights_.output_mix);
  trace("final_mix", x);
  ops_.rmsnorm(x, weights_.output_norm, config_.norm_eps, first(s_.normed));
  trace("final_norm", first(s_.normed));
}

// x = mix of the snapshots and the running prefix; prefix += attention(norm(x)); the same again for
// the MLP. At the start of a block the prefix becomes a snapshot and starts anew.
void Forward::layer(int i) {
  const LayerWeights& w = weights_.layers[i];
  Sequence::LayerCache& cache = sequence_.layers_[i];
  const TensorView normed = first(s_.normed);
  if (trace_ != nullptr) trace_prefix_ = "layers." + std::to_string(i) + ".";

  // Attention.
  TensorView x = mix(w.attention_mix);
  trace("attn_mix", x);
  ops_.rmsnorm(x, w.attention_norm, config_.norm_eps, normed);
  trace("attn_norm", normed);
  const bool fresh = starts_block(i);
  if (fresh) ++snapshots_;
  const TensorView prefix = residual(snapshots_);
  TensorView out = fresh ? prefix : first(s_.out);
  w.kda ? kda(*w.kda, cache, normed, out) : mla(*w.mla, cache, normed, out);
  trace("attn_out", out);
  if (!fresh) ops_.add(out, prefix);

  // MLP.
  x = mix(w.mlp_mix);
  trace("mlp_mix", x);
  ops_.rmsnorm(x, w.mlp_norm, config_.norm_eps, normed);
  trace("mlp_norm", normed);
  out = first(s_.out);
  w.dense ? mlp(*w.dense, s_.dense, normed, out) : moe(*w.moe, normed, out);
  trace("mlp_out", out);
  ops_.add(out, prefix);
  trace("residual_out", prefix);
}

bool Forward::starts_block(int layer) const {
  return config_.residual_block_size && layer % *config_.residual_block_size == 0;
}

TensorView Forward::residual(int block) const {
  const int64_t rows = s_.residuals.rows / (residual_blocks(config_) + 1);
  return s_.residuals.row_slice(block * rows, tokens_);
}

// The input of a sublayer. Without snapshots it is the prefix itself: ordinary residuals, and the
// attention of layer 0.
TensorView Forward::mix(const float* score_weight) {
  if (snapshots_ == 0) return residual(0);
  std::array<TensorView, Ops::kMaxCandidates> candidates;
  const size_t count = static_cast<size_t>(snapshots_) + 1;
  for (size_t j = 0; j < count; ++j) candidates[j] = residual(static_cast<int>(j));
  const TensorView x = first(s_.mix);
  ops_.residual_mix({candidates.data(), count}, score_weight, config_.norm_eps, x);
  return x;
}

// Kimi Delta Attention (specification, section 4).
void Forward::kda(const KdaLayerWeights& w, Sequence::LayerCache& cache, TensorView x,
                  TensorView out) {
  const KdaScratch& s = s_.kda;
  const int64_t width = s.q.cols;
  const int past = config_.kda.conv_width - 1;

  // q, k, v: projection, convolution, SiLU.
  const TensorView conv = TensorView::of(cache.conv.data(), DType::kF32, 3 * past, width);
  const auto project = [&](const Linear& linear, const float* taps, int index, TensorView y) {
    linear.run(x, first(s.raw));
    ops_.short_conv(first(s.raw), taps, past + 1, conv.row_slice(index * past, past), y);
  };
  project(*w.q, w.q_conv, 0, first(s.q));
  project(*w.k, w.k_conv, 1, first(s.k));
  project(*w.v, w.v_conv, 2, first(s.v));

  // Forget gate and write strength.
  w.decay_a->run(x, first(s.low_rank));
  w.decay_b->run(first(s.low_rank), first(s.decay));
  w.strength->run(x, first(s.strength));

  ops_.kda(kda_shape(config_.kda, s.q.rows), {w.log_decay, w.decay_bias},
           {first(s.q), first(s.k), first(s.v), first(s.decay), first(s.strength)},
           static_cast<float*>(cache.state.data()), first(s.o), s.workspace);

  // Output gate.
  if (w.gate_a) {
    w.gate_a->run(x, first(s.low_rank));
    w.gate_b->run(first(s.low_rank), first(s.gate));
  } else {
    w.gate_b->run(x, first(s.gate));
  }
  ops_.gated_head_norm(first(s.o), first(s.gate), w.out_norm, config_.kda.head_dim,
                       config_.norm_eps, first(s.gated));
  w.out->run(first(s.gated), out);
}

// Multi-head latent attention without positions (section 6).
void Forward::mla(const MlaLayerWeights& w, Sequence::LayerCache& cache, TensorView x,
                  TensorView out) {
  const MlaScratch& s = s_.mla;
  const int64_t latent = config_.mla.kv_rank, shared = config_.mla.shared_key_dim;

  // Queries.
  if (w.q_a) {
    w.q_a->run(x, first(s.q_raw));
    ops_.rmsnorm(first(s.q_raw), w.q_norm, config_.latent_norm_eps, first(s.q_normed));
    w.q_b->run(first(s.q_normed), first(s.q));
  } else {
    w.q_b->run(x, first(s.q));
  }

  // What is cached: the latent after its norm, and the key that all heads share.
  w.kv_a->run(x, first(s.kv));
  const int64_t past = sequence_.length_;
  const TensorView rows = TensorView::of(cache.latents.data(), device_.activation_dtype(),
                                         past + tokens_, latent + shared);
  const TensorView new_rows = rows.row_slice(past, tokens_);
  ops_.rmsnorm(first(s.kv).col_slice(0, latent), w.kv_norm, config_.latent_norm_eps,
               new_rows.col_slice(0, latent));
  ops_.copy(first(s.kv).col_slice(latent, shared), new_rows.col_slice(latent, shared));

  w.attention->run(first(s.q), rows, first(s.o), s.workspace);

  if (w.gate) {
    w.gate->run(x, first(s.gate));
    ops_.sigmoid_gate(first(s.o), first(s.gate), first(s.gated));
  } else {
    ops_.copy(first(s.o), first(s.gated));
  }
  w.out->run(first(s.gated), out);
}

void Forward::mlp(const GatedMlpWeights& w, const MlpScratch& s, TensorView x, TensorView out) {
  w.gate->run(x, first(s.gate));
  w.up->run(x, first(s.up));
  ops_.activate(first(s.gate), first(s.up), config_.activation, first(s.inner));
  w.down->run(first(s.inner), out);
}

// Routed experts, at the latent width if there is one, and shared experts (section 5).
void Forward::moe(const MoeLayerWeights& w, TensorView x, TensorView out) {
  const MoeScratch& s = s_.moe;
  const RouterRule rule{.num_experts = config_.moe.num_experts,
                        .top_k = config_.moe.top_k,
                        .groups = config_.moe.groups,
                        .chosen_groups = config_.moe.chosen_groups,
                        .renormalise = config_.moe.renormalise,
                        .scale = config_.moe.scale};
  w.router->run(x, first(s.logits));
  ops_.route(first(s.logits), w.router_bias, rule, s.ids.row<int32_t>(0), s.weights.row<float>(0));
  trace("router_ids", first(s.ids));
  trace("router_weights", first(s.weights));
  const Routing routing{s.ids.row<int32_t>(0), s.weights.row<float>(0), static_cast<int>(tokens_)};

  if (w.latent_down) {
    w.latent_down->run(x, first(s.latent));
    trace("latent", first(s.latent));
    w.experts->run(routing, first(s.latent), first(s.routed), s.workspace);
    trace("routed_sum", first(s.routed));
    if (w.latent_norm)
      ops_.rmsnorm(first(s.routed), w.latent_norm, config_.norm_eps, first(s.routed_normed));
    else
      ops_.copy(first(s.routed), first(s.routed_normed));
    w.latent_up->run(first(s.routed_normed), out);
    trace("routed_out", out);
  } else {
    w.experts->run(routing, x, out, s.workspace);
  }

  if (w.shared.gate) {
    mlp(w.shared, s.shared, x, first(s.shared_out));
    trace("shared_out", first(s.shared_out));
    ops_.add(first(s.shared_out), out);
  }
}

void Forward::trace(const char* name, const TensorView& view) {
  if (trace_ != nullptr) trace_->record(device_, trace_prefix_ + name, view);
}

}  // namespace halfbyte

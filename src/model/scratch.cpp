#include "model/scratch.h"

namespace halfbyte {
namespace {

MlpScratch carve_mlp(Arena& arena, DType a, int64_t tokens, int64_t inner) {
  return {arena.take(DType::kF32, tokens, inner), arena.take(DType::kF32, tokens, inner),
          arena.take(a, tokens, inner)};
}

KdaScratch carve_kda(Arena& arena, const KdaConfig& kda, Ops& ops, DType a, int64_t tokens) {
  const int64_t width = int64_t{kda.heads} * kda.head_dim;
  const auto wide = [&] { return arena.take(DType::kF32, tokens, width); };
  KdaScratch s;
  s.raw = wide();
  s.q = wide();
  s.k = wide();
  s.v = wide();
  s.low_rank = arena.take(a, tokens, kda.head_dim);
  s.decay = wide();
  s.strength = arena.take(DType::kF32, tokens, kda.heads);
  s.gate = wide();
  s.o = wide();
  s.gated = arena.take(a, tokens, width);
  s.workspace = arena.take(ops.kda_workspace_bytes(kda_shape(kda, tokens)));
  return s;
}

MlaScratch carve_mla(Arena& arena, const MlaConfig& mla, size_t workspace_bytes, DType a,
                     int64_t tokens) {
  const int64_t heads = mla.heads;
  MlaScratch s;
  s.q_raw = arena.take(DType::kF32, tokens, mla.q_rank.value_or(0));
  s.q_normed = arena.take(a, tokens, mla.q_rank.value_or(0));
  s.q = arena.take(DType::kF32, tokens, heads * (mla.key_dim + mla.shared_key_dim));
  s.kv = arena.take(DType::kF32, tokens, mla.kv_rank + mla.shared_key_dim);
  s.gate = arena.take(DType::kF32, tokens, heads * mla.value_dim);
  s.o = arena.take(DType::kF32, tokens, heads * mla.value_dim);
  s.gated = arena.take(a, tokens, heads * mla.value_dim);
  s.workspace = arena.take(workspace_bytes);
  return s;
}

MoeScratch carve_moe(Arena& arena, const ModelConfig& config, size_t workspace_bytes, DType a,
                     int64_t tokens) {
  const MoeConfig& moe = config.moe;
  const int64_t width = config.expert_width();
  MoeScratch s;
  s.logits = arena.take(DType::kF32, tokens, moe.num_experts);
  s.ids = arena.take(DType::kI32, tokens, moe.top_k);
  s.weights = arena.take(DType::kF32, tokens, moe.top_k);
  s.latent = arena.take(a, tokens, width);
  s.routed = arena.take(DType::kF32, tokens, width);
  s.routed_normed = arena.take(a, tokens, width);
  s.shared_out = arena.take(DType::kF32, tokens, config.hidden);
  s.shared = carve_mlp(arena, a, tokens, int64_t{moe.num_shared_experts} * moe.intermediate);
  s.workspace = arena.take(workspace_bytes);
  return s;
}

}  // namespace

KdaShape kda_shape(const KdaConfig& kda, int64_t tokens) {
  return {.heads = kda.heads,
          .head_dim = kda.head_dim,
          .gate_lower_bound = kda.gate_lower_bound,
          .max_tokens = tokens};
}

int residual_blocks(const ModelConfig& config) {
  if (!config.residual_block_size) return 0;
  const int size = *config.residual_block_size;
  return (config.num_layers + size - 1) / size;
}

PassScratch carve_scratch(Arena& arena, const ModelConfig& config, const ModelWeights& weights,
                          Device& device, int64_t tokens) {
  const DType a = device.activation_dtype();
  size_t attention_bytes = 0;
  for (const LayerWeights& layer : weights.layers)
    if (layer.mla)
      attention_bytes = std::max(attention_bytes, layer.mla->attention->workspace_bytes());

  PassScratch s;
  s.ids = arena.take(DType::kI32, 1, tokens);
  s.residuals = arena.take(DType::kF32, (residual_blocks(config) + 1) * tokens, config.hidden);
  s.mix = arena.take(DType::kF32, tokens, config.hidden);
  s.normed = arena.take(a, tokens, config.hidden);
  s.out = arena.take(DType::kF32, tokens, config.hidden);
  const size_t mark = arena.mark();
  s.logits = arena.take(DType::kF32, PassScratch::kLogitRows, config.vocab_size);
  arena.back_to(mark);
  s.kda = carve_kda(arena, config.kda, device.ops(), a, tokens);
  arena.back_to(mark);
  s.mla = carve_mla(arena, config.mla, attention_bytes, a, tokens);
  arena.back_to(mark);
  s.dense = carve_mlp(arena, a, tokens, config.dense_intermediate);
  arena.back_to(mark);
  s.moe = carve_moe(arena, config, weights.moe_workspace_bytes, a, tokens);
  return s;
}

}  // namespace halfbyte

// Dense operations: the contract that every device implements, and all that model code may call.
//
// Letters: T tokens (rows), D hidden, H heads, E experts, K experts a token; the rest beside each
// operation. Two kinds of activation: what a matrix multiplication reads (and the latent cache) is
// kept in the device's activation dtype, written A below: F32 on "ref", BF16 elsewhere. Everything
// else is F32: sums, residuals, gates, states. Inside, operations compute in fp32 ("ref": double)
// and round once, on writing. Operations are queued in order on the device; pointers are device
// memory. Nothing allocates except load_*. Sizes and dtypes are checked where weights are loaded:
// a wrong view here is our own mistake. Results do not depend on the number of threads.
// Formulas: the specification of Kimi-K3, sections 2 to 6; docs/numerics.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "halfbyte/activation.h"
#include "halfbyte/device.h"
#include "halfbyte/tensor.h"

namespace halfbyte {

// y = x W^T, W (N, K) packed for the device once.
class Linear {
 public:
  virtual ~Linear() = default;
  virtual int64_t in_features() const = 0;   // K
  virtual int64_t out_features() const = 0;  // N
  virtual size_t weight_bytes() const = 0;   // packed, as read by one run
  // x (T, K) BF16 or F32 -> y (T, N) BF16 or F32; fp32 accumulation. T = 0 is legal.
  virtual void run(TensorView x, TensorView y) const = 0;
};

// Attention of H heads over a cache of latents without positions (multi-head latent attention).
//
// A cached row is [c (C) | k_r (R)], both already final; W_kvb (H * (N + V), C) holds, head after
// head, the N rows of its keys and the V rows of its values:
//   [k | v]_h = c W_kvb_h^T;   score = (q_n . k + q_r . k_r) / sqrt(N + R);   o = softmax(score) v
// over the keys up to the query's own position.
struct LatentAttentionShape {
  int heads = 0;            // H
  int latent = 0;           // C, kv_lora_rank
  int key_dim = 0;          // N, qk_nope_head_dim
  int shared_key_dim = 0;   // R, qk_rope_head_dim
  int value_dim = 0;        // V, v_head_dim
  int64_t max_queries = 1;  // the largest T that `run` will see; its workspace is sized for it

  int64_t query_width() const { return int64_t{heads} * (key_dim + shared_key_dim); }
  int64_t cache_width() const { return int64_t{latent} + shared_key_dim; }
  int64_t output_width() const { return int64_t{heads} * value_dim; }
};

class LatentAttention {
 public:
  virtual ~LatentAttention() = default;
  virtual size_t weight_bytes() const = 0;
  virtual size_t workspace_bytes() const = 0;
  // q (T, H*(N+R)) F32, per head [q_n | q_r]; cache (past + T, C+R) A, the T rows of these queries
  // included -> o (T, H*V) F32.
  virtual void run(TensorView q, TensorView cache, TensorView o, void* workspace) const = 0;
};

// Which experts a token goes to: s = sigmoid(logits); the K largest s + bias are chosen, within the
// best `chosen_groups` of `groups` equal runs of experts (a group counts the sum of its two
// largest). weight = s / (sum of the chosen s + 1e-20) * scale; without renormalise s * scale.
// Slots are in order of falling weight. Ties, in choosing and in order: the lower index first.
struct RouterRule {
  int num_experts = 0;  // E
  int top_k = 0;        // K
  int groups = 1;
  int chosen_groups = 1;
  bool renormalise = true;
  float scale = 1.0f;
};

// Kimi Delta Attention: H heads, key width = value width = D.
struct KdaShape {
  int heads = 0;     // H
  int head_dim = 0;  // D
  // L: log decay g = L sigmoid(exp(A) z); none: g = -exp(A) softplus(z).
  std::optional<float> gate_lower_bound;
  int64_t max_tokens = 1;  // the largest T that `kda` will see; its workspace is sized for it

  int64_t width() const { return int64_t{heads} * head_dim; }
};

struct KdaWeights {
  const float* log_decay = nullptr;   // (H)     A_log, one value a head
  const float* decay_bias = nullptr;  // (H*D)   dt_bias
};

struct KdaInputs {
  TensorView q, k, v;   // (T, H*D) F32, after the convolution; q, k not yet normalised
  TensorView decay;     // (T, H*D) F32, the forget gate's projection: z = decay + dt_bias
  TensorView strength;  // (T, H)   F32, before the sigmoid: beta = sigmoid(strength)
};

class Ops {
 public:
  virtual ~Ops() = default;

  // Packs weights (host memory, any WeightFormat) for this device; nothing of the host memory is
  // needed afterwards. Throws Error{kInput} that names the tensor.
  virtual std::unique_ptr<Linear> load_linear(const MatrixView& weight) = 0;
  virtual std::unique_ptr<LatentAttention> load_latent_attention(
      const MatrixView& kv_b, const LatentAttentionShape& shape) = 0;

  // y[t] = table[ids[t]]; table (V, D) BF16 or F32, ids in [0, V) -> y (T, D) F32.
  virtual void embed(TensorView table, const int32_t* ids, TensorView y) = 0;

  // y = x, converted to the dtype of y.
  virtual void copy(TensorView x, TensorView y) = 0;

  // y += x, F32.
  virtual void add(TensorView x, TensorView y) = 0;

  // y[t] = x[t] / sqrt(mean(x[t]^2) + eps) * gain; x F32 -> y A or F32.
  virtual void rmsnorm(TensorView x, const float* gain, float eps, TensorView y) = 0;

  // Attention residual: a softmax over depth, per token, of the un-normalised candidates (T, D)
  // F32.
  //   s_j = sum_d v_j[d] / sqrt(mean(v_j^2) + eps) * score_weight[d];  y = sum_j softmax(s)_j v_j
  // -> y (T, D) F32. At least one candidate, at most kMaxCandidates.
  static constexpr size_t kMaxCandidates = 64;
  virtual void residual_mix(std::span<const TensorView> candidates, const float* score_weight,
                            float eps, TensorView y) = 0;

  // y = act(gate, up); F32 -> A. Gated activations only.
  virtual void activate(TensorView gate, TensorView up, const Activation& activation,
                        TensorView y) = 0;

  // y = x * sigmoid(gate); F32 -> A.
  virtual void sigmoid_gate(TensorView x, TensorView gate, TensorView y) = 0;

  // logits (T, E) F32, bias (E) -> ids (T, K), weights (T, K).
  virtual void route(TensorView logits, const float* bias, const RouterRule& rule, int32_t* ids,
                     float* weights) = 0;

  // Causal depthwise convolution and SiLU: y_t = silu(sum_j taps[j][c] u_{t-(W-1)+j}[c]).
  // u (T, P) F32; taps (W, P); state (W-1, P) F32: the last W-1 rows of u before this call (zeros
  // at the start of a sequence), updated -> y (T, P) F32, not u itself. 2 <= W <= 8.
  virtual void short_conv(TensorView u, const float* taps, int width, TensorView state,
                          TensorView y) = 0;

  // The recurrence over T tokens, per head, with k^ = k / sqrt(sum k^2 + 1e-6), q^ likewise and
  // times D^-0.5:
  //   S <- diag(exp(g)) S;  S <- S + beta k^ (v - S^T k^)^T;  o = S^T q^
  // state (H, D, D) F32, [key][value], zeros at the start of a sequence, updated -> o (T, H*D) F32.
  virtual size_t kda_workspace_bytes(const KdaShape& shape) const = 0;
  virtual void kda(const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs,
                   float* state, TensorView o, void* workspace) = 0;

  // y = rmsnorm(o, per head, over D) * gain[d] * sigmoid(gate); o, gate (T, H*D) F32, gain (D)
  // -> y (T, H*D) A.
  virtual void gated_head_norm(TensorView o, TensorView gate, const float* gain, int head_dim,
                               float eps, TensorView y) = 0;
};

}  // namespace halfbyte

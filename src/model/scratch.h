// The memory of one forward pass: every intermediate has a name here, and nowhere else.
//
// Counted and carved by the same code: `Arena` without memory only counts. Attention and MLP take
// turns with the same bytes, as the two kinds of attention and of MLP do. T = max_chunk rows each.
#pragma once

#include <algorithm>
#include <cstdint>

#include "halfbyte/device.h"
#include "model/config.h"
#include "model/weights.h"

namespace halfbyte {

// Hands out pieces of one block in order, 64-byte aligned.
class Arena {
 public:
  explicit Arena(void* base = nullptr) : base_(static_cast<std::byte*>(base)) {}

  void* take(size_t bytes) {
    void* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    peak_ = std::max(peak_, used_);
    return piece;
  }
  TensorView take(DType dtype, int64_t rows, int64_t cols) {
    return TensorView::of(take(static_cast<size_t>(rows * cols * dtype_bytes(dtype))), dtype, rows,
                          cols);
  }
  size_t mark() const { return used_; }
  void back_to(size_t mark) { used_ = mark; }
  size_t peak_bytes() const { return peak_; }

 private:
  std::byte* base_;
  size_t used_ = 0, peak_ = 0;
};

struct MlpScratch {
  TensorView gate, up;  // (T, F) F32
  TensorView inner;     // (T, F) A
};

struct KdaScratch {
  TensorView raw;       // (T, H*D) F32   q, k or v before its convolution
  TensorView q, k, v;   // (T, H*D) F32
  TensorView low_rank;  // (T, D) A
  TensorView decay;     // (T, H*D) F32
  TensorView strength;  // (T, H) F32
  TensorView gate;      // (T, H*D) F32
  TensorView o;         // (T, H*D) F32
  TensorView gated;     // (T, H*D) A
  void* workspace;
};

struct MlaScratch {
  TensorView q_raw, q_normed;  // (T, rank) F32, A
  TensorView q;                // (T, H*(N+R)) F32
  TensorView kv;               // (T, C+R) F32
  TensorView gate, o;          // (T, H*V) F32
  TensorView gated;            // (T, H*V) A
  void* workspace;
};

struct MoeScratch {
  TensorView logits;         // (T, E) F32
  TensorView ids, weights;   // (T, K) I32, F32
  TensorView latent;         // (T, L) A
  TensorView routed;         // (T, L) F32
  TensorView routed_normed;  // (T, L) A
  TensorView shared_out;     // (T, hidden) F32
  MlpScratch shared;
  void* workspace;
};

struct PassScratch {
  TensorView ids;        // (1, T) I32
  TensorView residuals;  // ((blocks + 1) * T, hidden) F32   snapshots, then the running prefix
  TensorView mix;        // (T, hidden) F32   input of a sublayer's norm
  TensorView normed;     // (T, hidden) A
  TensorView out;        // (T, hidden) F32   output of a sublayer
  TensorView logits;     // (kLogitRows, V) F32
  KdaScratch kda;
  MlaScratch mla;
  MlpScratch dense;
  MoeScratch moe;

  static constexpr int64_t kLogitRows = 16;  // of lm_head at a time
};

// The recurrence of a configuration, for passes of up to `tokens`.
KdaShape kda_shape(const KdaConfig& kda, int64_t tokens);

// Snapshots of the residual stream that a pass keeps.
int residual_blocks(const ModelConfig& config);

PassScratch carve_scratch(Arena& arena, const ModelConfig& config, const ModelWeights& weights,
                          Device& device, int64_t tokens);

}  // namespace halfbyte

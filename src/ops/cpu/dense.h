// The inner loops of dense operations on the CPU, one set for each instruction set, behind one
// table of functions. Each does one thread's piece of work; cpu_ops.cpp cuts operations into
// pieces.
//
// Sums over a row run in 16 lanes and end with a fixed tree, so that a result depends on the level
// only. Rows need no alignment and may have any length. Checked: tests/unit/ops/cpu_ops_test.cpp
// against "ref".
#pragma once

#include <cstdint>

#include "halfbyte/activation.h"
#include "halfbyte/tensor.h"
#include "simd/cpu_device.h"

namespace halfbyte::cpu {

constexpr int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

// A few columns of a convolution, all its tokens.
struct ConvPiece {
  const float* u;  // (T, ..)
  int64_t u_stride;
  const float* taps;  // (W, ..)
  int64_t taps_stride;
  float* state;  // (W-1, ..), updated
  int64_t state_stride;
  float* y;  // (T, ..)
  int64_t y_stride;
  int64_t tokens, columns;
  int width;  // W <= kMaxConvWidth
};
inline constexpr int kMaxConvWidth = 8;

// One head of Kimi Delta Attention, all its tokens.
struct KdaHead {
  const float *q, *k, *v, *decay;  // (T, D), rows `stride` apart
  int64_t stride;
  const float* strength;  // (T), `strength_stride` apart
  int64_t strength_stride;
  const float* bias;  // (D)
  float rate;         // exp(A_log)
  bool bounded;
  float lower_bound;
  float* state;  // (D, D), updated
  float* o;      // (T, D), rows `o_stride` apart
  int64_t o_stride;
  int64_t tokens;
  int64_t dim;  // D
  float* work;  // kda_work_floats(D), 64-byte aligned
};
inline constexpr int64_t kKdaChunk = 64;    // tokens of a chunk
inline constexpr int64_t kKdaBlock = 16;    // tokens of a block of its triangular matrices
inline constexpr int64_t kKdaMinChunk = 4;  // fewer tokens run one by one
constexpr int64_t kda_work_floats(int64_t dim) {
  const int64_t width = padded(dim);
  return width * width + (7 * kKdaChunk + kKdaBlock + 1) * width + (2 * kKdaChunk + 1) * kKdaChunk;
}

// One head of latent attention for one query, in the absorbed form: the query is brought into the
// space of the latents, where all heads share keys and values.
struct AbsorbedHead {
  const float* q;          // (N + R)
  const void* key_rows;    // (N, C) weights of the keys
  const void* value_rows;  // (V, C)
  DType weights;           // kBf16 or kF32
  const void* cache;       // (keys, C + R) BF16
  int64_t cache_stride;
  int64_t keys;
  int64_t latent, key_dim, shared_dim, value_dim;  // C, N, R, V
  float scale;
  float* o;     // (V)
  float* work;  // absorbed_work_floats
};
inline constexpr int64_t kAbsorbedKeys = 64;  // keys between two looks at the maximum
constexpr int64_t absorbed_work_floats(int64_t latent, int64_t shared) {
  return padded(latent + shared) + padded(latent) + kAbsorbedKeys;
}

// One head of latent attention for many queries and one block of keys, in the direct form: a step
// of a softmax whose maximum and sums are carried from block to block.
struct AttentionBlock {
  const float* q;  // (T, N + R), rows `q_stride` apart
  int64_t q_stride;
  const float* kv;  // (keys, N + V), rows `kv_stride` apart
  int64_t kv_stride;
  const void* shared_key;  // (keys, R) BF16, rows `cache_stride` apart
  int64_t cache_stride;
  int64_t queries, keys;
  int64_t first_visible;  // query t sees keys [0, first_visible + t]; may be negative
  int64_t key_dim, shared_dim, value_dim;
  float scale;
  float *max, *total;  // (T), updated
  float* sum;          // (T, padded(V)), updated
  float* work;         // attention_work_floats
};
inline constexpr int64_t kAttentionKeys = 128;    // keys of a block, at most
inline constexpr int64_t kAttentionQueries = 32;  // queries at a time
constexpr int64_t attention_work_floats(int64_t key_dim, int64_t shared, int64_t value_dim) {
  return (key_dim + shared) * kAttentionKeys + kAttentionKeys * padded(value_dim) +
         kAttentionQueries * kAttentionKeys;
}

struct DenseKernels {
  // y = x, either of BF16 and F32.
  void (*convert)(const void* x, DType x_dtype, int64_t n, DType y_dtype, void* y);
  // y += x
  void (*add)(const float* x, int64_t n, float* y);
  // y = x / sqrt(mean(x^2) + eps) * gain
  void (*rmsnorm)(const float* x, int64_t n, const float* gain, float eps, DType y_dtype, void* y);
  void (*residual_mix)(const float* const* candidates, int count, const float* score_weight,
                       float eps, int64_t n, float* y);
  void (*activate)(const float* gate, const float* up, const Activation& activation, int64_t n,
                   DType y_dtype, void* y);
  // y = x * sigmoid(gate)
  void (*sigmoid_gate)(const float* x, const float* gate, int64_t n, DType y_dtype, void* y);
  // y = x / sqrt(mean(x^2) + eps) * gain * sigmoid(gate)
  void (*gated_norm)(const float* x, const float* gate, int64_t n, const float* gain, float eps,
                     DType y_dtype, void* y);
  void (*short_conv)(const ConvPiece& piece);
  void (*kda)(const KdaHead& head);
  void (*absorbed_attention)(const AbsorbedHead& head);
  void (*attention_block)(const AttentionBlock& block);
};

// Throws Error{kUnsupported} for a level that this build lacks.
const DenseKernels& dense_kernels(SimdLevel level);

}  // namespace halfbyte::cpu

// Latent attention, the direct form: keys and values of every cached row, one head at a time; the
// softmax runs over the rows as they come, with the running maximum taken out.
#include <cmath>
#include <limits>
#include <vector>

#include "formats/decode.h"
#include "ops/ref/ref_linear.h"
#include "ops/ref/view.h"

namespace halfbyte::ref {
namespace {

class RefLatentAttention : public LatentAttention {
 public:
  RefLatentAttention(const MatrixView& kv_b, const LatentAttentionShape& shape)
      : shape_(shape),
        weight_(static_cast<size_t>(kv_b.rows * kv_b.cols)),
        key_value_(static_cast<size_t>(shape.key_dim + shape.value_dim)),
        states_(static_cast<size_t>(shape.max_queries)) {
    for (int64_t r = 0; r < kv_b.rows; ++r) decode_row(kv_b, r, &weight_[r * kv_b.cols]);
    for (State& state : states_) state.sum.resize(static_cast<size_t>(shape.value_dim));
  }

  size_t weight_bytes() const override { return weight_.size() * sizeof(double); }
  size_t workspace_bytes() const override { return 0; }

  void run(TensorView q, TensorView cache, TensorView o, void*) const override {
    for (int h = 0; h < shape_.heads; ++h) run_head(h, q, cache, o);
  }

 private:
  struct State {
    double max, total;
    std::vector<double> sum;  // (V)
  };

  void run_head(int head, TensorView q, TensorView cache, TensorView o) const {
    const int64_t tokens = q.rows, past = cache.rows - tokens;
    const int key_dim = shape_.key_dim, shared = shape_.shared_key_dim, latent = shape_.latent;
    const int value_dim = shape_.value_dim;
    const double scale = 1.0 / std::sqrt(static_cast<double>(key_dim + shared));
    const int64_t q_begin = int64_t{head} * (key_dim + shared);
    for (int64_t t = 0; t < tokens; ++t) {
      states_[t].max = -std::numeric_limits<double>::infinity();
      states_[t].total = 0;
      std::fill(states_[t].sum.begin(), states_[t].sum.end(), 0.0);
    }
    for (int64_t s = 0; s < cache.rows; ++s) {
      // [k | v] = c W^T
      const double* w = &weight_[int64_t{head} * (key_dim + value_dim) * latent];
      for (int i = 0; i < key_dim + value_dim; ++i, w += latent) {
        key_value_[i] = 0;
        for (int c = 0; c < latent; ++c) key_value_[i] += w[c] * at(cache, s, c);
      }
      for (int64_t t = s > past ? s - past : 0; t < tokens; ++t) {
        double score = 0;
        for (int d = 0; d < key_dim; ++d) score += at(q, t, q_begin + d) * key_value_[d];
        for (int d = 0; d < shared; ++d)
          score += at(q, t, q_begin + key_dim + d) * at(cache, s, latent + d);
        score *= scale;
        State& state = states_[t];
        const double max = score > state.max ? score : state.max;
        const double keep = std::exp(state.max - max), p = std::exp(score - max);
        state.max = max;
        state.total = state.total * keep + p;
        for (int d = 0; d < value_dim; ++d)
          state.sum[d] = state.sum[d] * keep + p * key_value_[key_dim + d];
      }
    }
    for (int64_t t = 0; t < tokens; ++t)
      for (int d = 0; d < value_dim; ++d)
        put(o, t, int64_t{head} * value_dim + d, states_[t].sum[d] / states_[t].total);
  }

  LatentAttentionShape shape_;
  std::vector<double> weight_;  // (H * (N + V), C)
  mutable std::vector<double> key_value_;
  mutable std::vector<State> states_;
};

}  // namespace

std::unique_ptr<LatentAttention> load_ref_latent_attention(const MatrixView& kv_b,
                                                           const LatentAttentionShape& shape) {
  return std::make_unique<RefLatentAttention>(kv_b, shape);
}

}  // namespace halfbyte::ref

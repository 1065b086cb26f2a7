#include "ops/ref/ref_ops.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "ops/activation.h"
#include "ops/ref/ref_linear.h"
#include "ops/ref/view.h"
#include "ops/router.h"

namespace halfbyte::ref {
namespace {

// 1 / sqrt(mean(x^2) + eps) of columns [begin, begin + count) of a row.
double inverse_rms(const TensorView& x, int64_t row, int64_t begin, int64_t count, double eps) {
  double sum = 0;
  for (int64_t c = begin; c < begin + count; ++c) sum += at(x, row, c) * at(x, row, c);
  return 1.0 / std::sqrt(sum / static_cast<double>(count) + eps);
}

}  // namespace

std::unique_ptr<Linear> RefOps::load_linear(const MatrixView& weight) {
  return load_ref_linear(weight);
}

std::unique_ptr<LatentAttention> RefOps::load_latent_attention(const MatrixView& kv_b,
                                                               const LatentAttentionShape& shape) {
  return load_ref_latent_attention(kv_b, shape);
}

void RefOps::embed(TensorView table, const int32_t* ids, TensorView y) {
  for (int64_t t = 0; t < y.rows; ++t)
    for (int64_t c = 0; c < y.cols; ++c) put(y, t, c, at(table, ids[t], c));
}

void RefOps::copy(TensorView x, TensorView y) {
  for (int64_t t = 0; t < y.rows; ++t)
    for (int64_t c = 0; c < y.cols; ++c) put(y, t, c, at(x, t, c));
}

void RefOps::add(TensorView x, TensorView y) {
  for (int64_t t = 0; t < y.rows; ++t)
    for (int64_t c = 0; c < y.cols; ++c) put(y, t, c, at(y, t, c) + at(x, t, c));
}

void RefOps::rmsnorm(TensorView x, const float* gain, float eps, TensorView y) {
  for (int64_t t = 0; t < y.rows; ++t) {
    const double scale = inverse_rms(x, t, 0, x.cols, eps);
    for (int64_t c = 0; c < y.cols; ++c) put(y, t, c, at(x, t, c) * scale * gain[c]);
  }
}

void RefOps::residual_mix(std::span<const TensorView> candidates, const float* score_weight,
                          float eps, TensorView y) {
  HB_CHECK(!candidates.empty() && candidates.size() <= kMaxCandidates);
  std::array<double, kMaxCandidates> p{};
  for (int64_t t = 0; t < y.rows; ++t) {
    for (size_t j = 0; j < candidates.size(); ++j) {
      const double scale = inverse_rms(candidates[j], t, 0, y.cols, eps);
      p[j] = 0;
      for (int64_t c = 0; c < y.cols; ++c)
        p[j] += at(candidates[j], t, c) * scale * score_weight[c];
    }
    const double max = *std::max_element(p.begin(), p.begin() + candidates.size());
    double total = 0;
    for (size_t j = 0; j < candidates.size(); ++j) total += p[j] = std::exp(p[j] - max);
    for (int64_t c = 0; c < y.cols; ++c) {
      double sum = 0;
      for (size_t j = 0; j < candidates.size(); ++j) sum += p[j] / total * at(candidates[j], t, c);
      put(y, t, c, sum);
    }
  }
}

void RefOps::activate(TensorView gate, TensorView up, const Activation& activation, TensorView y) {
  for (int64_t t = 0; t < y.rows; ++t)
    for (int64_t c = 0; c < y.cols; ++c)
      put(y, t, c, halfbyte::activate(activation, at(gate, t, c), at(up, t, c)));
}

void RefOps::sigmoid_gate(TensorView x, TensorView gate, TensorView y) {
  for (int64_t t = 0; t < y.rows; ++t)
    for (int64_t c = 0; c < y.cols; ++c) put(y, t, c, at(x, t, c) * sigmoid(at(gate, t, c)));
}

void RefOps::route(TensorView logits, const float* bias, const RouterRule& rule, int32_t* ids,
                   float* weights) {
  for (int64_t t = 0; t < logits.rows; ++t)
    route_token<double>(logits.row<float>(t), bias, rule, ids + t * rule.top_k,
                        weights + t * rule.top_k);
}

void RefOps::short_conv(TensorView u, const float* taps, int width, TensorView state,
                        TensorView y) {
  const int64_t past = width - 1;
  // Row t of the history of this call: the state's rows, then those of u.
  const auto input = [&](int64_t t, int64_t c) {
    return t < past ? at(state, t, c) : at(u, t - past, c);
  };
  for (int64_t t = 0; t < u.rows; ++t)
    for (int64_t c = 0; c < u.cols; ++c) {
      double sum = 0;
      for (int j = 0; j < width; ++j) sum += double{taps[j * u.cols + c]} * input(t + j, c);
      put(y, t, c, sum * sigmoid(sum));
    }
  for (int64_t r = 0; r < past; ++r)
    for (int64_t c = 0; c < u.cols; ++c) put(state, r, c, input(u.rows + r, c));
}

size_t RefOps::kda_workspace_bytes(const KdaShape& shape) const {
  return 4 * static_cast<size_t>(shape.head_dim) * sizeof(double);
}

void RefOps::kda(const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs,
                 float* state, TensorView o, void* workspace) {
  const int64_t dim = shape.head_dim;
  double* q = static_cast<double*>(workspace);  // (D) q^
  double* k = q + dim;                          // (D) k^
  double* decay = k + dim;                      // (D) exp(g)
  double* delta = decay + dim;                  // (D) v - S^T k^
  const auto normalise = [&](const TensorView& x, int64_t t, int64_t begin, double scale,
                             double* out) {
    double sum = 1e-6;
    for (int64_t d = 0; d < dim; ++d) sum += at(x, t, begin + d) * at(x, t, begin + d);
    for (int64_t d = 0; d < dim; ++d) out[d] = at(x, t, begin + d) / std::sqrt(sum) * scale;
  };
  for (int64_t h = 0; h < shape.heads; ++h) {
    const int64_t begin = h * dim;
    float* s = state + h * dim * dim;  // (D, D) [key][value]
    const double rate = std::exp(double{weights.log_decay[h]});
    for (int64_t t = 0; t < o.rows; ++t) {
      normalise(inputs.q, t, begin, 1.0 / std::sqrt(static_cast<double>(dim)), q);
      normalise(inputs.k, t, begin, 1.0, k);
      for (int64_t d = 0; d < dim; ++d) {
        const double z = at(inputs.decay, t, begin + d) + weights.decay_bias[begin + d];
        const double g = shape.gate_lower_bound
                             ? double{*shape.gate_lower_bound} * sigmoid(rate * z)
                             : -rate * softplus(z);
        decay[d] = std::exp(g);
      }
      const double beta = sigmoid(at(inputs.strength, t, h));
      for (int64_t j = 0; j < dim; ++j) {
        delta[j] = at(inputs.v, t, begin + j);
        for (int64_t d = 0; d < dim; ++d) delta[j] -= decay[d] * s[d * dim + j] * k[d];
      }
      for (int64_t d = 0; d < dim; ++d)
        for (int64_t j = 0; j < dim; ++j)
          s[d * dim + j] = static_cast<float>(decay[d] * s[d * dim + j] + beta * k[d] * delta[j]);
      for (int64_t j = 0; j < dim; ++j) {
        double sum = 0;
        for (int64_t d = 0; d < dim; ++d) sum += double{s[d * dim + j]} * q[d];
        put(o, t, begin + j, sum);
      }
    }
  }
}

void RefOps::gated_head_norm(TensorView o, TensorView gate, const float* gain, int head_dim,
                             float eps, TensorView y) {
  for (int64_t t = 0; t < y.rows; ++t)
    for (int64_t begin = 0; begin < y.cols; begin += head_dim) {
      const double scale = inverse_rms(o, t, begin, head_dim, eps);
      for (int64_t d = 0; d < head_dim; ++d)
        put(y, t, begin + d,
            at(o, t, begin + d) * scale * gain[d] * sigmoid(at(gate, t, begin + d)));
    }
}

}  // namespace halfbyte::ref

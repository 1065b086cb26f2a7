#include "ops/cpu/cpu_ops.h"

#include <array>
#include <cmath>

#include "base/check.h"
#include "ops/cpu/cpu_linear.h"
#include "ops/cpu/pieces.h"
#include "ops/router.h"

namespace halfbyte::cpu {
namespace {

char* element(const TensorView& view, int64_t row, int64_t col) {
  return static_cast<char*>(view.data) + (row * view.stride + col) * dtype_bytes(view.dtype);
}

}  // namespace

CpuOps::CpuOps(CpuDevice& device) : device_(device), kernels_(dense_kernels(device.level())) {}

std::unique_ptr<Linear> CpuOps::load_linear(const MatrixView& weight) {
  return load_cpu_linear(device_, weight);
}

std::unique_ptr<LatentAttention> CpuOps::load_latent_attention(const MatrixView& kv_b,
                                                               const LatentAttentionShape& shape) {
  return load_cpu_latent_attention(device_, kv_b, shape);
}

void CpuOps::embed(TensorView table, const int32_t* ids, TensorView y) {
  for_pieces(device_.pool(), y.rows, y.rows * y.cols, [&](int64_t t, int) {
    kernels_.convert(element(table, ids[t], 0), table.dtype, y.cols, y.dtype, element(y, t, 0));
  });
}

void CpuOps::copy(TensorView x, TensorView y) {
  for_row_pieces(device_.pool(), y.rows, y.cols, [&](int64_t t, int64_t c, int64_t count) {
    kernels_.convert(element(x, t, c), x.dtype, count, y.dtype, element(y, t, c));
  });
}

void CpuOps::add(TensorView x, TensorView y) {
  for_row_pieces(device_.pool(), y.rows, y.cols, [&](int64_t t, int64_t c, int64_t count) {
    kernels_.add(x.row<float>(t) + c, count, y.row<float>(t) + c);
  });
}

void CpuOps::rmsnorm(TensorView x, const float* gain, float eps, TensorView y) {
  for_pieces(device_.pool(), y.rows, y.rows * y.cols, [&](int64_t t, int) {
    kernels_.rmsnorm(x.row<float>(t), y.cols, gain, eps, y.dtype, element(y, t, 0));
  });
}

void CpuOps::residual_mix(std::span<const TensorView> candidates, const float* score_weight,
                          float eps, TensorView y) {
  HB_CHECK(!candidates.empty() && candidates.size() <= kMaxCandidates);
  const int count = static_cast<int>(candidates.size());
  for_pieces(device_.pool(), y.rows, count * y.rows * y.cols, [&](int64_t t, int) {
    std::array<const float*, kMaxCandidates> rows;
    for (int j = 0; j < count; ++j) rows[j] = candidates[j].row<float>(t);
    kernels_.residual_mix(rows.data(), count, score_weight, eps, y.cols, y.row<float>(t));
  });
}

void CpuOps::activate(TensorView gate, TensorView up, const Activation& activation, TensorView y) {
  for_row_pieces(device_.pool(), y.rows, y.cols, [&](int64_t t, int64_t c, int64_t count) {
    kernels_.activate(gate.row<float>(t) + c, up.row<float>(t) + c, activation, count, y.dtype,
                      element(y, t, c));
  });
}

void CpuOps::sigmoid_gate(TensorView x, TensorView gate, TensorView y) {
  for_row_pieces(device_.pool(), y.rows, y.cols, [&](int64_t t, int64_t c, int64_t count) {
    kernels_.sigmoid_gate(x.row<float>(t) + c, gate.row<float>(t) + c, count, y.dtype,
                          element(y, t, c));
  });
}

void CpuOps::route(TensorView logits, const float* bias, const RouterRule& rule, int32_t* ids,
                   float* weights) {
  const int64_t cost = logits.rows * logits.cols * rule.top_k;
  for_pieces(device_.pool(), logits.rows, cost, [&](int64_t t, int) {
    route_token<float>(logits.row<float>(t), bias, rule, ids + t * rule.top_k,
                       weights + t * rule.top_k);
  });
}

void CpuOps::short_conv(TensorView u, const float* taps, int width, TensorView state,
                        TensorView y) {
  HB_CHECK(width >= 2 && width <= kMaxConvWidth && state.rows == width - 1);
  constexpr int64_t kColumns = 512;
  const int64_t pieces = (u.cols + kColumns - 1) / kColumns;
  for_pieces(device_.pool(), pieces, u.rows * u.cols, [&](int64_t i, int) {
    const int64_t c = i * kColumns;
    kernels_.short_conv({.u = u.row<float>(0) + c,
                         .u_stride = u.stride,
                         .taps = taps + c,
                         .taps_stride = u.cols,
                         .state = state.row<float>(0) + c,
                         .state_stride = state.stride,
                         .y = y.row<float>(0) + c,
                         .y_stride = y.stride,
                         .tokens = u.rows,
                         .columns = u.cols - c < kColumns ? u.cols - c : kColumns,
                         .width = width});
  });
}

size_t CpuOps::kda_workspace_bytes(const KdaShape& shape) const {
  return static_cast<size_t>(device_.pool().size()) * kda_work_floats(shape.head_dim) *
         sizeof(float);
}

void CpuOps::kda(const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs,
                 float* state, TensorView o, void* workspace) {
  const int64_t dim = shape.head_dim;
  for (const TensorView& view : {inputs.k, inputs.v, inputs.decay})
    HB_CHECK(view.stride == inputs.q.stride);
  for_pieces(device_.pool(), shape.heads, o.rows * shape.width() * dim, [&](int64_t h, int thread) {
    const int64_t begin = h * dim;
    kernels_.kda({.q = inputs.q.row<float>(0) + begin,
                  .k = inputs.k.row<float>(0) + begin,
                  .v = inputs.v.row<float>(0) + begin,
                  .decay = inputs.decay.row<float>(0) + begin,
                  .stride = inputs.q.stride,
                  .strength = inputs.strength.row<float>(0) + h,
                  .strength_stride = inputs.strength.stride,
                  .bias = weights.decay_bias + begin,
                  .rate = std::exp(weights.log_decay[h]),
                  .bounded = shape.gate_lower_bound.has_value(),
                  .lower_bound = shape.gate_lower_bound.value_or(0),
                  .state = state + h * dim * dim,
                  .o = o.row<float>(0) + begin,
                  .o_stride = o.stride,
                  .tokens = o.rows,
                  .dim = dim,
                  .work = static_cast<float*>(workspace) + thread * kda_work_floats(dim)});
  });
}

void CpuOps::gated_head_norm(TensorView o, TensorView gate, const float* gain, int head_dim,
                             float eps, TensorView y) {
  // Eight heads a piece.
  const int64_t heads = y.cols / head_dim, pieces = (heads + 7) / 8;
  for_pieces(device_.pool(), y.rows * pieces, y.rows * y.cols, [&](int64_t i, int) {
    const int64_t t = i / pieces, first = i % pieces * 8;
    for (int64_t h = first; h < heads && h < first + 8; ++h)
      kernels_.gated_norm(o.row<float>(t) + h * head_dim, gate.row<float>(t) + h * head_dim,
                          head_dim, gain, eps, y.dtype, element(y, t, h * head_dim));
  });
}

}  // namespace halfbyte::cpu

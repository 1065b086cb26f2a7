// Rows: norms, mixes, gates, activations, convolution (contracts: dense.h), in the words of a
// level. Included inside the namespace and target region of a level, behind ops/cpu/rows.inl.h.

HB_INLINE float inverse_rms(const float* x, int64_t n, float eps) {
  const float sum = sum_lanes(n, [&](int64_t i, int64_t count) {
    const F32x16 v = load_some(x + i, count);
    return mul(v, v);
  });
  return 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
}

void convert(const void* x, DType x_dtype, int64_t n, DType y_dtype, void* y) {
  for_lanes(n, [&](int64_t i, int64_t count) {
    store_any(load_any(x, x_dtype, i, count), y_dtype, y, i, count);
  });
}

void add_row(const float* x, int64_t n, float* y) {
  for_lanes(n, [&](int64_t i, int64_t count) {
    store_some(add(load_some(y + i, count), load_some(x + i, count)), count, y + i);
  });
}

void rmsnorm(const float* x, int64_t n, const float* gain, float eps, DType y_dtype, void* y) {
  const F32x16 scale = broadcast(inverse_rms(x, n, eps));
  for_lanes(n, [&](int64_t i, int64_t count) {
    const F32x16 normed = mul(load_some(x + i, count), scale);
    store_any(mul(normed, load_some(gain + i, count)), y_dtype, y, i, count);
  });
}

void gated_norm(const float* x, const float* gate, int64_t n, const float* gain, float eps,
                DType y_dtype, void* y) {
  const F32x16 scale = broadcast(inverse_rms(x, n, eps));
  for_lanes(n, [&](int64_t i, int64_t count) {
    const F32x16 normed = mul(mul(load_some(x + i, count), scale), load_some(gain + i, count));
    store_any(mul(normed, sigmoid(load_some(gate + i, count))), y_dtype, y, i, count);
  });
}

void residual_mix(const float* const* candidates, int count, const float* score_weight, float eps,
                  int64_t n, float* y) {
  constexpr int kMax = 64;  // Ops::kMaxCandidates
  float p[kMax];
  float max = 0;
  for (int j = 0; j < count; ++j) {
    const float* v = candidates[j];
    const float dot = sum_lanes(n, [&](int64_t i, int64_t some) {
      return mul(load_some(v + i, some), load_some(score_weight + i, some));
    });
    p[j] = dot * inverse_rms(v, n, eps);
    max = j == 0 || p[j] > max ? p[j] : max;
  }
  float total = 0;
  for (int j = 0; j < count; ++j) total += p[j] = std::exp(p[j] - max);
  for (int j = 0; j < count; ++j) p[j] /= total;
  for_lanes(n, [&](int64_t i, int64_t some) {
    F32x16 sum = zero();
    for (int j = 0; j < count; ++j)
      sum = fma(broadcast(p[j]), load_some(candidates[j] + i, some), sum);
    store_some(sum, some, y + i);
  });
}

void sigmoid_gate(const float* x, const float* gate, int64_t n, DType y_dtype, void* y) {
  for_lanes(n, [&](int64_t i, int64_t count) {
    store_any(mul(load_some(x + i, count), sigmoid(load_some(gate + i, count))), y_dtype, y, i,
              count);
  });
}

void activate_row(const float* gate, const float* up, const Activation& activation, int64_t n,
                  DType y_dtype, void* y) {
  constexpr int64_t kRun = 256;
  float h[kRun];
  for (int64_t i = 0; i < n; i += kRun) {
    const int64_t count = n - i < kRun ? n - i : kRun;
    activate_any(activation, {.gate = gate + i, .up = up + i}, count, h);
    convert(h, DType::kF32, count, y_dtype, static_cast<char*>(y) + i * dtype_bytes(y_dtype));
  }
}

void short_conv(const ConvPiece& p) {
  for_lanes(p.columns, [&](int64_t c, int64_t count) {
    F32x16 taps[kMaxConvWidth], history[kMaxConvWidth];
    const int past = p.width - 1;
    for (int j = 0; j <= past; ++j) taps[j] = load_some(p.taps + j * p.taps_stride + c, count);
    for (int j = 0; j < past; ++j) history[j] = load_some(p.state + j * p.state_stride + c, count);
    for (int64_t t = 0; t < p.tokens; ++t) {
      const F32x16 u = load_some(p.u + t * p.u_stride + c, count);
      F32x16 sum = mul(taps[past], u);
      for (int j = 0; j < past; ++j) sum = fma(taps[j], history[j], sum);
      store_some(mul(sum, sigmoid(sum)), count, p.y + t * p.y_stride + c);
      for (int j = 0; j + 1 < past; ++j) history[j] = history[j + 1];
      history[past - 1] = u;
    }
    for (int j = 0; j < past; ++j) store_some(history[j], count, p.state + j * p.state_stride + c);
  });
}

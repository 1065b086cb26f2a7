// The algorithm of ops/activation_kernels.h, once, in the words of a level. Included inside the
// namespace and the target region of a level, after simd/LEVEL.inl.h.
//
// e^x = s (1 + q): s = 2^n, n = round(x / ln 2), q = e^r - 1 with r = x - n ln 2 in [-0.35, 0.35],
// by the Taylor series to r^8 (the next term is below 2^-30 of q). Then e^x - 1 = s q + (s - 1),
// whose two terms never cancel by more than half; tanh is made of it, so that it keeps its digits
// near zero.

struct ExpParts {
  F32x16 s, q;
};

// Below this, e^x is under the smallest normal number.
constexpr float kExpUnderflow = -87.33f;

// x <= 0; a NaN stays one.
HB_INLINE ExpParts exp_parts(F32x16 x) {
  const F32x16 clamped = max(broadcast(kExpUnderflow), x);
  const F32x16 n = round(mul(clamped, broadcast(1.44269504f)));
  // ln 2 in two parts: the first has few bits, so that n times it is exact.
  const F32x16 r = fma(n, broadcast(2.12194440e-4f), fma(n, broadcast(-0.693359375f), clamped));
  F32x16 q = broadcast(1.0f / 40320);
  q = fma(q, r, broadcast(1.0f / 5040));
  q = fma(q, r, broadcast(1.0f / 720));
  q = fma(q, r, broadcast(1.0f / 120));
  q = fma(q, r, broadcast(1.0f / 24));
  q = fma(q, r, broadcast(1.0f / 6));
  q = fma(q, r, broadcast(0.5f));
  q = fma(q, mul(r, r), r);
  return {power_of_two(n), q};
}

HB_INLINE F32x16 negative_abs(F32x16 a) { return sub(zero(), abs(a)); }

// 1 / (1 + e^-z) from e = e^-|z|.
HB_INLINE F32x16 sigmoid(F32x16 z) {
  const F32x16 x = negative_abs(z);
  const ExpParts parts = exp_parts(x);
  const F32x16 e = select_less(x, broadcast(kExpUnderflow), zero(), fma(parts.s, parts.q, parts.s));
  const F32x16 one = broadcast(1.0f);
  return div(select_less(z, zero(), e, one), add(one, e));
}

// tanh |z| = -d / (2 + d), d = e^(-2|z|) - 1.
HB_INLINE F32x16 tanh(F32x16 z) {
  const F32x16 a = negative_abs(z);
  const ExpParts parts = exp_parts(add(a, a));
  const F32x16 d = fma(parts.s, parts.q, sub(parts.s, broadcast(1.0f)));
  return copy_sign(div(d, add(broadcast(2.0f), d)), z);
}

struct Swiglu {
  HB_INLINE F32x16 operator()(F32x16 g, F32x16 u) const { return mul(mul(g, sigmoid(g)), u); }
};

struct SwigluClamped {
  float alpha, limit, up_bias;
  HB_INLINE F32x16 operator()(F32x16 g, F32x16 u) const {
    g = min(broadcast(limit), g);
    u = min(broadcast(limit), max(broadcast(-limit), u));
    return mul(mul(g, sigmoid(mul(broadcast(alpha), g))), add(u, broadcast(up_bias)));
  }
};

// (1 + tanh z) / 2 = sigmoid(2z), which does not cancel for negative z.
struct GegluTanh {
  HB_INLINE F32x16 operator()(F32x16 g, F32x16 u) const {
    constexpr float kTwoRoots = 1.5957691216f;  // 2 sqrt(2 / pi)
    const F32x16 inner = mul(g, fma(mul(g, g), broadcast(0.044715f), broadcast(1.0f)));
    return mul(mul(g, sigmoid(mul(broadcast(kTwoRoots), inner))), u);
  }
};

struct Relu2 {
  HB_INLINE F32x16 operator()(F32x16, F32x16 u) const {
    const F32x16 positive = max(zero(), u);
    return mul(positive, positive);
  }
};

struct Situ {
  float beta, linear_beta;
  bool linear;  // the second factor is u itself
  HB_INLINE F32x16 operator()(F32x16 g, F32x16 u) const {
    const F32x16 gate = mul(mul(broadcast(beta), tanh(div(g, broadcast(beta)))), sigmoid(g));
    if (linear) return mul(gate, u);
    return mul(gate, mul(broadcast(linear_beta), tanh(div(u, broadcast(linear_beta)))));
  }
};

// Some calls have 1 to 15 elements over: those go through a line of their own.
template <class Function>
void activate_all(const Function& function, bool gated, const ActivationInputs& in, int64_t count,
                  float* h) {
  const F32x16 gate_scale = broadcast(in.gate_scale), up_scale = broadcast(in.up_scale);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const F32x16 g = gated ? mul(load(in.gate + i), gate_scale) : zero();
    store(function(g, mul(load(in.up + i), up_scale)), h + i);
  }
  if (i == count) return;
  const size_t rest = static_cast<size_t>(count - i) * sizeof(float);
  float gate[16] = {}, up[16] = {};
  if (gated) std::memcpy(gate, in.gate + i, rest);
  std::memcpy(up, in.up + i, rest);
  store(function(mul(load(gate), gate_scale), mul(load(up), up_scale)), up);
  std::memcpy(h + i, up, rest);
}

inline void activate_any(const Activation& a, const ActivationInputs& in, int64_t count, float* h) {
  switch (a.kind) {
    case ActivationKind::kSwiglu:
      return activate_all(Swiglu{}, true, in, count, h);
    case ActivationKind::kSwigluClamped:
      return activate_all(SwigluClamped{a.alpha, a.limit, a.up_bias}, true, in, count, h);
    case ActivationKind::kGegluTanh:
      return activate_all(GegluTanh{}, true, in, count, h);
    case ActivationKind::kRelu2:
      return activate_all(Relu2{}, false, in, count, h);
    case ActivationKind::kSitu:
      return activate_all(Situ{a.beta, a.linear_beta.value_or(1.0f), !a.linear_beta}, true, in,
                          count, h);
  }
}

// act(gate, up) of the gated activations, in the precision of T (float or double).
//
//   swiglu          g sigmoid(g) u
//   swiglu_clamped  g' sigmoid(alpha g') (u' + up_bias), g' = min(g, limit), u' = clamp(u, +-limit)
//   geglu_tanh      g sigmoid(2z) u, z = sqrt(2/pi) (g + 0.044715 g^3): g/2 (1 + tanh z) u
//                   without the cancellation for negative z
//   situ            beta tanh(g/beta) sigmoid(g) linear_beta tanh(u/linear_beta)
//   relu2           max(0, u)^2, no gate
// A NaN stays a NaN. Checked: tests/unit/ops/activation_test.cpp.
#pragma once

#include <cmath>

#include "halfbyte/activation.h"

namespace halfbyte {

// 1 / (1 + e^-z), without overflow for either sign.
template <class T>
T sigmoid(T z) {
  const T e = std::exp(z < 0 ? z : -z);
  return (z < 0 ? e : T{1}) / (T{1} + e);
}

// log(1 + e^z), without overflow.
template <class T>
T softplus(T z) {
  return (z > 0 ? z : T{0}) + std::log1p(std::exp(z > 0 ? -z : z));
}

template <class T>
T activate(const Activation& a, T gate, T up) {
  switch (a.kind) {
    case ActivationKind::kSwiglu:
      return gate * sigmoid(gate) * up;
    case ActivationKind::kSwigluClamped: {
      const T limit = a.limit;
      const T g = gate > limit ? limit : gate;
      const T u = up > limit ? limit : (up < -limit ? -limit : up);
      return g * sigmoid(T{a.alpha} * g) * (u + T{a.up_bias});
    }
    case ActivationKind::kGegluTanh: {
      const T root = T(0.79788456080286535588);  // sqrt(2 / pi)
      return gate * sigmoid(2 * root * (gate + T(0.044715) * gate * gate * gate)) * up;
    }
    case ActivationKind::kRelu2:
      return up < 0 ? T{0} : up * up;
    case ActivationKind::kSitu: {
      const T beta = a.beta;
      const T u = a.linear_beta ? T{*a.linear_beta} * std::tanh(up / T{*a.linear_beta}) : up;
      return beta * std::tanh(gate / beta) * sigmoid(gate) * u;
    }
  }
  return T{0};
}

}  // namespace halfbyte

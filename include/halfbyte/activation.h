// The activations of gated MLPs, by name and parameters.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace halfbyte {

// act(gate, up), in fp32.
enum class ActivationKind {
  kSwiglu,         // silu(g) * u
  kSwigluClamped,  // g' = min(g, limit), u' = clamp(u, -limit, limit): g' * sigmoid(alpha g') * (u'
                   // + up_bias)
  kGegluTanh,      // gelu_tanh(g) * u
  kRelu2,          // max(0, u)^2; no gate matrix
  kSitu,           // beta tanh(g/beta) sigmoid(g) * linear_beta tanh(u/linear_beta)
};

struct Activation {
  ActivationKind kind = ActivationKind::kSwiglu;
  float beta = 4.0f;                         // kSitu; finite, > 0
  std::optional<float> linear_beta = 25.0f;  // kSitu; none: the second factor is u itself
  float alpha = 1.702f;                      // kSwigluClamped
  float limit = 7.0f;                        // kSwigluClamped; > 0
  float up_bias = 1.0f;                      // kSwigluClamped

  bool gated() const { return kind != ActivationKind::kRelu2; }
};

const char* name_of(
    ActivationKind kind);  // "swiglu", "swiglu_clamped", "geglu_tanh", "relu2", "situ"
Activation parse_activation(
    std::string_view name);  // those names, "silu" and "swiglu_oai" too; else Error{kInput}
void check_activation(
    const Activation& activation);  // Error{kInput} naming the parameter that is out of range

}  // namespace halfbyte

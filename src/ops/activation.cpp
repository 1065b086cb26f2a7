// Names of the activations and the ranges of their parameters. The formulas: ops/activation.h.
#include "halfbyte/activation.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

#include "halfbyte/error.h"

namespace halfbyte {

namespace {

constexpr std::array<std::pair<ActivationKind, const char*>, 5> kNames = {{
    {ActivationKind::kSwiglu, "swiglu"},
    {ActivationKind::kSwigluClamped, "swiglu_clamped"},
    {ActivationKind::kGegluTanh, "geglu_tanh"},
    {ActivationKind::kRelu2, "relu2"},
    {ActivationKind::kSitu, "situ"},
}};

void expect(bool good, const char* parameter, float value, const char* expected) {
  if (!good)
    throw Error(ErrorKind::kInput, fmt::format("activation {}", parameter),
                fmt::format("{}: expected {}", value, expected));
}

bool finite_and_positive(float value) { return std::isfinite(value) && value > 0; }

}  // namespace

const char* name_of(ActivationKind kind) {
  for (const auto& [known, name] : kNames)
    if (known == kind) return name;
  return "?";
}

Activation parse_activation(std::string_view name) {
  for (const auto& [kind, known] : kNames)
    if (name == known) return {.kind = kind};
  if (name == "silu") return {.kind = ActivationKind::kSwiglu};
  if (name == "swiglu_oai") return {.kind = ActivationKind::kSwigluClamped};
  throw Error(ErrorKind::kInput, "activation",
              fmt::format("unknown name \"{}\": expected swiglu (silu), swiglu_clamped "
                          "(swiglu_oai), geglu_tanh, relu2 or situ",
                          name));
}

void check_activation(const Activation& activation) {
  switch (activation.kind) {
    case ActivationKind::kSitu:
      expect(finite_and_positive(activation.beta), "beta", activation.beta,
             "a finite number above 0");
      if (activation.linear_beta)
        expect(finite_and_positive(*activation.linear_beta), "linear_beta", *activation.linear_beta,
               "a finite number above 0, or none");
      break;
    case ActivationKind::kSwigluClamped:
      expect(finite_and_positive(activation.limit), "limit", activation.limit,
             "a finite number above 0");
      expect(std::isfinite(activation.alpha), "alpha", activation.alpha, "a finite number");
      expect(std::isfinite(activation.up_bias), "up_bias", activation.up_bias, "a finite number");
      break;
    default:
      break;
  }
}

}  // namespace halfbyte

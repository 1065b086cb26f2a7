// BF16: the upper half of an fp32. sign 1, exponent 8 (bias 127), mantissa 7.
//
// Checked: tests/unit/formats/bf16_test.cpp (all codes; every rounding case around each code).
#pragma once

#include <bit>
#include <cstdint>

namespace halfbyte {

constexpr float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest, ties to even; what rounds above the largest finite value becomes Inf. A NaN
// stays a NaN of the same sign, made quiet.
constexpr uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace halfbyte

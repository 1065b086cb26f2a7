// E4M3FN: block scales of NVFP4 and elements of block FP8. sign bit 7, exponent bits 6..3 (bias 7),
// mantissa bits 2..0; no Inf, NaN is 0x7F and 0xFF.
//
//   value = (1 + m/8) 2^(e-7) for e > 0, (m/8) 2^-6 for e = 0;  largest 448 = 0x7E, smallest 2^-9
//
// Checked: tests/unit/formats/e4m3_test.cpp.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace halfbyte {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kE4m3Min = 0x1p-9f;  // smallest positive
inline constexpr uint8_t kE4m3MaxCode = 0x7E;

constexpr bool e4m3_is_nan(uint8_t code) { return (code & 0x7F) == 0x7F; }

constexpr float e4m3_to_float(uint8_t code) {
  const uint32_t magnitude = code & 0x7Fu;
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  if (magnitude == 0x7F) return std::numeric_limits<float>::quiet_NaN();
  if (magnitude >= 8) return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
  const float value = static_cast<float>(magnitude) * kE4m3Min;
  return sign != 0 ? -value : value;
}

inline constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code)
    values[static_cast<size_t>(code)] = e4m3_to_float(static_cast<uint8_t>(code));
  return values;
}();

// Round to nearest, ties to even; everything above 448, Inf too, becomes 448. The sign bit is
// copied. NaN gives NaN (0x7F or 0xFF): a quantiser must refuse it before.
constexpr uint8_t float_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7F;
  if (magnitude >= std::bit_cast<uint32_t>(kE4m3Max)) return sign | kE4m3MaxCode;
  if (magnitude >= std::bit_cast<uint32_t>(0x1p-6f)) {
    const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
    return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
  }
  // Multiples of 2^-9: adding 2^23 rounds at the unit, and leaves the integer in the low bits.
  const float steps = std::bit_cast<float>(magnitude) * 0x1p9f;
  return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(steps + 0x1p23f) & 0xFu));
}

}  // namespace halfbyte

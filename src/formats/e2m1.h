// E2M1: the 4-bit element of NVFP4 and MXFP4. sign bit 3, exponent bits 2..1 (bias 1), mantissa
// bit 0; no Inf, no NaN. Code 8 is negative zero.
//
//   code   0  1    2  3    4  5  6  7     + 8: the same, negative
//   value  0  0.5  1  1.5  2  3  4  6
//
// Packed: two codes a byte, the even column in the low nibble.
// Checked: tests/unit/formats/e2m1_test.cpp.
#pragma once

#include <array>
#include <cstdint>

namespace halfbyte {

inline constexpr std::array<float, 16> kE2m1Values = {0,    0.5f,  1,  1.5f,  2,  3,  4,  6,
                                                      -0.f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
inline constexpr float kE2m1Max = 6.0f;

// Only the low 4 bits of `code` count.
constexpr float e2m1_to_float(uint8_t code) { return kE2m1Values[code & 15]; }

// Round to nearest, ties to the even code, saturation at 6. The sign bit is set exactly for
// value < 0: -0.0 gives code 0, a small negative value code 8 (as ModelOpt writes it).
// NOTE: a NaN would fall through the ladder to the largest code; quantisers refuse NaN before.
constexpr uint8_t float_to_e2m1(float value) {
  const float magnitude = value < 0 ? -value : value;
  const uint8_t sign = value < 0 ? 8 : 0;
  // Bounds between neighbours; the bound itself belongs to the even code.
  if (magnitude <= 0.25f) return sign | 0;
  if (magnitude < 0.75f) return sign | 1;
  if (magnitude <= 1.25f) return sign | 2;
  if (magnitude < 1.75f) return sign | 3;
  if (magnitude <= 2.5f) return sign | 4;
  if (magnitude < 3.5f) return sign | 5;
  if (magnitude <= 5.0f) return sign | 6;
  return sign | 7;
}

// The code of column `column` in a packed row.
constexpr uint8_t e2m1_code_at(const uint8_t* packed_row, int64_t column) {
  return static_cast<uint8_t>((packed_row[column / 2] >> (column % 2 * 4)) & 15);
}

}  // namespace halfbyte

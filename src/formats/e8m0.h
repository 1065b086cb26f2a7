// E8M0: block scales of MXFP4. One byte e: value 2^(e-127). No sign, no zero, no Inf; 0xFF is NaN.
//
// NOTE: e = 0 is 2^-127, an fp32 subnormal; a plain shift into the exponent field would give 0.
// Checked: tests/unit/formats/e8m0_test.cpp.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace halfbyte {

inline constexpr uint8_t kE8m0Nan = 0xFF;
inline constexpr int kE8m0Bias = 127;

constexpr float e8m0_to_float(uint8_t code) {
  if (code == kE8m0Nan) return std::numeric_limits<float>::quiet_NaN();
  if (code == 0) return 0x1p-127f;
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

}  // namespace halfbyte

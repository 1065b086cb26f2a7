// The loops of quant_kernels.h: plain C++ that a compiler turns into vectors. Included once for
// each instruction set, inside an open target region and an anonymous namespace.
//
// NOTE: no sum is reordered (no -ffast-math) and no product is fused (-ffp-contract=off), so that
// all instruction sets give the same bytes: sums run over elements, vectors over blocks.

uint32_t max_bits_f32(const float* x, int64_t count) {
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu;
    most = most > bits ? most : bits;
  }
  return most;
}

uint32_t max_bits_bf16(const uint16_t* x, int64_t count) {
  uint16_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = static_cast<uint16_t>(x[i] & 0x7FFFu);
    most = most > bits ? most : bits;
  }
  return static_cast<uint32_t>(most) << 16;
}

void widen_bf16(const uint16_t* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i)
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(x[i]) << 16);
}

void max_scales(const float* x, int64_t blocks, float global_scale, float stretch,
                uint8_t* scales) {
  for (int64_t g = 0; g < blocks; ++g) {
    uint32_t most = 0;
    for (int i = 0; i < 16; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(x[g * 16 + i]) & 0x7FFFFFFFu;
      most = most > bits ? most : bits;
    }
    float s = std::bit_cast<float>(most) * stretch / (kE2m1Max * global_scale);
    s = s == 0 ? 1.0f : s;
    s = s < kE4m3Min ? kE4m3Min : s;
    scales[g] = float_to_e4m3(s);  // saturates at 448
  }
}

void transpose_magnitudes(const float* x, int64_t blocks, float global_scale, float* t) {
  for (int64_t g = 0; g < blocks; ++g)
    for (int i = 0; i < 16; ++i) {
      const float scaled = x[g * 16 + i] / global_scale;
      t[i * blocks + g] = scaled < 0 ? -scaled : scaled;
    }
}

// NOTE: no branch and no table: the grid of E2M1 has step 1/2 below 2, step 1 below 4, then step 2;
// adding 2^23 rounds to the unit, ties to even.
void squared_errors(const float* t, const float* scale, int64_t blocks, float* errors) {
  for (int64_t g = 0; g < blocks; ++g) errors[g] = 0;
  for (int i = 0; i < 16; ++i)
    for (int64_t g = 0; g < blocks; ++g) {
      const float magnitude = t[i * blocks + g];
      const float quotient = magnitude / scale[g];
      const float a = quotient < kE2m1Max ? quotient : kE2m1Max;
      const float step = a < 2 ? 0.5f : (a < 4 ? 1.0f : 2.0f);
      const float inverse = a < 2 ? 2.0f : (a < 4 ? 1.0f : 0.5f);
      const float nearest = ((a * inverse + 0x1p23f) - 0x1p23f) * step;
      const float error = magnitude - nearest * scale[g];
      errors[g] += error * error;
    }
}

// The code of a quotient: how many of the bounds between neighbours lie below its magnitude (the
// bound itself belongs to the even code).
inline uint32_t code_of(float quotient) {
  const float a = quotient < 0 ? -quotient : quotient;
  const uint32_t magnitude = static_cast<uint32_t>(a > 0.25f) + (a >= 0.75f) + (a > 1.25f) +
                             (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return magnitude | static_cast<uint32_t>(quotient < 0) << 3;
}

void encode(const float* x, const uint8_t* scales, int64_t blocks, float global_scale,
            uint8_t* codes) {
  for (int64_t g = 0; g < blocks; ++g) {
    const float product = kE4m3Values[scales[g]] * global_scale;
    // NOTE: a product that underflows to 0 would give NaN; whatever is in the block, it is zero.
    const float divisor = product > 0 ? product : std::numeric_limits<float>::infinity();
    uint32_t unpacked[16];
    for (int i = 0; i < 16; ++i) unpacked[i] = code_of(x[g * 16 + i] / divisor);
    for (int i = 0; i < 8; ++i)
      codes[g * 8 + i] = static_cast<uint8_t>(unpacked[2 * i] | unpacked[2 * i + 1] << 4);
  }
}

// NOTE: float_to_e4m3 without its branches: both roundings are made, and one is taken.
void encode_e4m3(const float* x, int64_t count, float divisor, uint8_t* codes) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i] / divisor);
    const uint32_t unsigned_bits = bits & 0x7FFFFFFFu;
    const uint32_t most = std::bit_cast<uint32_t>(kE4m3Max);
    const uint32_t magnitude = unsigned_bits < most ? unsigned_bits : most;
    const uint32_t normal = ((magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p9f + 0x1p23f) & 15u;
    const uint32_t code = magnitude < std::bit_cast<uint32_t>(0x1p-6f) ? subnormal : normal;
    codes[i] = static_cast<uint8_t>(code | ((bits >> 24) & 0x80u));
  }
}

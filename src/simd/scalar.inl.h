// The words of a level in plain C++: 16 lanes as a vector of which the compiler makes what the
// processor's baseline has. Activations are floats.

// NOTE: a vector of the compiler, not an array: arrays of 16 took GCC minutes to take apart.
typedef float Floats16 __attribute__((vector_size(64)));
struct F32x16 {
  Floats16 v;
};
struct F32Pairs {
  F32x16 even, odd;
};

template <class F>
HB_INLINE F32x16 each(F f) {
  F32x16 out;
  for (int r = 0; r < 16; ++r) out.v[r] = f(r);
  return out;
}

HB_INLINE F32x16 zero() { return {Floats16{}}; }
HB_INLINE F32x16 broadcast(float value) { return {value - Floats16{}}; }
HB_INLINE F32x16 load(const float* p) {
  F32x16 out;
  std::memcpy(&out.v, p, sizeof out.v);
  return out;
}
HB_INLINE F32x16 load_f32_line(const std::byte* p) {
  F32x16 out;
  std::memcpy(&out.v, p, sizeof out.v);
  return out;
}
HB_INLINE void store(F32x16 a, float* p) { std::memcpy(p, &a.v, sizeof a.v); }
HB_INLINE F32x16 add(F32x16 a, F32x16 b) { return {a.v + b.v}; }
HB_INLINE F32x16 sub(F32x16 a, F32x16 b) { return {a.v - b.v}; }
HB_INLINE F32x16 mul(F32x16 a, F32x16 b) { return {a.v * b.v}; }
HB_INLINE F32x16 div(F32x16 a, F32x16 b) { return {a.v / b.v}; }
// a b + c: here rounded twice, which is as accurate and far faster than a library's fma.
HB_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {a.v * b.v + c.v}; }

using Line = const std::byte*;
HB_INLINE Line load_line(const std::byte* p) { return p; }
HB_INLINE uint32_t lane(Line line, int r) {
  uint32_t bits;
  std::memcpy(&bits, line + r * 4, 4);
  return bits;
}
HB_INLINE uint8_t byte_at(const std::byte* p, int i) { return static_cast<uint8_t>(p[i]); }

HB_INLINE F32Pairs load_bf16_pairs(const std::byte* p) {
  return {each([&](int r) { return bf16_to_float(static_cast<uint16_t>(lane(p, r))); }),
          each([&](int r) { return bf16_to_float(static_cast<uint16_t>(lane(p, r) >> 16)); })};
}

// Exponent 5 bits (bias 16) and mantissa 3 bits, byte `group` of each lane, to 16 floats.
HB_INLINE F32x16 decode_ue5m3(const std::byte* line, int group) {
  return each([&](int r) {
    return std::bit_cast<float>((uint32_t{byte_at(line, 4 * r + group)} << 20) +
                                ((127u - 16u) << 23));
  });
}

// Byte `group` of each lane, e, to 2^(e-127).
HB_INLINE F32x16 decode_e8m0(const std::byte* line, int group) {
  return each([&](int r) { return e8m0_to_float(byte_at(line, 4 * r + group)); });
}

// Pair J of a line of E2M1 codes.
template <int J>
HB_INLINE F32Pairs decode_e2m1(Line p) {
  return {each([&](int r) { return kE2m1Values[lane(p, r) >> (4 * J) & 15]; }),
          each([&](int r) { return kE2m1Values[lane(p, r) >> (16 + 4 * J) & 15]; })};
}

// The pairs of columns 0, 1 (Half 0) or 2, 3 (Half 1) of a line of E4M3 codes.
template <int Half>
HB_INLINE F32Pairs decode_e4m3(Line p) {
  const auto column = [&](int col) {
    return each([&](int r) { return kE4m3Values[byte_at(p, fp8_code_offset(r, col))]; });
  };
  return {column(2 * Half), column(2 * Half + 1)};
}

template <class Pair>
HB_INLINE F32Pairs widen(F32Pairs w) {
  return w;
}

template <class FloatPair>
HB_INLINE F32x16 mac(F32x16 sum, F32Pairs w, const FloatPair* x) {
  return fma(w.odd, broadcast(x->odd), fma(w.even, broadcast(x->even), sum));
}

// The second operand if either is a NaN.
HB_INLINE F32x16 max(F32x16 a, F32x16 b) { return {a.v > b.v ? a.v : b.v}; }
HB_INLINE F32x16 min(F32x16 a, F32x16 b) { return {a.v < b.v ? a.v : b.v}; }
HB_INLINE F32x16 abs(F32x16 a) {
  return each([&](int r) { return std::fabs(a.v[r]); });
}
// a < b ? yes : no, lane by lane.
HB_INLINE F32x16 select_less(F32x16 a, F32x16 b, F32x16 yes, F32x16 no) {
  return {a.v < b.v ? yes.v : no.v};
}
HB_INLINE F32x16 copy_sign(F32x16 magnitude, F32x16 sign) {
  return each([&](int r) { return std::copysign(magnitude.v[r], sign.v[r]); });
}
HB_INLINE F32x16 round(F32x16 a) {
  return each([&](int r) { return std::nearbyint(a.v[r]); });
}
// 2^n for whole n in [-126, 127].
HB_INLINE F32x16 power_of_two(F32x16 n) {
  return each([&](int r) {
    // NOTE: a NaN has no integer; any will do, what it is multiplied with is a NaN.
    const int whole = n.v[r] >= -126.0f && n.v[r] <= 127.0f ? static_cast<int>(n.v[r]) : 0;
    return std::bit_cast<float>(static_cast<uint32_t>(whole + 127) << 23);
  });
}
// 16 floats to 8 pairs of BF16, nearest even.
HB_INLINE void round_to_bf16(F32x16 a, uint32_t* pairs) {
  float values[16];
  store(a, values);
  for (int p = 0; p < 8; ++p)
    pairs[p] = float_to_bf16(values[2 * p]) | uint32_t{float_to_bf16(values[2 * p + 1])} << 16;
}

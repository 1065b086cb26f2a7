// The words of a level in AVX-512 with BF16 and VBMI. 16 lanes, one a row of a tile.

struct F32x16 {
  __m512 v;
};
// Line of 16 dwords: the even column's BF16 in the low half, the odd one's in the high half.
struct Bf16Pairs {
  __m512i v;
};
struct F32Pairs {
  F32x16 even, odd;
};
using Bf16Pair = uint32_t;  // a packed pair of activations

// NOTE: loads of weights are opaque to the compiler, which would otherwise move the loads of an
// unrolled loop out of ascending order; a clang that did lost 40 % of the memory's bandwidth.
using Line = __m512i;
HB_INLINE Line load_line(const std::byte* p) {
  __m512i line;
  asm volatile("vmovdqa64 %1, %0" : "=v"(line) : "m"(*reinterpret_cast<const __m512i*>(p)));
  return line;
}

HB_INLINE F32x16 zero() { return {_mm512_setzero_ps()}; }
HB_INLINE F32x16 broadcast(float value) { return {_mm512_set1_ps(value)}; }
HB_INLINE F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
HB_INLINE F32x16 load_f32_line(const std::byte* p) { return {_mm512_castsi512_ps(load_line(p))}; }
HB_INLINE void store(F32x16 a, float* p) { _mm512_storeu_ps(p, a.v); }
HB_INLINE F32x16 add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
HB_INLINE F32x16 sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
HB_INLINE F32x16 mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
HB_INLINE F32x16 div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// a b + c, rounded once.
HB_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

HB_INLINE Bf16Pairs load_bf16_pairs(const std::byte* p) { return {load_line(p)}; }

// Byte `group` of every lane of a line moved to bit `to`, the others around it cut off.
HB_INLINE __m512i place_byte(const std::byte* line, int group, int to) {
  const __m512i lanes = *reinterpret_cast<const __m512i*>(line);
  const __m128i left = _mm_cvtsi32_si128(to - 8 * group), right = _mm_cvtsi32_si128(8 * group - to);
  return _mm512_and_si512(
      to >= 8 * group ? _mm512_sll_epi32(lanes, left) : _mm512_srl_epi32(lanes, right),
      _mm512_set1_epi32(0xFF << to));
}

// Exponent 5 bits (bias 16) and mantissa 3 bits, byte `group` of each lane, to 16 floats.
HB_INLINE F32x16 decode_ue5m3(const std::byte* line, int group) {
  return {_mm512_castsi512_ps(
      _mm512_add_epi32(place_byte(line, group, 20), _mm512_set1_epi32((127 - 16) << 23)))};
}

// Byte `group` of each lane, e, to 2^(e-127). Byte 0 would become 0: the maximum makes it the
// subnormal 2^-127.
HB_INLINE F32x16 decode_e8m0(const std::byte* line, int group) {
  return {_mm512_castsi512_ps(
      _mm512_max_epu32(place_byte(line, group, 23), _mm512_set1_epi32(1 << 22)))};
}

// BF16 of the 16 E2M1 codes, twice.
struct E2m1Table {
  alignas(64) uint16_t words[32];
  constexpr E2m1Table() : words() {
    for (int code = 0; code < 32; ++code)
      words[code] = float_to_bf16(e2m1_to_float(static_cast<uint8_t>(code & 15)));
  }
};
constexpr E2m1Table kE2m1Table;

// Pair J of a line of E2M1 codes.
// NOTE: vpermw looks at five bits of the index, a nibble and the lowest bit of the next one; the
// table holds its values twice, so that bit does not matter and no mask is needed.
template <int J>
HB_INLINE Bf16Pairs decode_e2m1(__m512i codes) {
  return {_mm512_permutexvar_epi16(J == 0 ? codes : _mm512_srli_epi16(codes, 4 * J),
                                   _mm512_load_si512(kE2m1Table.words))};
}

// Exact BF16 of the 128 E4M3 magnitudes, the high and the low bytes.
struct E4m3Table {
  alignas(64) uint8_t high[128], low[128];
  constexpr E4m3Table() : high(), low() {
    for (int code = 0; code < 128; ++code) {
      const uint16_t bits = float_to_bf16(e4m3_to_float(static_cast<uint8_t>(code)));
      high[code] = static_cast<uint8_t>(bits >> 8);
      low[code] = static_cast<uint8_t>(bits & 0xFF);
    }
  }
};
constexpr E4m3Table kE4m3Table;

// NOTE: vpermi2b looks at seven bits of a byte: the magnitude of a code.
HB_INLINE __m512i look_up_magnitudes(__m512i codes, const uint8_t* table) {
  return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes, _mm512_load_si512(table + 64));
}

// The pairs of columns 0, 1 (Half 0) or 2, 3 (Half 1) of a line of E4M3 codes.
template <int Half>
HB_INLINE Bf16Pairs decode_e4m3(__m512i codes) {
  const __m512i low = look_up_magnitudes(codes, kE4m3Table.low);
  // magnitude | (code & 0x80)
  const __m512i high = _mm512_ternarylogic_epi32(look_up_magnitudes(codes, kE4m3Table.high), codes,
                                                 _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);
  return {Half == 0 ? _mm512_unpacklo_epi8(low, high) : _mm512_unpackhi_epi8(low, high)};
}

template <class Pair>
HB_INLINE auto widen(Bf16Pairs w) {
  if constexpr (sizeof(Pair) == sizeof(Bf16Pair))
    return w;
  else
    return F32Pairs{{_mm512_castsi512_ps(_mm512_slli_epi32(w.v, 16))},
                    {_mm512_castsi512_ps(
                        _mm512_and_si512(w.v, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))))}};
}
template <class Pair>
HB_INLINE F32Pairs widen(F32Pairs w) {
  return w;
}

HB_INLINE F32x16 mac(F32x16 sum, Bf16Pairs w, const Bf16Pair* x) {
  return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(w.v),
                           reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(*x))))};
}
template <class FloatPair>
HB_INLINE F32x16 mac(F32x16 sum, F32Pairs w, const FloatPair* x) {
  return fma(w.odd, broadcast(x->odd), fma(w.even, broadcast(x->even), sum));
}

// The second operand if either is a NaN.
HB_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
HB_INLINE F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
HB_INLINE F32x16 abs(F32x16 a) { return {_mm512_abs_ps(a.v)}; }
// a < b ? yes : no, lane by lane.
HB_INLINE F32x16 select_less(F32x16 a, F32x16 b, F32x16 yes, F32x16 no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
HB_INLINE F32x16 copy_sign(F32x16 magnitude, F32x16 sign) {
  const __m512i bit = _mm512_set1_epi32(INT32_MIN);
  return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(bit, _mm512_castps_si512(sign.v),
                                                        _mm512_castps_si512(magnitude.v), 0xCA))};
}
HB_INLINE F32x16 round(F32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for whole n in [-126, 127].
HB_INLINE F32x16 power_of_two(F32x16 n) {
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
// 16 floats to 8 pairs of BF16, nearest even.
HB_INLINE void round_to_bf16(F32x16 a, uint32_t* pairs) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a.v)));
}

// The words of a level in AVX2, FMA and F16C: 16 lanes as two halves of 8. Activations are floats.

struct F32x16 {
  __m256 low, high;
};
// Line of 16 dwords: the even column's BF16 in the low half, the odd one's in the high half.
struct Bf16Pairs {
  __m256i low, high;
};
struct F32Pairs {
  F32x16 even, odd;
};

HB_INLINE F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
HB_INLINE F32x16 broadcast(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
HB_INLINE F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
HB_INLINE F32x16 load_f32_line(const std::byte* p) {
  return load(reinterpret_cast<const float*>(p));
}
HB_INLINE void store(F32x16 a, float* p) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}
HB_INLINE F32x16 add(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
HB_INLINE F32x16 sub(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
HB_INLINE F32x16 mul(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
HB_INLINE F32x16 div(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
// a b + c, rounded once.
HB_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

struct Line {
  __m256i low, high;
};
HB_INLINE Line load_line(const std::byte* p) {
  return {_mm256_load_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_load_si256(reinterpret_cast<const __m256i*>(p + 32))};
}

HB_INLINE Bf16Pairs load_bf16_pairs(const std::byte* p) {
  const Line line = load_line(p);
  return {line.low, line.high};
}

// Byte `group` of every lane moved to bit `to`, the others around it cut off.
HB_INLINE __m256i place_byte(__m256i lanes, int group, int to) {
  const __m128i left = _mm_cvtsi32_si128(to - 8 * group), right = _mm_cvtsi32_si128(8 * group - to);
  return _mm256_and_si256(
      to >= 8 * group ? _mm256_sll_epi32(lanes, left) : _mm256_srl_epi32(lanes, right),
      _mm256_set1_epi32(static_cast<int>(0xFFu << to)));
}

// Exponent 5 bits (bias 16) and mantissa 3 bits, byte `group` of each lane, to 16 floats.
HB_INLINE __m256 half_from_ue5m3(__m256i lanes, int group) {
  return _mm256_castsi256_ps(
      _mm256_add_epi32(place_byte(lanes, group, 20), _mm256_set1_epi32((127 - 16) << 23)));
}
HB_INLINE F32x16 decode_ue5m3(const std::byte* p, int group) {
  const Line line = load_line(p);
  return {half_from_ue5m3(line.low, group), half_from_ue5m3(line.high, group)};
}

// Byte `group` of each lane, e, to 2^(e-127). Byte 0 would become 0: the maximum makes it the
// subnormal 2^-127.
HB_INLINE __m256 half_from_e8m0(__m256i lanes, int group) {
  return _mm256_castsi256_ps(
      _mm256_max_epu32(place_byte(lanes, group, 23), _mm256_set1_epi32(1 << 22)));
}
HB_INLINE F32x16 decode_e8m0(const std::byte* p, int group) {
  const Line line = load_line(p);
  return {half_from_e8m0(line.low, group), half_from_e8m0(line.high, group)};
}

// The code at bit Shift of every lane as a float: three bits index the magnitudes, the fourth moves
// to the sign.
template <int Shift>
HB_INLINE __m256 decode_code(__m256i codes) {
  const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
  const __m256 value = _mm256_permutevar8x32_ps(magnitudes, _mm256_srli_epi32(codes, Shift));
  const __m256i sign =
      _mm256_and_si256(_mm256_slli_epi32(codes, 28 - Shift), _mm256_set1_epi32(INT32_MIN));
  return _mm256_xor_ps(value, _mm256_castsi256_ps(sign));
}

// Pair J of a line of E2M1 codes.
template <int J>
HB_INLINE F32Pairs decode_e2m1(Line codes) {
  return {{decode_code<4 * J>(codes.low), decode_code<4 * J>(codes.high)},
          {decode_code<16 + 4 * J>(codes.low), decode_code<16 + 4 * J>(codes.high)}};
}

// The E4M3 code in the high byte of each word. Moved to the bits of an FP16, a code is 2^-8 times
// its value, subnormals included.
HB_INLINE __m256 half_from_e4m3(__m128i words) {
  const __m128i halves =
      _mm_or_si128(_mm_and_si128(words, _mm_set1_epi16(INT16_MIN)),
                   _mm_srli_epi16(_mm_and_si128(words, _mm_set1_epi16(0x7F00)), 1));
  return _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.0f));
}

// The pairs of columns 0, 1 (Half 0) or 2, 3 (Half 1) of a line of E4M3 codes.
template <int Half>
HB_INLINE F32Pairs decode_e4m3(Line line) {
  // 8 rows by 4 columns in two lanes of 16 bytes: the low or the high 8 bytes of each.
  constexpr int kPick = Half == 0 ? 0x08 : 0x0D;
  const __m128i low = _mm256_castsi256_si128(_mm256_permute4x64_epi64(line.low, kPick));
  const __m128i high = _mm256_castsi256_si128(_mm256_permute4x64_epi64(line.high, kPick));
  return {{half_from_e4m3(_mm_slli_epi16(low, 8)), half_from_e4m3(_mm_slli_epi16(high, 8))},
          {half_from_e4m3(low), half_from_e4m3(high)}};
}

HB_INLINE __m256 even_half(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
HB_INLINE __m256 odd_half(__m256i pairs) {
  return _mm256_castsi256_ps(
      _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
}
template <class Pair>
HB_INLINE F32Pairs widen(Bf16Pairs w) {
  return {{even_half(w.low), even_half(w.high)}, {odd_half(w.low), odd_half(w.high)}};
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
HB_INLINE F32x16 max(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
HB_INLINE F32x16 min(F32x16 a, F32x16 b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
HB_INLINE F32x16 abs(F32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
// a < b ? yes : no, lane by lane.
HB_INLINE F32x16 select_less(F32x16 a, F32x16 b, F32x16 yes, F32x16 no) {
  return {_mm256_blendv_ps(no.low, yes.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.high, yes.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}
HB_INLINE F32x16 copy_sign(F32x16 magnitude, F32x16 sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(bit, magnitude.low), _mm256_and_ps(bit, sign.low)),
          _mm256_or_ps(_mm256_andnot_ps(bit, magnitude.high), _mm256_and_ps(bit, sign.high))};
}
HB_INLINE F32x16 round(F32x16 a) {
  return {_mm256_round_ps(a.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for whole n in [-126, 127].
HB_INLINE __m256 half_power_of_two(__m256 n) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
HB_INLINE F32x16 power_of_two(F32x16 n) {
  return {half_power_of_two(n.low), half_power_of_two(n.high)};
}
// 16 floats to 8 pairs of BF16, nearest even.
HB_INLINE void round_to_bf16(F32x16 a, uint32_t* pairs) {
  float values[16];
  store(a, values);
  for (int p = 0; p < 8; ++p)
    pairs[p] = float_to_bf16(values[2 * p]) | uint32_t{float_to_bf16(values[2 * p + 1])} << 16;
}

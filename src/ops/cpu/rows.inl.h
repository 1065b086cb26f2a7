// Words for rows of any length, behind the words of a level (simd/avx512.inl.h or a sibling) and
// the functions of ops/vector_activation.inl.h.

inline constexpr int kLanes = 16;

// e^x for x <= 0; stops at e^-87.3, about 1e-38. A NaN stays a NaN.
HB_INLINE F32x16 exp(F32x16 x) {
  const ExpParts parts = exp_parts(x);
  return fma(parts.s, parts.q, parts.s);
}

// Sum of the lanes, by halves: always the same order.
HB_INLINE float reduce_add(F32x16 a) {
  float v[kLanes];
  store(a, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) v[i] += v[i + half];
  return v[0];
}

// The first `count` (0 .. 16) of 16 values; the others read as 0, or are not written.
HB_INLINE F32x16 load_some(const float* p, int64_t count) {
  if (count >= kLanes) return load(p);
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = p[i];
  return load(lanes);
}
HB_INLINE void store_some(F32x16 a, int64_t count, float* p) {
  if (count >= kLanes) return store(a, p);
  float lanes[kLanes];
  store(a, lanes);
  for (int64_t i = 0; i < count; ++i) p[i] = lanes[i];
}

HB_INLINE F32x16 load_bf16(const uint16_t* p) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i)
    lanes[i] = std::bit_cast<float>(static_cast<uint32_t>(p[i]) << 16);
  return load(lanes);
}
HB_INLINE F32x16 load_some(const uint16_t* p, int64_t count) {
  if (count >= kLanes) return load_bf16(p);
  uint16_t lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = p[i];
  return load_bf16(lanes);
}
// As float_to_bf16, without its branch, so that the loop becomes vector instructions.
HB_INLINE void store_some(F32x16 a, int64_t count, uint16_t* p) {
  float lanes[kLanes];
  store(a, lanes);
  uint16_t halves[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(lanes[i]);
    const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x0040u;
    halves[i] = static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
  }
  if (count >= kLanes) {
    std::memcpy(p, halves, sizeof halves);
  } else {
    for (int64_t i = 0; i < count; ++i) p[i] = halves[i];
  }
}

HB_INLINE F32x16 load_any(const void* p, DType dtype, int64_t i, int64_t count) {
  return dtype == DType::kBf16 ? load_some(static_cast<const uint16_t*>(p) + i, count)
                               : load_some(static_cast<const float*>(p) + i, count);
}
HB_INLINE void store_any(F32x16 a, DType dtype, void* p, int64_t i, int64_t count) {
  if (dtype == DType::kBf16)
    store_some(a, count, static_cast<uint16_t*>(p) + i);
  else
    store_some(a, count, static_cast<float*>(p) + i);
}

// f(offset, count) for runs of up to 16 of n values.
template <class F>
HB_INLINE void for_lanes(int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, int64_t{kLanes});
  if (i < n) f(i, n - i);
}

// Sum of f(i, count) over a row, in four chains.
template <class F>
HB_INLINE float sum_lanes(int64_t n, F f) {
  F32x16 sum[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (int c = 0; c < 4; ++c) sum[c] = add(sum[c], f(i + c * kLanes, int64_t{kLanes}));
  for (int c = 0; i < n; i += kLanes, ++c) sum[c] = add(sum[c], f(i, n - i));
  return reduce_add(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

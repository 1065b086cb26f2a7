// One head of latent attention (contracts: AbsorbedHead, AttentionBlock in dense.h), in the words
// of a level.

// y (n) += sum_r factor[r] * rows[r]; n padded, the rows' tails are not read.
template <int Vectors, class T>
HB_INLINE void add_rows_block(const float* factors, const T* rows, int64_t stride, int64_t count,
                              int64_t rest, float* y) {
  F32x16 sum[Vectors];
#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) sum[v] = load(y + v * kLanes);
  for (int64_t r = 0; r < count; ++r) {
    const F32x16 factor = broadcast(factors[r]);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v)
      sum[v] = fma(factor, load_some(rows + r * stride + v * kLanes, rest - v * kLanes), sum[v]);
  }
#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) store(sum[v], y + v * kLanes);
}
template <class T>
HB_INLINE void add_rows(const float* factors, const T* rows, int64_t stride, int64_t count,
                        int64_t n, float* y) {
  int64_t c = 0;
  for (; c + 8 * kLanes <= n; c += 8 * kLanes)
    add_rows_block<8>(factors, rows + c, stride, count, 8 * kLanes, y + c);
  for (; c < n; c += kLanes) add_rows_block<1>(factors, rows + c, stride, count, n - c, y + c);
}

template <class T>
HB_INLINE float dot_row(const float* x, const T* row, int64_t n) {
  return sum_lanes(n, [&](int64_t i, int64_t count) {
    return mul(load_some(x + i, count), load_some(row + i, count));
  });
}

template <class W>
HB_INLINE void absorbed_head(const AbsorbedHead& a) {
  const int64_t cache_width = a.latent + a.shared_dim;
  float* query = a.work;                       // (C + R): W_k^T q_n | q_r
  float* mixed = query + padded(cache_width);  // (C): sum p c
  float* p = mixed + padded(a.latent);         // (kAbsorbedKeys)
  const uint16_t* cache = static_cast<const uint16_t*>(a.cache);

  std::memset(query, 0, static_cast<size_t>(padded(cache_width)) * sizeof(float));
  std::memset(mixed, 0, static_cast<size_t>(padded(a.latent)) * sizeof(float));
  add_rows(a.q, static_cast<const W*>(a.key_rows), a.latent, a.key_dim, a.latent, query);
  for (int64_t i = 0; i < a.shared_dim; ++i) query[a.latent + i] = a.q[a.key_dim + i];

  float max = -std::numeric_limits<float>::infinity(), total = 0;
  for (int64_t begin = 0; begin < a.keys; begin += kAbsorbedKeys) {
    const int64_t count = a.keys - begin < kAbsorbedKeys ? a.keys - begin : kAbsorbedKeys;
    const uint16_t* rows = cache + begin * a.cache_stride;
    float block_max = max;
    for (int64_t s = 0; s < count; ++s) {
      p[s] = dot_row(query, rows + s * a.cache_stride, cache_width) * a.scale;
      block_max = p[s] > block_max ? p[s] : block_max;
    }
    const float keep = std::exp(max - block_max);
    max = block_max;
    total *= keep;
    for (int64_t s = 0; s < count; ++s) total += p[s] = std::exp(p[s] - max);
    for (int64_t i = 0; i < padded(a.latent); i += kLanes)
      store(mul(broadcast(keep), load(mixed + i)), mixed + i);
    add_rows(p, rows, a.cache_stride, count, a.latent, mixed);
  }
  const W* values = static_cast<const W*>(a.value_rows);
  for (int64_t i = 0; i < a.value_dim; ++i)
    a.o[i] = dot_row(mixed, values + i * a.latent, a.latent) / total;
}

void absorbed_attention(const AbsorbedHead& head) {
  head.weights == DType::kBf16 ? absorbed_head<uint16_t>(head) : absorbed_head<float>(head);
}

void attention_block(const AttentionBlock& a) {
  const int64_t inner = a.key_dim + a.shared_dim, value_width = padded(a.value_dim);
  const int64_t width = padded(a.keys);
  float* keys = a.work;                                   // (N + R, keys)
  float* values = keys + inner * kAttentionKeys;          // (keys, padded(V))
  float* scores = values + kAttentionKeys * value_width;  // (queries, keys)

  // Keys turned, values copied: both padded with zeros.
  for (int64_t s = 0; s < width; ++s) {
    const bool there = s < a.keys;
    const float* row = a.kv + s * a.kv_stride;
    for (int64_t d = 0; d < a.key_dim; ++d) keys[d * width + s] = there ? row[d] : 0.0f;
    for (int64_t d = 0; d < a.shared_dim; d += kLanes) {
      const int64_t count = a.shared_dim - d < kLanes ? a.shared_dim - d : kLanes;
      float lanes[kLanes] = {};
      if (there)
        store(load_some(static_cast<const uint16_t*>(a.shared_key) + s * a.cache_stride + d, count),
              lanes);
      for (int64_t i = 0; i < count; ++i) keys[(a.key_dim + d + i) * width + s] = lanes[i];
    }
    if (there)
      for (int64_t d = 0; d < value_width; d += kLanes)
        store(load_some(row + a.key_dim + d, a.value_dim - d < 0 ? 0 : a.value_dim - d),
              values + s * value_width + d);
  }

  for (int64_t begin = 0; begin < a.queries; begin += kAttentionQueries) {
    const int64_t count =
        a.queries - begin < kAttentionQueries ? a.queries - begin : kAttentionQueries;
    if (a.first_visible + begin + count <= 0) continue;
    std::memset(scores, 0, static_cast<size_t>(count * width) * sizeof(float));
    gemm_add(count, width, inner, {a.q + begin * a.q_stride, a.q_stride, 1}, keys, width, scores,
             width);
    for (int64_t t = 0; t < count; ++t) {
      float* p = scores + t * width;
      int64_t visible = a.first_visible + begin + t + 1;
      visible = visible < 0 ? 0 : (visible > a.keys ? a.keys : visible);
      if (visible > 0) {
        float max = a.max[begin + t];
        for (int64_t s = 0; s < visible; ++s) {
          p[s] *= a.scale;
          max = p[s] > max ? p[s] : max;
        }
        const F32x16 keep = exp(broadcast(a.max[begin + t] - max));
        F32x16 total = zero();
        for_lanes(visible, [&](int64_t s, int64_t some) {
          const F32x16 e = exp(sub(load_some(p + s, some), broadcast(max)));
          store_some(e, some, p + s);
          total = add(total, load_some(p + s, some));
        });
        float first[kLanes];
        store(keep, first);
        a.max[begin + t] = max;
        a.total[begin + t] = a.total[begin + t] * first[0] + reduce_add(total);
        float* sum = a.sum + (begin + t) * value_width;
        for (int64_t d = 0; d < value_width; d += kLanes) store(mul(keep, load(sum + d)), sum + d);
      }
      for (int64_t s = visible; s < width; ++s) p[s] = 0;
    }
    gemm_add(count, value_width, a.keys, {scores, width, 1}, values, value_width,
             a.sum + begin * value_width, value_width);
  }
}

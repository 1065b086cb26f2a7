// One head of Kimi Delta Attention (contract: KdaHead in dense.h), in the words of a level.
//
// Few tokens run one by one. Many run in chunks of C <= 64 with start state S0; with
// G_i = g_1 + ... + g_i per channel, all in fp32:
//   L_ij = sum_d k^_i k^_j exp(G_i - G_j), j < i;   A_ij = sum_d q^_i k^_j exp(G_i - G_j), j <= i
//   rows X_i = beta_i (v_i - (exp(G_i) k^_i) S0 - sum_j L_ij X_j)        by forward substitution
//   O  = (exp(G) q^) S0 + A X
//   S1 = diag(exp(G_C)) S0 + (exp(G_C - G) k^)^T X
// NOTE: exp(-G) alone would overflow. Between blocks of 16 tokens the exponent is split at the
// first row of the later block, so that both parts are <= 0; within a block differences are taken
// pair by pair, which holds for gates of any size.

// Token t -> k^ and q^ (padded, zeros behind D) and g.
HB_INLINE void prepare_token(const KdaHead& head, int64_t t, float* q, float* k, float* g) {
  const int64_t dim = head.dim;
  const auto normalise = [&](const float* x, float scale, float* y) {
    const float sum = sum_lanes(dim, [&](int64_t i, int64_t count) {
      const F32x16 v = load_some(x + i, count);
      return mul(v, v);
    });
    const F32x16 factor = broadcast(scale / std::sqrt(sum + 1e-6f));
    for_lanes(
        dim, [&](int64_t i, int64_t count) { store(mul(load_some(x + i, count), factor), y + i); });
  };
  normalise(head.q + t * head.stride, 1.0f / std::sqrt(static_cast<float>(dim)), q);
  normalise(head.k + t * head.stride, 1.0f, k);
  const float* r = head.decay + t * head.stride;
  const F32x16 rate = broadcast(head.rate), bound = broadcast(head.lower_bound);
  for_lanes(dim, [&](int64_t i, int64_t count) {
    const F32x16 z = add(load_some(r + i, count), load_some(head.bias + i, count));
    if (head.bounded) {
      store(mul(bound, sigmoid(mul(rate, z))), g + i);
    } else {
      float lanes[kLanes];
      store(z, lanes);
      for (float& lane : lanes) lane = -halfbyte::softplus(lane);
      store(mul(rate, load(lanes)), g + i);
    }
  });
}

HB_INLINE float write_strength(const KdaHead& head, int64_t t) {
  return halfbyte::sigmoid(head.strength[t * head.strength_stride]);
}

// Columns [begin, begin + 16 Vectors) of one step of the recurrence: columns do not meet.
template <int Vectors>
HB_INLINE void step_columns(int64_t dim, int64_t row, const float* q, const float* k,
                            const float* decay, const float* decayed_k, F32x16 beta, const float* v,
                            float* state, float* o) {
  F32x16 delta[Vectors], out[Vectors];
#pragma GCC unroll 8
  for (int i = 0; i < Vectors; ++i) delta[i] = out[i] = zero();
  for (int64_t d = 0; d < dim; ++d) {
    const F32x16 factor = broadcast(decayed_k[d]);
#pragma GCC unroll 8
    for (int i = 0; i < Vectors; ++i)
      delta[i] = fma(factor, load(state + d * row + i * kLanes), delta[i]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < Vectors; ++i) delta[i] = mul(beta, sub(load(v + i * kLanes), delta[i]));
  for (int64_t d = 0; d < dim; ++d) {
    const F32x16 keep = broadcast(decay[d]), key = broadcast(k[d]), query = broadcast(q[d]);
#pragma GCC unroll 8
    for (int i = 0; i < Vectors; ++i) {
      float* s = state + d * row + i * kLanes;
      const F32x16 next = fma(key, delta[i], mul(keep, load(s)));
      store(next, s);
      out[i] = fma(query, next, out[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Vectors; ++i) store(out[i], o + i * kLanes);
}

// work: 7 rows of padded(D).
void kda_step(const KdaHead& head, int64_t t, float* state, float* work) {
  const int64_t width = padded(head.dim);
  float *q = work, *k = q + width, *decay = k + width, *decayed_k = decay + width;
  float *v = decayed_k + width, *o = v + width;
  prepare_token(head, t, q, k, decay);
  for (int64_t i = 0; i < width; i += kLanes) {
    const F32x16 keep = exp(load(decay + i));
    store(keep, decay + i);
    store(mul(keep, load(k + i)), decayed_k + i);
    store(load_some(head.v + t * head.stride + i, head.dim - i), v + i);
  }
  const F32x16 beta = broadcast(write_strength(head, t));
  int64_t c = 0;
  for (; c + 8 * kLanes <= width; c += 8 * kLanes)
    step_columns<8>(head.dim, width, q, k, decay, decayed_k, beta, v + c, state + c, o + c);
  for (; c < width; c += kLanes)
    step_columns<1>(head.dim, width, q, k, decay, decayed_k, beta, v + c, state + c, o + c);
  for_lanes(head.dim, [&](int64_t i, int64_t count) {
    store_some(load(o + i), count, head.o + t * head.o_stride + i);
  });
}

// y[i] = x[i] * exp(a[i] - b[i])
HB_INLINE void scale_by_decay(const float* x, const float* a, const float* b, int64_t width,
                              float* y) {
  for (int64_t i = 0; i < width; i += kLanes)
    store(mul(load(x + i), exp(sub(load(a + i), load(b + i)))), y + i);
}

void kda_chunk(const KdaHead& head, int64_t begin, int64_t tokens, float* state, float* work) {
  const int64_t width = padded(head.dim);
  const int64_t rows = kKdaChunk * width;                      // of one (C, D) array
  float *q = work, *k = q + rows, *gate = k + rows;            // q^, k^, G
  float *scaled_q = gate + rows, *scaled_k = scaled_q + rows;  // times some exp
  float *x = scaled_k + rows, *o = x + rows;
  float* lower = o + rows;                        // L (C, C)
  float* mixing = lower + kKdaChunk * kKdaChunk;  // A (C, C)
  float* keys = mixing + kKdaChunk * kKdaChunk;   // (D, 16): keys of a block, turned
  float* beta = keys + width * kKdaBlock;
  float* zeros = beta + kKdaChunk;

  for (int64_t i = 0; i < width; i += kLanes) store(zero(), zeros + i);
  for (int64_t i = 0; i < tokens; ++i) {
    prepare_token(head, begin + i, q + i * width, k + i * width, gate + i * width);
    beta[i] = write_strength(head, begin + i);
    if (i > 0) add_row(gate + (i - 1) * width, width, gate + i * width);
  }

  // L and A, block by block.
  std::memset(lower, 0, 2 * kKdaChunk * kKdaChunk * sizeof(float));
  for (int64_t row = 0; row < tokens; row += kKdaBlock) {
    const int64_t count = tokens - row < kKdaBlock ? tokens - row : kKdaBlock;
    const float* reference = gate + row * width;
    for (int64_t i = row; i < row + count; ++i) {
      scale_by_decay(q + i * width, gate + i * width, reference, width, scaled_q + i * width);
      scale_by_decay(k + i * width, gate + i * width, reference, width, scaled_k + i * width);
    }
    for (int64_t col = 0; col < row; col += kKdaBlock) {
      for (int64_t j = 0; j < kKdaBlock; ++j) {
        float key[kLanes];
        for (int64_t d = 0; d < width; d += kLanes) {
          const int64_t at = (col + j) * width + d;
          store(mul(load(k + at), exp(sub(load(reference + d), load(gate + at)))), key);
          for (int64_t i = 0; i < kLanes; ++i) keys[(d + i) * kKdaBlock + j] = key[i];
        }
      }
      const int64_t at = row * kKdaChunk + col;
      gemm_add(count, kKdaBlock, width, {scaled_q + row * width, width, 1}, keys, kKdaBlock,
               mixing + at, kKdaChunk);
      gemm_add(count, kKdaBlock, width, {scaled_k + row * width, width, 1}, keys, kKdaBlock,
               lower + at, kKdaChunk);
    }
    for (int64_t i = row; i < row + count; ++i)
      for (int64_t j = row; j <= i; ++j) {
        F32x16 a = zero(), l = zero();
        for (int64_t d = 0; d < width; d += kLanes) {
          const F32x16 key = mul(load(k + j * width + d),
                                 exp(sub(load(gate + i * width + d), load(gate + j * width + d))));
          a = fma(load(q + i * width + d), key, a);
          l = fma(load(k + i * width + d), key, l);
        }
        mixing[i * kKdaChunk + j] = reduce_add(a);
        if (j < i) lower[i * kKdaChunk + j] = reduce_add(l);
      }
  }

  // X, by forward substitution; O.
  for (int64_t i = 0; i < tokens; ++i) {
    scale_by_decay(q + i * width, gate + i * width, zeros, width, scaled_q + i * width);
    scale_by_decay(k + i * width, gate + i * width, zeros, width, scaled_k + i * width);
  }
  std::memset(x, 0, 2 * static_cast<size_t>(rows) * sizeof(float));
  gemm_add(tokens, width, head.dim, {scaled_k, width, 1}, state, width, x, width);
  gemm_add(tokens, width, head.dim, {scaled_q, width, 1}, state, width, o, width);
  for (int64_t i = 0; i < tokens; ++i) {
    const float* v = head.v + (begin + i) * head.stride;
    for (int64_t d = 0; d < width; d += kLanes) {
      F32x16 sum = sub(load_some(v + d, head.dim - d), load(x + i * width + d));
      for (int64_t j = 0; j < i; ++j)
        sum = fma(broadcast(-lower[i * kKdaChunk + j]), load(x + j * width + d), sum);
      store(mul(broadcast(beta[i]), sum), x + i * width + d);
    }
  }
  gemm_add(tokens, width, tokens, {mixing, kKdaChunk, 1}, x, width, o, width);
  for (int64_t i = 0; i < tokens; ++i)
    for_lanes(head.dim, [&](int64_t d, int64_t count) {
      store_some(load(o + i * width + d), count, head.o + (begin + i) * head.o_stride + d);
    });

  // The state behind the chunk.
  const float* last = gate + (tokens - 1) * width;
  for (int64_t i = 0; i < tokens; ++i)
    scale_by_decay(k + i * width, last, gate + i * width, width, scaled_k + i * width);
  float* keep = zeros;
  for (int64_t i = 0; i < width; i += kLanes) store(exp(load(last + i)), keep + i);
  for (int64_t d = 0; d < head.dim; ++d)
    for (int64_t i = 0; i < width; i += kLanes)
      store(mul(broadcast(keep[d]), load(state + d * width + i)), state + d * width + i);
  gemm_add(head.dim, width, tokens, {scaled_k, 1, width}, x, width, state, width);
}

void kda(const KdaHead& head) {
  const int64_t dim = head.dim, width = padded(dim);
  // Rows of the state are whole vectors: copies of those that are not.
  float* state = head.state;
  float* work = head.work;
  if (width != dim) {
    state = work;
    for (int64_t d = 0; d < dim; ++d)
      for (int64_t i = 0; i < width; i += kLanes)
        store(load_some(head.state + d * dim + i, dim - i), state + d * width + i);
    work += width * width;
  }
  if (head.tokens < kKdaMinChunk) {
    for (int64_t t = 0; t < head.tokens; ++t) kda_step(head, t, state, work);
  } else {
    for (int64_t t = 0; t < head.tokens; t += kKdaChunk)
      kda_chunk(head, t, head.tokens - t < kKdaChunk ? head.tokens - t : kKdaChunk, state, work);
  }
  if (width != dim)
    for (int64_t d = 0; d < dim; ++d)
      for (int64_t i = 0; i < width; i += kLanes)
        store_some(load(state + d * width + i), dim - i, head.state + d * dim + i);
}

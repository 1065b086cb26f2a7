// The algorithm of simd/kernels.h, once, in the words of a level: F32x16 and its arithmetic,
// Bf16Pairs, F32Pairs, decode, mac (simd/avx512.inl.h and its siblings). Included inside the
// namespace and the target region of a level.

// How a tile format is read. A block is kHeader bytes of scales, then kGroups groups of kLines
// lines of kLineBytes, each kPairs pairs of columns (an even number): `load(line)`, then
// `pair<J>(loaded)`. `scale` gives the scale of each row for a group.
template <class Pairs>
struct TwoPairs {
  Pairs first, second;
};

template <class Loaded, int LineBytes>
struct PlainTile {
  static constexpr int kHeader = 0, kGroups = 1, kLines = 16, kLineBytes = LineBytes, kPairs = 2;
  template <int J>
  HB_INLINE static auto pair(const Loaded& line) {
    return J == 0 ? line.first : line.second;
  }
};

using LoadedBf16 = TwoPairs<decltype(load_bf16_pairs(nullptr))>;
struct Bf16Tile : PlainTile<LoadedBf16, 128> {
  HB_INLINE static LoadedBf16 load(const std::byte* line) {
    return {load_bf16_pairs(line), load_bf16_pairs(line + 64)};
  }
};

struct F32Tile : PlainTile<TwoPairs<F32Pairs>, 256> {
  HB_INLINE static TwoPairs<F32Pairs> load(const std::byte* line) {
    return {{load_f32_line(line), load_f32_line(line + 64)},
            {load_f32_line(line + 128), load_f32_line(line + 192)}};
  }
};

struct Fp8Tile {
  static constexpr int kHeader = 64, kGroups = 1, kLines = 16, kLineBytes = 64, kPairs = 2;
  HB_INLINE static F32x16 scale(const std::byte* block, int) { return load_f32_line(block); }
  HB_INLINE static auto load(const std::byte* line) { return load_line(line); }
  template <int J, class Loaded>
  HB_INLINE static auto pair(const Loaded& line) {
    return decode_e4m3<J>(line);
  }
};

template <int Columns>
struct Fp4Tile {
  static constexpr int kHeader = 64, kGroups = 4, kLines = Columns / 8, kLineBytes = 64;
  static constexpr int kPairs = 4;
  HB_INLINE static auto load(const std::byte* line) { return load_line(line); }
  template <int J, class Loaded>
  HB_INLINE static auto pair(const Loaded& line) {
    return decode_e2m1<J>(line);
  }
};

struct Nvfp4Tile : Fp4Tile<16> {
  HB_INLINE static F32x16 scale(const std::byte* block, int group) {
    return decode_ue5m3(block, group);
  }
};

struct Mxfp4Tile : Fp4Tile<32> {
  HB_INLINE static F32x16 scale(const std::byte* block, int group) {
    return decode_e8m0(block, group);
  }
};

// Pairs J .. of one line, in order: the even ones to `even`, the odd ones to `odd`.
template <class Tile, int J, class Loaded, class Pair, int M>
HB_INLINE void add_pairs(const Loaded& line, const Pair* x, F32x16 (&even)[M], F32x16 (&odd)[M]) {
  if constexpr (J < Tile::kPairs) {
    auto& part = J % 2 == 0 ? even : odd;
    const auto weights = widen<Pair>(Tile::template pair<J>(line));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) part[m] = mac(part[m], weights, x + J * M + m);
    add_pairs<Tile, J + 1>(line, x, even, odd);
  }
}

// NOTE: two chains a group. One would be shorter by an addition, but a chain waits for itself: M =
// 1 took 19.0 cycles for 16 x 16 weights of MXFP4 instead of 15.3, FP8 29.6 instead of 22.9; at M =
// 8 the addition hides (Zen 4).
template <class Tile, class Pair, int M>
void tile_dot(const std::byte* block, int64_t blocks, const std::byte* pairs, float* sums) {
  const Pair* x = reinterpret_cast<const Pair*>(pairs);
  F32x16 sum[M];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) sum[m] = load(sums + m * kTileRows);
  for (; blocks > 0; --blocks) {
    const std::byte* line = block + Tile::kHeader;
#pragma GCC unroll 4
    for (int group = 0; group < Tile::kGroups; ++group) {
      F32x16 even[M], odd[M];
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) even[m] = odd[m] = zero();
#pragma GCC unroll 4
      for (int i = 0; i < Tile::kLines; ++i) {
        add_pairs<Tile, 0>(Tile::load(line), x, even, odd);
        line += Tile::kLineBytes;
        x += Tile::kPairs * M;
      }
      if constexpr (Tile::kHeader > 0) {
        const F32x16 scale = Tile::scale(block, group);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) sum[m] = fma(add(even[m], odd[m]), scale, sum[m]);
      } else {
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) sum[m] = add(sum[m], add(even[m], odd[m]));
      }
    }
    block = line;
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) store(sum[m], sums + m * kTileRows);
}

// Fills table.dot for one kind of pair and M = 1 .. Max.
template <class Pair, int M>
void fill_dots(PairFormat format, Kernels& table) {
  if constexpr (M > 0) {
    auto& dot = table.dot[static_cast<int>(format)];
    dot[static_cast<int>(TileFormat::kBf16)][M] = tile_dot<Bf16Tile, Pair, M>;
    dot[static_cast<int>(TileFormat::kFp8)][M] = tile_dot<Fp8Tile, Pair, M>;
    dot[static_cast<int>(TileFormat::kNvfp4)][M] = tile_dot<Nvfp4Tile, Pair, M>;
    dot[static_cast<int>(TileFormat::kMxfp4)][M] = tile_dot<Mxfp4Tile, Pair, M>;
    if constexpr (sizeof(Pair) == pair_bytes(PairFormat::kF32))
      dot[static_cast<int>(TileFormat::kF32)][M] = tile_dot<F32Tile, Pair, M>;
    fill_dots<Pair, M - 1>(format, table);
  } else {
    (void)format;
    (void)table;
  }
}

struct FloatPair {
  float even, odd;
};

inline float load_activation(const void* row, bool is_f32, int64_t col) {
  return is_f32 ? static_cast<const float*>(row)[col]
                : bf16_to_float(static_cast<const uint16_t*>(row)[col]);
}

inline void pack_pairs(const void* const* rows, bool rows_are_f32, int M, int64_t cols,
                       int64_t padded_cols, PairFormat format, std::byte* pairs) {
  const int64_t whole = cols / 2;  // pairs with both columns
  for (int m = 0; m < M; ++m) {
    const auto value = [&](int64_t col) {
      return col < cols ? load_activation(rows[m], rows_are_f32, col) : 0.0f;
    };
    if (format == PairFormat::kBf16) {
      // Only BF16 rows become BF16 pairs: a copy of dwords.
      uint32_t* out = reinterpret_cast<uint32_t*>(pairs) + m;
      const auto* row = static_cast<const uint16_t*>(rows[m]);
      for (int64_t p = 0; p < whole; ++p) std::memcpy(out + p * M, row + 2 * p, 4);
      for (int64_t p = whole; p < padded_cols / 2; ++p) out[p * M] = 2 * p < cols ? row[2 * p] : 0u;
    } else {
      FloatPair* out = reinterpret_cast<FloatPair*>(pairs) + m;
      for (int64_t p = 0; p < padded_cols / 2; ++p) out[p * M] = {value(2 * p), value(2 * p + 1)};
    }
  }
}

inline void store_pairs(const float* h, bool keep_f32, int M, PairFormat format, std::byte* pairs) {
  constexpr int kPairs = kTileRows / 2;
  for (int m = 0; m < M; ++m, h += kTileRows) {
    uint32_t rounded[kPairs];
    round_to_bf16(load(h), rounded);
    if (format == PairFormat::kBf16) {
      uint32_t* out = reinterpret_cast<uint32_t*>(pairs) + m;
      for (int p = 0; p < kPairs; ++p) out[p * M] = rounded[p];
      continue;
    }
    FloatPair* out = reinterpret_cast<FloatPair*>(pairs) + m;
    for (int p = 0; p < kPairs; ++p)
      out[p * M] = keep_f32 ? FloatPair{h[2 * p], h[2 * p + 1]}
                            : FloatPair{bf16_to_float(static_cast<uint16_t>(rounded[p])),
                                        bf16_to_float(static_cast<uint16_t>(rounded[p] >> 16))};
  }
}

inline void store_row(const float* x, int64_t count, DType dtype, void* y) {
  if (dtype == DType::kF32) {
    std::memcpy(y, x, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  auto* out = static_cast<uint16_t*>(y);
  for (int64_t i = 0; i < count; ++i) out[i] = float_to_bf16(x[i]);
}

inline void add_scaled(const float* x, float factor, int64_t count, float* y) {
  for (int64_t i = 0; i < count; ++i) y[i] += factor * x[i];
}

// Of the level, behind this file: simd/kernels.h.
uint64_t read(const std::byte* data, size_t bytes);
double spin(int64_t rounds, float* sink);

// Fills all of the table but its dots.
inline void fill_rest(Kernels& table) {
  table.pack_pairs = pack_pairs;
  table.store_pairs = store_pairs;
  table.store_row = store_row;
  table.add_scaled = add_scaled;
  table.read = read;
  table.spin = spin;
}

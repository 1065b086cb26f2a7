// C += A B for small fp32 matrices, in the words of a level: what the chunks of KDA and attention
// are made of. Element (m, n) is c + a[m][0] b[0][n] + a[m][1] b[1][n] + ..., in this order,
// however the matrices are cut.

struct Operand {
  const float* data;
  int64_t row, col;  // strides
};

template <int Rows, int Vectors>
HB_INLINE void gemm_block(Operand a, const float* b, int64_t b_row, int64_t inner, float* c,
                          int64_t c_row) {
  F32x16 sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[m][v] = load(c + m * c_row + v * kLanes);
  for (int64_t k = 0; k < inner; ++k) {
    F32x16 row[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) row[v] = load(b + k * b_row + v * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < Rows; ++m) {
      const F32x16 factor = broadcast(a.data[m * a.row + k * a.col]);
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sum[m][v] = fma(factor, row[v], sum[m][v]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) store(sum[m][v], c + m * c_row + v * kLanes);
}

template <int Vectors>
HB_INLINE void gemm_columns(int64_t rows, Operand a, const float* b, int64_t b_row, int64_t inner,
                            float* c, int64_t c_row) {
  constexpr int kRows = Vectors == 1 ? 8 : 4;
  int64_t m = 0;
  for (; m + kRows <= rows; m += kRows)
    gemm_block<kRows, Vectors>({a.data + m * a.row, a.row, a.col}, b, b_row, inner, c + m * c_row,
                               c_row);
  for (; m < rows; ++m)
    gemm_block<1, Vectors>({a.data + m * a.row, a.row, a.col}, b, b_row, inner, c + m * c_row,
                           c_row);
}

// c (rows, cols) += a (rows, inner) b (inner, cols); cols a multiple of 16.
void gemm_add(int64_t rows, int64_t cols, int64_t inner, Operand a, const float* b, int64_t b_row,
              float* c, int64_t c_row) {
  int64_t n = 0;
  for (; n + 4 * kLanes <= cols; n += 4 * kLanes)
    gemm_columns<4>(rows, a, b + n, b_row, inner, c + n, c_row);
  for (; n < cols; n += kLanes) gemm_columns<1>(rows, a, b + n, b_row, inner, c + n, c_row);
}

// Loops over pieces of work on the threads of a pool.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/threads.h"

namespace halfbyte::cpu {

// f(index, thread) for index in [0, count). `cost` is the size of it all in elements, about a
// quarter of a nanosecond's work each: little stays on the calling thread.

template <class F>
void for_pieces(ThreadPool& pool, int64_t count, int64_t cost, F&& f) {
  if (count <= 1 || cost / 4 < ThreadPool::kWorthSharing || pool.size() == 1) {
    for (int64_t i = 0; i < count; ++i) f(i, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  pool.share([&](int thread) {
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next.fetch_add(1, std::memory_order_relaxed))
      f(i, thread);
  });
}

// f(row, begin, count) for pieces of at most 4096 columns of a (rows, cols) array.
template <class F>
void for_row_pieces(ThreadPool& pool, int64_t rows, int64_t cols, F&& f) {
  constexpr int64_t kPiece = 4096;
  const int64_t pieces = (cols + kPiece - 1) / kPiece;
  for_pieces(pool, rows * pieces, rows * cols, [&](int64_t i, int) {
    const int64_t begin = i % pieces * kPiece;
    f(i / pieces, begin, cols - begin < kPiece ? cols - begin : kPiece);
  });
}

}  // namespace halfbyte::cpu

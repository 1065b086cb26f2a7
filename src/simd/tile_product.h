// A run of tiles times a block of packed tokens: where the cache is thought of, for every operation
// that multiplies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/kernels.h"

namespace halfbyte {

// The tiles to read: `count` of them, `stride` bytes apart.
struct TileRun {
  const std::byte* first = nullptr;
  size_t stride = 0;
  int count = 0;
};

// A block of M tokens, packed for tiles of `layout`.
struct TokenBlock {
  const std::byte* pairs = nullptr;
  PairFormat format = PairFormat::kBf16;
  int tokens = 0;  // M
};

// sums (count, M, 16) = tiles times tokens, written whole.
void multiply_tiles(const Kernels& kernels, const TileLayout& layout, const TileRun& tiles,
                    const TokenBlock& block, float* sums);

// Tokens are cut into blocks of at most `largest`, as equal as they go: 9 by 8 become 5 and 4.
struct TokenBlocks {
  int64_t tokens = 0;
  int64_t count = 0;
  TokenBlocks(int64_t num_tokens, int largest)
      : tokens(num_tokens), count((num_tokens + largest - 1) / largest) {}
  int64_t begin(int64_t block) const { return tokens * block / count; }
  int size(int64_t block) const { return static_cast<int>(begin(block + 1) - begin(block)); }
};

}  // namespace halfbyte

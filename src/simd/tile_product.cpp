#include "simd/tile_product.h"

#include <algorithm>

namespace halfbyte {

namespace {

// With few tokens the weights are what moves: each tile is read from end to end, one stream. With
// many, the tokens' columns go through in panels that stay in the first-level cache while all tiles
// pass by; sums wait in memory meanwhile, which changes no rounding.
constexpr int kPanelFromTokens = 5;
constexpr int64_t kPanelBytes = 12 << 10;

}  // namespace

void multiply_tiles(const Kernels& kernels, const TileLayout& layout, const TileRun& tiles,
                    const TokenBlock& block, float* sums) {
  const int M = block.tokens;
  const int64_t sums_of_tile = int64_t{M} * kTileRows;
  std::fill_n(sums, tiles.count * sums_of_tile, 0.0f);
  const TileDot dot = kernels.dot_for(block.format, layout.format, M);
  const int64_t pairs_of_block =
      layout.block_cols() / 2 * M * static_cast<int64_t>(pair_bytes(block.format));
  const int64_t panel =
      M < kPanelFromTokens ? layout.blocks : std::max<int64_t>(1, kPanelBytes / pairs_of_block);
  for (int64_t begin = 0; begin < layout.blocks; begin += panel) {
    const int64_t count = std::min(panel, layout.blocks - begin);
    const std::byte* pairs = block.pairs + begin * pairs_of_block;
    for (int i = 0; i < tiles.count; ++i)
      dot(tiles.first + static_cast<size_t>(i) * tiles.stride +
              static_cast<size_t>(begin) * layout.block_bytes,
          count, pairs, sums + i * sums_of_tile);
  }
}

}  // namespace halfbyte

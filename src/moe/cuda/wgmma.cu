// The path of many tokens: x in the order of operand B, then the two products (wgmma_kernel.cuh).
#include <algorithm>

#include "moe/cuda/launch.h"
#include "moe/cuda/ptx.cuh"
#include "moe/cuda/wgmma.h"

namespace halfbyte::hopper {
namespace {

constexpr int kPermuteThreads = 256;

// permuted (T, padded L): x with each 128 columns in the order `natural_column`, zero beyond L.
// A thread writes 16 bytes: four pairs of neighbouring columns. Runs beside `route`, which has
// waited for all before it when it lets this one start.
template <WeightFormat kFormat>
__global__ void permute_kernel(const uint32_t* x, int64_t pairs_a_row, int pairs_in, int pieces,
                               int64_t total, uint4* permuted) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kPermuteThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPermuteThreads + threadIdx.x; i < total;
       i += step) {
    const int64_t token = i / pieces;
    const int piece = static_cast<int>(i - token * pieces);
    const uint32_t* row = x + token * pairs_a_row;
    uint32_t v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int position = piece % 16 * 8 + 2 * j;
      const int pair = (piece / 16 * kBlockCols + natural_column(kFormat, position)) / 2;
      v[j] = pair < pairs_in ? row[pair] : 0;
    }
    permuted[i] = make_uint4(v[0], v[1], v[2], v[3]);
  }
  let_next_kernel_start();
  wait_for_previous_kernel();  // so that who waits for this one waits for `route` too
}

}  // namespace

size_t wgmma_permuted_bytes(const Sizes& sizes, int num_tokens) {
  return static_cast<size_t>(num_tokens) * static_cast<size_t>(sizes.up_blocks) * kBlockCols * 2;
}

size_t wgmma_hidden_bytes(const Sizes& sizes, size_t slots, size_t chunks) {
  return (slots + 8 * chunks + 8) * static_cast<size_t>(sizes.down_blocks) * kBlockCols * 2;
}

cudaError_t launch_permute(const Call& call, WeightFormat format, const LaunchOptions& options) {
  const int pieces = call.sizes.up_blocks * kBlockCols / 8;
  const int64_t total = static_cast<int64_t>(call.num_tokens) * pieces;
  const int64_t blocks = std::min<int64_t>((total + kPermuteThreads - 1) / kPermuteThreads,
                                           static_cast<int64_t>(options.num_sms) * 8);
  const auto kernel = format == WeightFormat::kMxfp4 ? permute_kernel<WeightFormat::kMxfp4>
                                                     : permute_kernel<WeightFormat::kNvfp4>;
  return launch_overlapped(kernel, dim3(static_cast<unsigned>(blocks)), kPermuteThreads, 0,
                           options.stream, static_cast<const uint32_t*>(call.x), call.x_stride / 2,
                           call.sizes.hidden / 2, pieces, total,
                           static_cast<uint4*>(call.permuted_x));
}

cudaError_t launch_product(Product product, const Call& call, ActivationKind kind,
                           WeightFormat format, const LaunchOptions& options) {
  const Sizes& sizes = call.sizes;
  const bool up = product == Product::kUp;
  const WgmmaKernel kernel = wgmma_kernel_for(call.chunk_rows);
  WgmmaParams p;
  p.lists = call.lists;
  p.ring = ring_for(format, kernel.warpgroups, call.chunk_rows, kWgmmaRingBytes);
  p.top_k = sizes.top_k;
  p.packed = call.packed;
  p.expert_bytes = sizes.expert_bytes;
  p.matrix_offset = up ? 0 : sizes.down_offset;
  p.factor_offset = sizes.factor_offset;
  p.tiles = up ? sizes.up_tiles : sizes.down_tiles;
  p.blocks = up ? sizes.up_blocks : sizes.down_blocks;
  // All of h is written, its padding to whole blocks too.
  const int written = up ? sizes.down_blocks * (kind == ActivationKind::kRelu2 ? 2 : 4) : p.tiles;
  p.row_tiles = ceil_div(written, kAtoms * kernel.warpgroups);
  p.b = static_cast<const uint8_t*>(up ? call.permuted_x : call.hidden_rows);
  p.b_pitch = static_cast<uint32_t>(p.blocks) * kBlockCols / 8;
  p.out = up ? call.hidden_rows : call.slots;
  p.out_blocks = sizes.down_blocks;
  p.out_columns = sizes.hidden;
  p.tickets = call.counters + (up ? 0 : 2);
  p.kind = kind;
  p.activation = call.activation;
  switch (kernel.rows) {
    case 32:
      return launch_wgmma_32(product, format, p, options);
    case 64:
      return launch_wgmma_64(product, format, p, options);
    case 96:
      return launch_wgmma_96(product, format, p, options);
    default:
      return launch_wgmma_160(product, format, p, options);
  }
}

cudaError_t launch_wgmma(const Call& call, ActivationKind kind, WeightFormat format,
                         const LaunchOptions& options) {
  if (call.num_tokens == 0) return cudaSuccess;
  cudaError_t error = launch_permute(call, format, options);
  if (error == cudaSuccess) error = launch_product(Product::kUp, call, kind, format, options);
  if (error == cudaSuccess) error = launch_product(Product::kDown, call, kind, format, options);
  return error;
}

}  // namespace halfbyte::hopper

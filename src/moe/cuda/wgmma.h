// What the host and the kernel of the wgmma path say to each other, and what planning needs of it.
#pragma once

#include "moe/cuda/kernels.h"
#include "moe/cuda/wgmma_map.h"

namespace halfbyte::hopper {

// Of the 227 KB of a block: staging, alignment and what is declared statically need the rest.
constexpr int kStagingBytes = 16384;  // of all warpgroups together
constexpr int kWgmmaStaticBytes = 6144;
constexpr int kWgmmaRingBytes = kSharedLimit - kStagingBytes - 1024 - kWgmmaStaticBytes;

enum class Product { kUp, kDown };

struct WgmmaParams {
  RoutingLists lists;
  Ring ring;
  int top_k = 0;
  // Operand A.
  const uint8_t* packed = nullptr;
  uint32_t expert_bytes = 0, matrix_offset = 0, factor_offset = 0;
  int tiles = 0, blocks = 0, row_tiles = 0;  // row_tiles: of all warpgroups together
  // Operand B: up: permuted x, (T, padded L); down: h.
  const uint8_t* b = nullptr;
  uint32_t b_pitch = 0;         // 16-byte pieces a row
  uint32_t* tickets = nullptr;  // [2]: tiles beyond the first of each block, blocks that are done
  // up: h; down: slots, BF16.
  void* out = nullptr;
  int out_blocks = 0;   // up: K blocks of h
  int out_columns = 0;  // down: L
  ActivationKind kind = ActivationKind::kSwiglu;
  ActivationConstants activation;
};

// Bytes of Call::permuted_x of so many tokens, and of Call::hidden_rows of so many slots in at most
// so many chunks.
size_t wgmma_permuted_bytes(const Sizes& sizes, int num_tokens);
size_t wgmma_hidden_bytes(const Sizes& sizes, size_t slots, size_t chunks);

// The three parts of launch_wgmma.
cudaError_t launch_permute(const Call& call, WeightFormat format, const LaunchOptions& options);
cudaError_t launch_product(Product product, const Call& call, ActivationKind kind,
                           WeightFormat format, const LaunchOptions& options);

cudaError_t launch_wgmma_32(Product product, WeightFormat format, const WgmmaParams& params,
                            const LaunchOptions& options);
cudaError_t launch_wgmma_64(Product product, WeightFormat format, const WgmmaParams& params,
                            const LaunchOptions& options);
cudaError_t launch_wgmma_96(Product product, WeightFormat format, const WgmmaParams& params,
                            const LaunchOptions& options);
cudaError_t launch_wgmma_160(Product product, WeightFormat format, const WgmmaParams& params,
                             const LaunchOptions& options);

}  // namespace halfbyte::hopper

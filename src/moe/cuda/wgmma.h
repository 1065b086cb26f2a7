// What the host and the kernel of the wgmma path say to each other, and what planning needs of it.
#pragma once

#include "moe/cuda/kernels.h"
#include "moe/cuda/wgmma_map.h"

namespace halfbyte::hopper {

// Of the 227 KB of a block: staging, alignment and what is declared statically need the rest.
constexpr int kStagingBytes = 8192;  // of each of the two warpgroups
constexpr int kWgmmaRingBytes = kSharedLimit - 2 * kStagingBytes - 1024 - 4608;

enum class Product { kUp, kDown };

struct WgmmaParams {
  RoutingLists lists;
  Ring ring;
  int top_k = 0;
  // Operand A.
  const uint8_t* packed = nullptr;
  uint32_t expert_bytes = 0, matrix_offset = 0, factor_offset = 0;
  int tiles = 0, blocks = 0, row_tiles = 0;  // row_tiles: of 256 packed rows
  // Operand B: up: permuted x, (T, padded L); down: h.
  const uint8_t* b = nullptr;
  uint32_t b_pitch = 0;  // 16-byte pieces a row
  // up: h; down: slots, BF16.
  void* out = nullptr;
  int out_blocks = 0;   // up: K blocks of h
  int out_columns = 0;  // down: L
  ActivationKind kind = ActivationKind::kSwiglu;
  ActivationConstants activation;
};

// The most rows of a chunk that suits calls of num_tokens: fewer rows a stage are more stages.
int wgmma_chunk_rows(const Sizes& sizes, int num_tokens);

// Bytes of Call::permuted_x and Call::hidden_rows for any call of at most max_tokens.
size_t wgmma_permuted_bytes(const Sizes& sizes, int max_tokens);
size_t wgmma_hidden_bytes(const Sizes& sizes, int max_tokens);

// The three parts of launch_wgmma.
cudaError_t launch_permute(const Call& call, WeightFormat format, const LaunchOptions& options);
cudaError_t launch_product(Product product, const Call& call, ActivationKind kind,
                           WeightFormat format, const LaunchOptions& options);

// The kernels, by the most rows of a chunk: each has some N compiled in, the last as many as that.
constexpr int kWgmmaKernelRows[] = {64, 112, 160};
cudaError_t launch_wgmma_64(Product product, WeightFormat format, const WgmmaParams& params,
                            const LaunchOptions& options);
cudaError_t launch_wgmma_112(Product product, WeightFormat format, const WgmmaParams& params,
                             const LaunchOptions& options);
cudaError_t launch_wgmma_160(Product product, WeightFormat format, const WgmmaParams& params,
                             const LaunchOptions& options);
// The first of them that takes chunks of chunk_rows.
int wgmma_kernel_rows(int chunk_rows);

}  // namespace halfbyte::hopper

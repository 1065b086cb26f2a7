// What the host and the kernel of the wgmma path say to each other, and what planning needs of it.
#pragma once

#include "moe/cuda/kernels.h"
#include "moe/cuda/wgmma_map.h"

namespace halfbyte::hopper {

constexpr int kWgmmaRingBytes = 224 * 1024;  // of the 227 KB of a block

enum class Product { kUp, kDown };

struct WgmmaParams {
  Product product = Product::kUp;
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
  // up: h; down: slots.
  void* out = nullptr;
  int out_blocks = 0;   // up: K blocks of h
  int out_columns = 0;  // down: L
  bool out_is_f32 = false;
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

cudaError_t launch_wgmma_nvfp4(const WgmmaParams& params, const LaunchOptions& options);
cudaError_t launch_wgmma_mxfp4(const WgmmaParams& params, const LaunchOptions& options);

}  // namespace halfbyte::hopper

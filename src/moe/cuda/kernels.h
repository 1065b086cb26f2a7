// What the Hopper kernels of one MoE call share: sizes, pointers, workspace, and their launchers.
//
//   few      at most kFewTokens tokens, one launch does everything: columns of the tensor core are
//            the tokens; a block has rows of y, or a part of their sums.
//   stream   weights pass once through mma.sync, up to kStreamRows rows of an expert at a time;
//            slots in fp32 up to 64 tokens. route, up, down, combine
//   wgmma    weights decoded in registers as operand A of wgmma, up to kWgmmaRows rows at a time;
//            outputs of slots in BF16.     route, permute, up, down, combine
//
// Every kernel takes its counts from device memory: a captured graph serves any routing. Results do
// not depend on which block does what: sums have one fixed order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "halfbyte/moe.h"
#include "moe/cuda/activation.cuh"
#include "moe/cuda/layout.h"

namespace halfbyte::hopper {

constexpr int kSharedLimit = 227 * 1024;  // bytes of shared memory that one block may have
constexpr int kFewTokens = 8;
constexpr int kFewSlots = 256;  // T * K at most
constexpr int kFewExperts = 8192;
constexpr int kFewParts = 4;           // of the rows that a thread block of `few` may own
constexpr int kFewPartCounters = 512;  // where their counters begin
constexpr int kStreamRows = 16;

struct Sizes {
  int hidden = 0, intermediate = 0;                                  // L, F
  int num_experts = 0, top_k = 0;                                    // E, K
  int up_tiles = 0, up_blocks = 0, down_tiles = 0, down_blocks = 0;  // layout.h
  uint32_t expert_bytes = 0, down_offset = 0, factor_offset = 0;
};

// Rows [first_row, first_row + num_rows) of the sorted slots go to `expert` together.
struct Chunk {
  int expert = 0, first_row = 0, num_rows = 0;
  int is_only = 0;  // the expert has no other
};

// What `route` finds out, in device memory.
struct RoutingLists {
  int* num_chunks = nullptr;     // [1]
  Chunk* chunks = nullptr;       // rising in expert; of each expert, equal to within one row
  int* row_slots = nullptr;      // (R): the slot t * K + k of each row, grouped by expert
  float* row_weights = nullptr;  // (R)
};

struct Call {
  Sizes sizes;
  ActivationConstants activation;
  const uint8_t* packed = nullptr;
  const int32_t* topk_ids = nullptr;
  const float* topk_weights = nullptr;
  int num_tokens = 0;
  const void* x = nullptr;  // BF16 (T, L)
  int64_t x_stride = 0;
  void* y = nullptr;  // (T, L)
  int64_t y_stride = 0;
  bool y_is_f32 = false;

  // Workspace.
  RoutingLists lists;
  int chunk_rows = 0;           // what `route` was given as the most rows of a chunk
  void* hidden_rows = nullptr;  // h, BF16
  void* permuted_x = nullptr;   // wgmma: x with each 128 columns in the order of its operand B
  void* slots = nullptr;        // (T K, L) outputs of slots, weighted
  bool slots_are_f32 = false;
  float* partial_sums = nullptr;  // few: kFewParts parts of (hidden padded to 64, kFewTokens)
  void* stream_parts = nullptr;   // stream_part_bytes
  uint32_t* counters = nullptr;   // kNumCounters, zero between calls
};

constexpr int kNumCounters = 1024;

struct LaunchOptions {
  cudaStream_t stream = nullptr;
  int num_sms = 0;
};

// Whether `few` can take a call of that many tokens (shared memory).
bool few_fits(const Sizes& sizes, int num_tokens, WeightFormat format);
// This one and the others return the error of their launches.
cudaError_t launch_few(const Call& call, ActivationKind kind, WeightFormat format,
                       const LaunchOptions& options);
bool route_fits(const Sizes& sizes);
cudaError_t launch_route(const Call& call, int max_chunk_rows, const LaunchOptions& options);
// Chunks of at most `max_rows` (up to kStreamRows) rows.
bool stream_fits(const Sizes& sizes, int max_rows, WeightFormat format);
size_t stream_part_bytes(int num_sms);
cudaError_t launch_stream(const Call& call, ActivationKind kind, WeightFormat format, int max_rows,
                          const LaunchOptions& options);
cudaError_t launch_wgmma(const Call& call, ActivationKind kind, WeightFormat format,
                         const LaunchOptions& options);
cudaError_t launch_combine(const Call& call, const LaunchOptions& options);

}  // namespace halfbyte::hopper

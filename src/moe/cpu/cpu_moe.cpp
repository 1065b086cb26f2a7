// The MoE operation on the CPU: fused, one pass over the weights of the experts that have tokens.
//
//   h = act(gate_scale (G x), up_scale (U x)) rounded once;  o = down_scale (D h);  y = sum_k w_k
//   o_k
//
// Letters: t token, slot = t K + k, e expert, M tokens of a block, L width of x and y, F of h.
// Packed: for each expert a line of 64 bytes with its three fp32 global scales; then tile i of gate
// and tile i of up, turn by turn (up alone without a gate); then the tiles of down (simd/tiles.h).
//
// A call goes through the tokens in chunks, each in four phases:
//   sort     slots by expert; each expert's slots are cut into blocks of at most 8
//   pack     x of each block, [k/2][M] pairs
//   hidden   an item is an expert and a run of gate/up tiles: both products, activation, h as pairs
//   output   an item is a run of down tiles, over all experts: o of every slot in scratch of the
//            thread, then y of every token, its slots in order
// Every sum has one order, which does not depend on M, on the chunk, on the threads or on the other
// tokens. Checked: tests/golden/moe_op_test.cpp, tests/property/moe_test.cpp, tests/unit/moe/;
// timed: `halfbyte bench moe`.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "base/check.h"
#include "moe/backend.h"
#include "moe/routing.h"
#include "ops/activation_kernels.h"
#include "simd/kernels.h"
#include "simd/tile_product.h"

namespace halfbyte {

namespace {

// More tokens than this go through in several chunks, so that the workspace stays bounded. Weights
// are read once a chunk: at 1024 tokens arithmetic hides that many times over.
constexpr int kChunkTokens = 1024;
constexpr int kHiddenRun = 8;  // gate/up tiles of an item
constexpr int kOutputRun = 8;  // down tiles that are multiplied at once
// NOTE: an item of `output` reads this much of each expert in one go, where the sums of its slots
// fit in the cache: with 8 tiles of 3.4 KB (k3-tp8) the phase ran at 22 GB/s beside a probe of 62.
constexpr size_t kOutputItemBytes = 192 << 10;
constexpr size_t kOutputSumBytes = 512 << 10;
constexpr size_t kLine = 64;

struct ExpertLayout {
  TileLayout up, down;  // gate is as up
  int matrices_in = 2;  // gate and up, or up alone
  size_t up_offset = kLine;
  size_t down_offset = 0;
  size_t bytes = 0;

  explicit ExpertLayout(const MoeShape& shape)
      : up(TileLayout::of(tile_format(shape.weights), shape.intermediate, shape.hidden)),
        down(TileLayout::of(tile_format(shape.weights), shape.hidden, shape.intermediate)),
        matrices_in(shape.activation.gated() ? 2 : 1),
        down_offset(up_offset + up.bytes() * static_cast<size_t>(matrices_in)),
        bytes(down_offset + down.bytes()) {}
};

struct GlobalScales {
  float gate, up, down;
};

// A run of slots that share an expert: `order[first .. first + tokens)`.
struct Block {
  int expert = 0;
  int tokens = 0;  // M
  int64_t first = 0;
};

// Everything a chunk needs, carved from the caller's workspace. The same code counts and carves.
struct Workspace {
  int64_t* offsets = nullptr;        // (E + 1)
  int64_t* order = nullptr;          // (slots)
  Block* blocks = nullptr;           // by expert
  int64_t* expert_blocks = nullptr;  // (E + 1): the blocks of expert e begin here
  std::byte* x = nullptr;            // (slots, padded L) pairs
  std::byte* h = nullptr;            // (slots, padded F) pairs
  float* out = nullptr;              // (threads, out_floats)
  size_t out_floats = 0;
  size_t bytes = 0;

  Workspace(const MoeShape& shape, const ExpertLayout& layout, int64_t tokens, int threads,
            int block_tokens, size_t element_bytes, std::byte* base) {
    const auto slots = static_cast<size_t>(tokens * shape.top_k);
    const auto experts = static_cast<size_t>(shape.num_experts);
    const size_t most_blocks =
        std::min(slots, experts + slots / static_cast<size_t>(block_tokens) + 1);
    carve(base, offsets, experts + 1);
    carve(base, order, slots);
    carve(base, blocks, most_blocks);
    carve(base, expert_blocks, experts + 1);
    carve(base, x, slots * static_cast<size_t>(layout.up.padded_cols) * element_bytes);
    carve(base, h, slots * static_cast<size_t>(layout.down.padded_cols) * element_bytes);
    out_floats = std::max(slots * kOutputRun * kTileRows, kOutputSumBytes / sizeof(float));
    carve(base, out, static_cast<size_t>(threads) * out_floats);
  }

 private:
  template <class T>
  void carve(std::byte* base, T*& part, size_t count) {
    if (base != nullptr) part = reinterpret_cast<T*>(base + bytes);
    bytes += (count * sizeof(T) + kLine - 1) / kLine * kLine;
  }
};

class CpuMoePlan : public MoePlan {
 public:
  CpuMoePlan(const MoeShape& shape, const MoeLimits& limits, CpuDevice& device)
      : shape_(shape), limits_(limits), device_(device), expert_(shape) {
    layout_.name = fmt::format("{}.cpu.tile16", name_of(shape.weights));
    layout_.expert_bytes = expert_.bytes;
    layout_.packed_bytes = expert_.bytes * static_cast<size_t>(shape.num_experts);
  }

  const MoeShape& shape() const override { return shape_; }
  const MoeLimits& limits() const { return limits_; }
  const MoeLayout& layout() const override { return layout_; }
  const ExpertLayout& expert() const { return expert_; }
  CpuDevice& device() const { return device_; }

  Workspace workspace(std::byte* base) const {
    const Kernels& k = kernels(device_.level());
    const int block_tokens =
        std::min(k.max_tokens_for(PairFormat::kF32), k.max_tokens_for(k.bf16_pairs));
    return Workspace(shape_, expert_, std::min(limits_.max_tokens, kChunkTokens),
                     device_.pool().size(), block_tokens, sizeof(float), base);
  }
  size_t workspace_bytes() const override { return workspace(nullptr).bytes; }

  std::string describe() const override {
    return fmt::format("moe cpu, layout {}, {} kernels, blocks of {} tokens, {} threads",
                       layout_.name, name_of(device_.level()),
                       kernels(device_.level()).max_tokens_for(kernels(device_.level()).bf16_pairs),
                       device_.pool().size());
  }

  void pack_expert(const ExpertWeights& expert, std::span<std::byte> packed) const override {
    check_expert(expert, shape_, layout_, packed.size());
    const auto scale_of = [](const MatrixView& matrix) {
      return matrix.format == WeightFormat::kNvfp4 ? matrix.global_scale : 1.0f;
    };
    const GlobalScales scales = {scale_of(expert.gate), scale_of(expert.up), scale_of(expert.down)};
    std::memset(packed.data(), 0, kLine);
    std::memcpy(packed.data(), &scales, sizeof scales);
    std::byte* out = packed.data() + expert_.up_offset;
    for (int64_t tile = 0; tile < expert_.up.tiles; ++tile) {
      if (shape_.activation.gated()) {
        pack_tile(expert.gate, expert_.up, tile, out);
        out += expert_.up.tile_bytes;
      }
      pack_tile(expert.up, expert_.up, tile, out);
      out += expert_.up.tile_bytes;
    }
    out = packed.data() + expert_.down_offset;
    for (int64_t tile = 0; tile < expert_.down.tiles; ++tile, out += expert_.down.tile_bytes)
      pack_tile(expert.down, expert_.down, tile, out);
  }

  std::unique_ptr<MoeLayer> bind(const void* packed, size_t packed_bytes) const override;

 private:
  MoeShape shape_;
  MoeLimits limits_;
  CpuDevice& device_;
  ExpertLayout expert_;
  MoeLayout layout_;
};

// One chunk of a call.
class Chunk {
 public:
  Chunk(const CpuMoePlan& plan, const std::byte* packed, const Routing& routing,
        const TensorView& x, const TensorView& y, std::byte* workspace)
      : shape_(plan.shape()),
        expert_(plan.expert()),
        kernels_(kernels(plan.device().level())),
        activate_(activate_kernel(plan.device().level())),
        pool_(plan.device().pool()),
        packed_(packed),
        routing_(routing),
        x_(x),
        y_(y),
        format_(kernels_.pairs_for(x.dtype, expert_.up.format)),
        work_(plan.workspace(workspace)) {}

  void run() {
    sort();
    pack();
    hidden();
    output();
  }

 private:
  // The packed x or h of a block: `width` columns a token.
  std::byte* pairs_of(std::byte* base, const Block& block, int64_t width) const {
    return base + static_cast<size_t>(block.first * (width / 2)) * pair_bytes(format_);
  }
  TokenBlock x_of(const Block& block) const {
    return {pairs_of(work_.x, block, expert_.up.padded_cols), format_, block.tokens};
  }
  TokenBlock h_of(const Block& block) const {
    return {pairs_of(work_.h, block, expert_.down.padded_cols), format_, block.tokens};
  }
  const std::byte* weights_of(int expert) const {
    return packed_ + static_cast<size_t>(expert) * expert_.bytes;
  }
  GlobalScales scales_of(int expert) const {
    GlobalScales scales;
    std::memcpy(&scales, weights_of(expert), sizeof scales);
    return scales;
  }

  void sort() {
    sort_slots(routing_.topk_ids, int64_t{routing_.num_tokens} * shape_.top_k, shape_.num_experts,
               work_.offsets, work_.order);
    num_blocks_ = 0;
    num_active_ = 0;
    for (int e = 0; e < shape_.num_experts; ++e) {
      work_.expert_blocks[num_active_] = num_blocks_;
      const int64_t slots = work_.offsets[e + 1] - work_.offsets[e];
      if (slots == 0) continue;
      const TokenBlocks cut(slots, kernels_.max_tokens_for(format_));
      for (int64_t b = 0; b < cut.count; ++b)
        work_.blocks[num_blocks_++] = {e, cut.size(b), work_.offsets[e] + cut.begin(b)};
      ++num_active_;
    }
    work_.expert_blocks[num_active_] = num_blocks_;
  }

  void pack() {
    const int64_t cost = num_blocks_ * shape_.hidden / 4;
    pool_.parallel_for(num_blocks_, cost, [&](int64_t index) {
      const Block& block = work_.blocks[index];
      std::array<const void*, kMaxTileTokens> rows{};
      for (int m = 0; m < block.tokens; ++m)
        rows[static_cast<size_t>(m)] =
            x_.row_slice(work_.order[block.first + m] / shape_.top_k, 1).data;
      kernels_.pack_pairs(rows.data(), x_.dtype == DType::kF32, block.tokens, shape_.hidden,
                          expert_.up.padded_cols, format_,
                          pairs_of(work_.x, block, expert_.up.padded_cols));
      // Columns of h past its last tile, which no item writes.
      const int64_t written = expert_.up.tiles * kTileRows;
      const size_t column_bytes = static_cast<size_t>(block.tokens) * pair_bytes(format_) / 2;
      std::memset(pairs_of(work_.h, block, expert_.down.padded_cols) +
                      static_cast<size_t>(written) * column_bytes,
                  0, static_cast<size_t>(expert_.down.padded_cols - written) * column_bytes);
    });
  }

  // Items in order of their weights in memory: expert by expert, run by run.
  void hidden() {
    const int64_t runs = (expert_.up.tiles + kHiddenRun - 1) / kHiddenRun;
    const int64_t cost = num_blocks_ * expert_.up.tiles * expert_.matrices_in *
                         static_cast<int64_t>(expert_.up.tile_bytes) / 16;
    pool_.parallel_for(num_active_ * runs, cost, [&](int64_t item) {
      const int64_t tile = item % runs * kHiddenRun;
      const int count = static_cast<int>(std::min<int64_t>(kHiddenRun, expert_.up.tiles - tile));
      const int64_t active = item / runs;
      for (int64_t b = work_.expert_blocks[active]; b < work_.expert_blocks[active + 1]; ++b)
        hidden_block(work_.blocks[b], tile, count);
    });
  }

  // Columns 16 tile .. of h for one block.
  void hidden_block(const Block& block, int64_t tile, int count) {
    const int M = block.tokens;
    const GlobalScales scales = scales_of(block.expert);
    const size_t stride = expert_.up.tile_bytes * static_cast<size_t>(expert_.matrices_in);
    const TileRun tiles{
        weights_of(block.expert) + expert_.up_offset + static_cast<size_t>(tile) * stride,
        expert_.up.tile_bytes, count * expert_.matrices_in};
    alignas(kLine) std::array<float, 2 * kHiddenRun * kMaxTileTokens * kTileRows> sums;
    multiply_tiles(kernels_, expert_.up, tiles, x_of(block), sums.data());
    const int64_t tile_sums = int64_t{M} * kTileRows;
    std::byte* h = pairs_of(work_.h, block, expert_.down.padded_cols);
    for (int i = 0; i < count; ++i) {
      // Gate, if there is one, then up.
      const float* gate = sums.data() + i * expert_.matrices_in * tile_sums;
      const float* up = gate + (expert_.matrices_in - 1) * tile_sums;
      alignas(kLine) std::array<float, kMaxTileTokens * kTileRows> out;
      activate_(shape_.activation, {gate, up, scales.gate, scales.up}, tile_sums, out.data());
      clear_rows_past_width(tile + i, M, out.data());
      kernels_.store_pairs(
          out.data(), x_.dtype == DType::kF32, M, format_,
          h + static_cast<size_t>((tile + i) * kTileRows / 2 * M) * pair_bytes(format_));
    }
  }

  // Rows of h that only fill up its last tile are 0, whatever their zero weights made of an x that
  // is not finite: 0 Inf is NaN, and NaN times a zero weight of down would reach y.
  void clear_rows_past_width(int64_t tile, int tokens, float* h) const {
    const int64_t rows = std::max<int64_t>(0, shape_.intermediate - tile * kTileRows);
    for (int m = 0; m < tokens && rows < kTileRows; ++m)
      std::fill(h + m * kTileRows + rows, h + (m + 1) * kTileRows, 0.0f);
  }

  void output() {
    const int64_t slots = int64_t{routing_.num_tokens} * shape_.top_k;
    const int64_t item = output_item(slots);
    const int64_t items = (expert_.down.tiles + item - 1) / item;
    std::atomic<int64_t> next{0};
    pool_.share([&](int thread) {
      float* out = work_.out + static_cast<size_t>(thread) * work_.out_floats;
      for (int64_t i = next++; i < items; i = next++) {
        const int64_t tile = i * item;
        const int64_t count = std::min(item, expert_.down.tiles - tile);
        for (int64_t b = 0; b < num_blocks_; ++b)
          for (int64_t part = 0; part < count; part += kOutputRun)
            output_block(work_.blocks[b], tile + part,
                         static_cast<int>(std::min<int64_t>(kOutputRun, count - part)),
                         item * kTileRows, out + part * kTileRows);
        combine(tile, count, item * kTileRows, out);
      }
    });
  }

  // Tiles of an item, a multiple of kOutputRun: long reads, but a few items for each thread, and
  // sums that fit.
  int64_t output_item(int64_t slots) const {
    const auto runs_in = [](size_t bytes, size_t run_bytes) {
      return static_cast<int64_t>(bytes / run_bytes);
    };
    const int64_t run_sums = slots * kOutputRun * kTileRows * static_cast<int64_t>(sizeof(float));
    const int64_t runs = (expert_.down.tiles + kOutputRun - 1) / kOutputRun;
    return kOutputRun *
           std::max<int64_t>(
               1, std::min({runs_in(kOutputItemBytes, kOutputRun * expert_.down.tile_bytes),
                            runs_in(kOutputSumBytes, static_cast<size_t>(run_sums)),
                            runs / (4 * int64_t{pool_.size()})}));
  }

  // out[slot] (stride) = columns 16 tile .. of o for the slots of one block.
  void output_block(const Block& block, int64_t tile, int count, int64_t stride, float* out) {
    const int M = block.tokens;
    const float scale = scales_of(block.expert).down;
    const TileRun tiles{weights_of(block.expert) + expert_.down_offset +
                            static_cast<size_t>(tile) * expert_.down.tile_bytes,
                        expert_.down.tile_bytes, count};
    alignas(kLine) std::array<float, kOutputRun * kMaxTileTokens * kTileRows> sums;
    multiply_tiles(kernels_, expert_.down, tiles, h_of(block), sums.data());
    const float* sum = sums.data();  // (count, M, 16)
    for (int i = 0; i < count; ++i)
      for (int m = 0; m < M; ++m, sum += kTileRows) {
        float* row = out + work_.order[block.first + m] * stride + i * kTileRows;
        for (int r = 0; r < kTileRows; ++r) row[r] = scale * sum[r];
      }
  }

  // y[t] = sum over the slots of t, in order.
  void combine(int64_t tile, int64_t count, int64_t stride, const float* out) {
    for (int64_t part = 0; part < count; part += kOutputRun) {
      const int64_t col = (tile + part) * kTileRows;
      const int64_t cols =
          std::min(std::min<int64_t>(kOutputRun, count - part) * kTileRows, shape_.hidden - col);
      for (int64_t t = 0; t < routing_.num_tokens; ++t) {
        std::array<float, kOutputRun * kTileRows> sum{};
        for (int64_t slot = t * shape_.top_k; slot < (t + 1) * shape_.top_k; ++slot) {
          const int32_t id = routing_.topk_ids[slot];
          const float weight = routing_.topk_weights[slot];
          if (id >= 0 && id < shape_.num_experts && weight != 0)
            kernels_.add_scaled(out + slot * stride + part * kTileRows, weight, cols, sum.data());
        }
        kernels_.store_row(sum.data(), cols, y_.dtype,
                           y_.row_slice(t, 1).col_slice(col, cols).data);
      }
    }
  }

  const MoeShape& shape_;
  const ExpertLayout& expert_;
  const Kernels& kernels_;
  const ActivateKernel activate_;
  ThreadPool& pool_;
  const std::byte* packed_;
  const Routing& routing_;
  const TensorView& x_;
  const TensorView& y_;
  const PairFormat format_;
  Workspace work_;
  int64_t num_blocks_ = 0;
  int64_t num_active_ = 0;
};

class CpuMoeLayer : public MoeLayer {
 public:
  CpuMoeLayer(const CpuMoePlan& plan, const std::byte* packed) : plan_(plan), packed_(packed) {}

  void run(const Routing& routing, TensorView x, TensorView y, void* workspace) const override {
    const MoeShape& shape = plan_.shape();
    check_call(routing, x, y, shape, plan_.limits());
    for (int64_t begin = 0; begin < routing.num_tokens; begin += kChunkTokens) {
      const int64_t count = std::min<int64_t>(kChunkTokens, routing.num_tokens - begin);
      const Routing part{routing.topk_ids + begin * shape.top_k,
                         routing.topk_weights + begin * shape.top_k, static_cast<int>(count)};
      const TensorView x_part = x.row_slice(begin, count), y_part = y.row_slice(begin, count);
      Chunk(plan_, packed_, part, x_part, y_part, static_cast<std::byte*>(workspace)).run();
    }
  }

 private:
  CpuMoePlan plan_;
  const std::byte* packed_;
};

std::unique_ptr<MoeLayer> CpuMoePlan::bind(const void* packed, size_t packed_bytes) const {
  check_packed(packed, packed_bytes, layout_);
  if (reinterpret_cast<uintptr_t>(packed) % kLine != 0)
    throw Error(ErrorKind::kInput, "packed experts",
                fmt::format("address not a multiple of {}: allocate them on the device", kLine));
  return std::make_unique<CpuMoeLayer>(*this, static_cast<const std::byte*>(packed));
}

}  // namespace

std::unique_ptr<MoePlan> plan_moe_cpu(const MoeShape& shape, const MoeLimits& limits,
                                      Device& device) {
  auto* cpu = dynamic_cast<CpuDevice*>(&device);
  HB_CHECK(cpu != nullptr);
  return std::make_unique<CpuMoePlan>(shape, limits, *cpu);
}

}  // namespace halfbyte

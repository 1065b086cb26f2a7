// Backend "hopper": which kernels a call takes, and what lies where in its workspace.
//
//   T <= 4, or T <= 8 and little to read    few, if its tables fit
//   T <= 64, or up to one row an expert      route, stream (up, down), combine
//   more                                     route, wgmma (x in its order, up, down), combine
//
// The choice looks at shapes only, never at the routing: a captured graph serves any. The workspace
// is carved anew for each call; nothing in it outlives the call. The few counters that must be zero
// between calls are the layer's own, so calls of one layer may not overlap in time.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/cuda_device.h"
#include "halfbyte/error.h"
#include "moe/backend.h"
#include "moe/cuda/kernels.h"
#include "moe/cuda/pack.h"
#include "moe/cuda/pack_device.h"
#include "moe/cuda/wgmma.h"

namespace halfbyte {
namespace {

using hopper::Call;
using hopper::Chunk;
using hopper::ExpertLayout;
using hopper::LaunchOptions;
using hopper::Sizes;

constexpr int kF32SlotTokens = 64;  // up to here slot outputs are kept in fp32
// NOTE: measured on an H200, K3's shape at TP 1, 4 and 8: from where on stream is faster than few
// (its three launches cost 20 us, its other merits show beyond 4 tokens), and wgmma than stream.
constexpr int kFewAlways = 4;
constexpr double kFewBytes = 0.5e9;
constexpr int64_t kStreamMeanRows = 1;
constexpr double kShortListRows = 3;  // mean rows up to which stream's chunks have 8 rows at most
constexpr int64_t kAlignment = 16;    // of rows, for the copy engine

Sizes sizes_of(const MoeShape& shape, const ExpertLayout& expert) {
  return {.hidden = shape.hidden,
          .intermediate = shape.intermediate,
          .num_experts = shape.num_experts,
          .top_k = shape.top_k,
          .up_tiles = expert.up.tiles,
          .up_blocks = expert.up.blocks,
          .down_tiles = expert.down.tiles,
          .down_blocks = expert.down.blocks,
          .expert_bytes = static_cast<uint32_t>(expert.bytes),
          .down_offset = static_cast<uint32_t>(expert.down_offset),
          .factor_offset = static_cast<uint32_t>(expert.factor_offset)};
}

// Carves a workspace, or only counts if it has no base.
struct Carver {
  std::byte* base = nullptr;
  size_t bytes = 0;

  template <class T>
  T* take(size_t count) {
    T* part = base == nullptr ? nullptr : reinterpret_cast<T*>(base + bytes);
    bytes += (count * sizeof(T) + 255) / 256 * 256;
    return part;
  }
};

class HopperPacker : public DevicePacker {
 public:
  HopperPacker(const MoeShape& shape, CudaDevice& device) : shape_(shape), device_(device) {}

  StagedExpert staged() const override { return hopper::staged_expert(shape_); }

  void pack(const StridedExperts& experts, int first, int count, void* packed) const override {
    MoeShape part = shape_;
    part.num_experts = count;
    auto* const here = static_cast<std::byte*>(packed) +
                       static_cast<size_t>(first) * hopper::expert_layout(shape_).bytes;
    check_scales([&](hopper::BadScales* bad, cudaStream_t stream) {
      return hopper::pack_experts_device(part, experts, here, bad, stream, first);
    });
  }

  void pack_in_place(void* packed, void* scratch, size_t scratch_bytes) const override {
    check_scales([&](hopper::BadScales* bad, cudaStream_t stream) {
      return hopper::pack_experts_in_place(shape_, packed, scratch, scratch_bytes, bad, stream);
    });
  }

 private:
  template <class Pack>
  void check_scales(const Pack& queue_packing) const {
    device_.make_current();
    const Buffer report = device_.allocate(sizeof(hopper::BadScales));
    HB_CUDA(queue_packing(static_cast<hopper::BadScales*>(report.data()),
                          static_cast<cudaStream_t>(device_.stream())));
    hopper::BadScales bad = {};
    device_.copy_to_host(&bad, report.data(), sizeof bad);
    if (bad.count > 0)
      throw Error(
          ErrorKind::kInput, bad.where(),
          fmt::format("{}: scales that no weight can have, {} of them; expected block scales "
                      "neither NaN nor negative, global scales finite and above 0",
                      bad.what(), bad.count));
  }

  MoeShape shape_;
  CudaDevice& device_;
};

class HopperMoePlan : public MoePlan {
 public:
  HopperMoePlan(const MoeShape& shape, const MoeLimits& limits, CudaDevice& device)
      : shape_(shape),
        limits_(limits),
        device_(device),
        packer_(shape, device),
        expert_(hopper::expert_layout(shape)) {
    layout_.name = fmt::format("{}.hopper.slab16x128.2", name_of(shape.weights));
    layout_.expert_bytes = expert_.bytes;
    layout_.packed_bytes = expert_.bytes * static_cast<size_t>(shape.num_experts);
    if (expert_.bytes > UINT32_MAX) refuse("an expert", "4 GiB at most");
    sizes_ = sizes_of(shape, expert_);
    stream_rows_ = hopper::kStreamRows;
    while (stream_rows_ > 1 && !hopper::stream_fits(sizes_, stream_rows_, shape.weights))
      stream_rows_ /= 2;
    if (!hopper::stream_fits(sizes_, stream_rows_, shape.weights))
      refuse("a row of x or h", "as fits into shared memory beside the weights");
    if (!hopper::route_fits(sizes_)) refuse("num_experts", "16384 at most");
  }

  const MoeShape& shape() const override { return shape_; }
  const MoeLimits& limits() const { return limits_; }
  const MoeLayout& layout() const override { return layout_; }
  const Sizes& sizes() const { return sizes_; }
  CudaDevice& device() const { return device_; }

  enum class Path { kFew, kStream, kWgmma };
  Path path_of(int num_tokens) const {
    if (takes_few(num_tokens)) return Path::kFew;
    return num_tokens <= most_stream_tokens() ? Path::kStream : Path::kWgmma;
  }

  bool takes_few(int num_tokens) const {
    const double bytes = mean_rows(num_tokens) * static_cast<double>(layout_.packed_bytes);
    return (num_tokens <= kFewAlways || bytes <= kFewBytes) &&
           hopper::few_fits(sizes_, num_tokens, shape_.weights);
  }

  int most_few_tokens() const {
    int tokens = 0;
    while (tokens < hopper::kFewTokens && takes_few(tokens + 1)) ++tokens;
    return tokens;
  }

  int global_experts() const { return std::max(shape_.num_experts, limits_.num_global_experts); }
  // Rows of an expert, of uniform routing.
  double mean_rows(int num_tokens) const {
    return static_cast<double>(num_tokens) * shape_.top_k / global_experts();
  }

  // Rows of an expert that are multiplied together: more share a pass over the weights, fewer leave
  // more shared memory to them.
  int chunk_rows(int num_tokens) const {
    if (path_of(num_tokens) == Path::kWgmma) return hopper::wgmma_chunk_rows(mean_rows(num_tokens));
    return mean_rows(num_tokens) <= kShortListRows ? std::min(8, stream_rows_) : stream_rows_;
  }
  // Whatever the routing. wgmma: chunks have at least the mean of rows, or the most that it takes.
  size_t most_chunks(int num_tokens) const {
    const size_t slots = static_cast<size_t>(num_tokens) * static_cast<size_t>(shape_.top_k);
    const size_t used = std::min(slots, static_cast<size_t>(shape_.num_experts));
    const size_t whole = path_of(num_tokens) == Path::kWgmma
                             ? std::max(std::min(slots, static_cast<size_t>(global_experts())),
                                        slots / hopper::kWgmmaRows)
                             : slots / static_cast<size_t>(chunk_rows(num_tokens));
    return used + whole + 1;
  }

  // The workspace of a call of `num_tokens` tokens.
  Carver carve(Call& call, int num_tokens, std::byte* base) const {
    Carver carver{base};
    const size_t slots = static_cast<size_t>(num_tokens) * static_cast<size_t>(shape_.top_k);
    const size_t h_row = static_cast<size_t>(sizes_.down_blocks * hopper::kBlockCols);
    const Path path = path_of(num_tokens);
    if (path == Path::kFew) {
      call.hidden_rows = carver.take<uint16_t>(slots * hopper::kFewTokens * h_row);
      call.partial_sums = carver.take<float>(static_cast<size_t>(
          hopper::kFewParts * sizes_.down_tiles * hopper::kTileRows * hopper::kFewTokens));
      return carver;
    }
    call.chunk_rows = chunk_rows(num_tokens);
    const size_t chunks = most_chunks(num_tokens);
    call.lists.num_chunks = carver.take<int>(1);
    call.lists.chunks = carver.take<Chunk>(chunks);
    call.lists.row_slots = carver.take<int>(slots);
    call.lists.row_weights = carver.take<float>(slots);
    if (path == Path::kWgmma) {
      call.permuted_x = carver.take<std::byte>(hopper::wgmma_permuted_bytes(sizes_, num_tokens));
      call.hidden_rows = carver.take<std::byte>(hopper::wgmma_hidden_bytes(sizes_, slots, chunks));
    } else {
      call.hidden_rows = carver.take<uint16_t>(slots * h_row);
      call.stream_parts = carver.take<std::byte>(hopper::stream_part_bytes(device_.num_sms()));
    }
    call.slots_are_f32 = num_tokens <= kF32SlotTokens;
    const size_t outputs = slots * static_cast<size_t>(shape_.hidden);
    call.slots = carver.take<std::byte>(outputs * (call.slots_are_f32 ? 4 : 2));
    return carver;
  }

  // The largest over all numbers of tokens: up to kFewTokens one by one; beyond, every part of a
  // path grows with them, and slots change their type once.
  size_t workspace_bytes() const override {
    size_t bytes = 0;
    const auto count = [&](int tokens) {
      Call call;
      bytes = std::max(bytes, carve(call, std::min(tokens, limits_.max_tokens), nullptr).bytes);
    };
    for (int tokens = 1; tokens <= hopper::kFewTokens; ++tokens) count(tokens);
    for (int tokens : {kF32SlotTokens, most_stream_tokens(), limits_.max_tokens}) count(tokens);
    // NOTE: where stream's chunks become longer they are fewer; what one token more takes outweighs
    // that, and one chunk an expert is to spare.
    return bytes + static_cast<size_t>(shape_.num_experts + 1) * sizeof(Chunk);
  }

  bool takes_f32_x() const override { return false; }

  std::string describe() const override {
    return fmt::format(
        "moe hopper, layout {}, few up to {} tokens, stream ({} rows) up to {}, then wgmma, {} SMs",
        layout_.name, most_few_tokens(), stream_rows_, most_stream_tokens(), device_.num_sms());
  }

  void pack_expert(const ExpertWeights& expert, std::span<std::byte> packed) const override {
    check_expert(expert, shape_, layout_, packed.size());
    hopper::pack_expert_host(shape_, expert, packed);
  }

  const DevicePacker* device_packer() const override { return &packer_; }

  std::unique_ptr<MoeLayer> bind(const void* packed, size_t packed_bytes) const override;

 private:
  // Experts have kStreamMeanRows rows on average. Small calls keep their outputs of slots in fp32,
  // which wgmma does not.
  int most_stream_tokens() const {
    const int64_t tokens = kStreamMeanRows * global_experts() / shape_.top_k;
    return static_cast<int>(
        std::clamp<int64_t>(tokens, kF32SlotTokens, std::max(kF32SlotTokens, limits_.max_tokens)));
  }

  [[noreturn]] void refuse(const char* what, const char* limit) const {
    throw Error(
        ErrorKind::kUnsupported, "moe backend",
        fmt::format("hopper: {} of hidden {}, intermediate {}, {} experts is too large: {}; "
                    "what would work: backend dequant",
                    what, shape_.hidden, shape_.intermediate, shape_.num_experts, limit));
  }

  MoeShape shape_;
  MoeLimits limits_;
  CudaDevice& device_;
  HopperPacker packer_;
  ExpertLayout expert_;
  MoeLayout layout_;
  Sizes sizes_;
  int stream_rows_ = 0;
};

void check_rows(const TensorView& view, const char* name) {
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  if (address % kAlignment != 0 || view.stride * dtype_bytes(view.dtype) % kAlignment != 0)
    throw Error(
        ErrorKind::kInput, name,
        fmt::format("rows at address {:#x}, {} elements apart: expected multiples of {} bytes",
                    address, view.stride, kAlignment));
}

class HopperMoeLayer : public MoeLayer {
 public:
  HopperMoeLayer(const HopperMoePlan& plan, const void* packed)
      : plan_(plan),
        packed_(static_cast<const uint8_t*>(packed)),
        counters_(plan.device().allocate(hopper::kNumCounters * sizeof(uint32_t))) {}

  void run(const Routing& routing, TensorView x, TensorView y, void* workspace) const override {
    const MoeShape& shape = plan_.shape();
    check_call(routing, x, y, shape, plan_.limits());
    if (routing.num_tokens == 0) return;
    if (x.dtype != DType::kBf16)
      throw Error(ErrorKind::kInput, "x",
                  fmt::format("{} activations: backend hopper takes BF16", name_of(x.dtype)));
    check_rows(x, "x");
    check_rows(y, "y");

    Call call;
    call.sizes = plan_.sizes();
    call.activation = hopper::activation_constants(shape.activation);
    call.packed = packed_;
    call.topk_ids = routing.topk_ids;
    call.topk_weights = routing.topk_weights;
    call.num_tokens = routing.num_tokens;
    call.x = x.data;
    call.x_stride = x.stride;
    call.y = y.data;
    call.y_stride = y.stride;
    call.y_is_f32 = y.dtype == DType::kF32;
    call.counters = static_cast<uint32_t*>(counters_.data());
    plan_.carve(call, routing.num_tokens, static_cast<std::byte*>(workspace));

    const CudaDevice& device = plan_.device();
    device.make_current();
    const LaunchOptions options{static_cast<cudaStream_t>(device.stream()), device.num_sms()};
    const ActivationKind kind = shape.activation.kind;
    const HopperMoePlan::Path path = plan_.path_of(routing.num_tokens);
    if (path == HopperMoePlan::Path::kFew) {
      HB_CUDA(launch_few(call, kind, shape.weights, options));
      return;
    }
    HB_CUDA(launch_route(call, call.chunk_rows, options));
    if (path == HopperMoePlan::Path::kStream)
      HB_CUDA(launch_stream(call, kind, shape.weights, call.chunk_rows, options));
    else
      HB_CUDA(launch_wgmma(call, kind, shape.weights, options));
    HB_CUDA(launch_combine(call, options));
  }

 private:
  HopperMoePlan plan_;
  const uint8_t* packed_;
  Buffer counters_;
};

std::unique_ptr<MoeLayer> HopperMoePlan::bind(const void* packed, size_t packed_bytes) const {
  check_packed(packed, packed_bytes, layout_);
  if (reinterpret_cast<uintptr_t>(packed) % 128 != 0)
    throw Error(ErrorKind::kInput, "packed experts",
                "address not a multiple of 128: allocate them on the device");
  return std::make_unique<HopperMoeLayer>(*this, packed);
}

}  // namespace

std::unique_ptr<MoePlan> plan_moe_hopper(const MoeShape& shape, const MoeLimits& limits,
                                         Device& device) {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  HB_CHECK(cuda != nullptr);
  return std::make_unique<HopperMoePlan>(shape, limits, *cuda);
}

}  // namespace halfbyte

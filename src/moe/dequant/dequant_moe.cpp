// The MoE operation by decoding: each expert with tokens becomes BF16 matrices, which plain
// cuBLASLt products multiply. The second opinion on the Hopper kernels: own packing, own kernels,
// another library's tensor-core code.
//
//   for each expert e with rows:   X = its rows of x                          gather
//     G = X gate^T, U = X up^T     fp32 (M, F)                                decode, cuBLASLt
//     H = bf16(act(G g_e, U u_e))                                             activate
//     O = H down^T                 fp32 (M, L)                                decode, cuBLASLt
//   y[t] = sum_k weight d_e O[row of (t, k)]                                  combine
//
// Decoded weights are exact in BF16; the fp32 factors g, u, d of the matrices come after the
// products. Which products there are depends on the routing, so `run` reads it back and waits: it
// cannot be captured in a CUDA graph, and says so. Checked by tests/gpu.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/cublaslt.h"
#include "cuda/cuda_device.h"
#include "formats/decode.h"
#include "halfbyte/error.h"
#include "moe/backend.h"
#include "moe/dequant/kernels.h"
#include "moe/routing.h"

namespace halfbyte {
namespace {

using dequant::ExpertTrailer;
using dequant::kDown;
using dequant::kGate;
using dequant::kNumMatrices;
using dequant::kUp;
using dequant::MatrixIndex;
using dequant::PackedMatrix;

constexpr int kMaxRows = 4096;  // of one product

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }
int padded(int width) { return (width + 15) / 16 * 16; }
// Rows of a product: few different sizes, since each is looked up once.
int product_rows(int count) {
  return count <= 256 ? (count + 15) / 16 * 16 : (count + 127) / 128 * 128;
}

// Where the parts of an expert begin.
struct ExpertLayout {
  struct Part {
    MatrixView matrix;  // format and shape
    size_t values = 0, scales = 0;
  };
  std::array<Part, kNumMatrices> parts;
  size_t trailer = 0, bytes = 0;

  explicit ExpertLayout(const MoeShape& shape) {
    const auto add = [&](MatrixIndex index, int rows, int cols) {
      Part& part = parts[index];
      part.matrix.format = shape.weights;
      part.matrix.rows = rows;
      part.matrix.cols = cols;
      part.values = bytes;
      part.scales = part.values + aligned(value_bytes(part.matrix));
      bytes = part.scales + aligned(scale_bytes(part.matrix));
    };
    if (shape.activation.gated()) add(kGate, shape.intermediate, shape.hidden);
    add(kUp, shape.intermediate, shape.hidden);
    add(kDown, shape.hidden, shape.intermediate);
    trailer = bytes;
    bytes += aligned(sizeof(ExpertTrailer));
  }
};

// Parts of the workspace, one after the other.
struct Workspace {
  size_t weights = 0;                 // BF16, the largest matrix
  size_t x = 0;                       // BF16 (M, L)
  size_t gate = 0, up = 0;            // fp32 (M, F)
  size_t hidden = 0;                  // BF16 (M, F)
  size_t rows = 0;                    // fp32 (T K and some, L)
  size_t slots = 0, row_of_slot = 0;  // int32 (T K)
  size_t bytes = 0;

  Workspace(const MoeShape& shape, int max_tokens) {
    const auto width = static_cast<size_t>(padded(shape.hidden)),
               inner = static_cast<size_t>(padded(shape.intermediate));
    const auto num_slots = static_cast<size_t>(max_tokens) * static_cast<size_t>(shape.top_k);
    const auto most =
        static_cast<size_t>(product_rows(static_cast<int>(std::min<size_t>(num_slots, kMaxRows))));
    const auto take = [&](size_t& part, size_t size) {
      part = bytes;
      bytes += aligned(size);
    };
    take(weights, width * inner * 2);
    take(x, most * width * 2);
    take(gate, most * inner * 4);
    take(up, most * inner * 4);
    take(hidden, most * inner * 2);
    take(rows, (num_slots + most) * width * 4);  // a product writes up to M rows
    take(slots, num_slots * 4);
    take(row_of_slot, num_slots * 4);
  }
};

// MXFP4: how far the largest scale is above what lets 6 * scale be a BF16 number.
int32_t shift_of(const MatrixView& matrix) {
  if (matrix.format != WeightFormat::kMxfp4) return 0;
  const auto* scales = static_cast<const uint8_t*>(matrix.scales);
  const int largest = *std::max_element(scales, scales + scale_bytes(matrix)) - 127;
  return std::max(0, largest - 125);
}

class DequantPlan : public MoePlan {
 public:
  DequantPlan(const MoeShape& shape, const MoeLimits& limits, CudaDevice& device)
      : shape_(shape),
        limits_(limits),
        device_(&device),
        expert_(shape),
        workspace_(shape, limits.max_tokens) {
    layout_.name = fmt::format("{}.dequant", name_of(shape.weights));
    layout_.expert_bytes = expert_.bytes;
    layout_.packed_bytes = expert_.bytes * static_cast<size_t>(shape.num_experts);
    device.make_current();
    product(16, kUp);  // is there a cuBLASLt?
  }

  const MoeShape& shape() const override { return shape_; }
  const MoeLayout& layout() const override { return layout_; }
  size_t workspace_bytes() const override { return workspace_.bytes; }
  std::string describe() const override {
    return fmt::format(
        "moe dequant, {} weights decoded to BF16 an expert at a time, cuBLASLt products with fp32 "
        "accumulation; reads the routing back, so it cannot be captured",
        name_of(shape_.weights));
  }

  bool takes_f32_x() const override { return false; }

  void pack_expert(const ExpertWeights& expert, std::span<std::byte> packed) const override {
    check_expert(expert, shape_, layout_, packed.size());
    std::memset(packed.data(), 0, packed.size());
    ExpertTrailer trailer;
    const std::array<const MatrixView*, kNumMatrices> matrices = {&expert.gate, &expert.up,
                                                                  &expert.down};
    for (size_t i = 0; i < kNumMatrices; ++i) {
      const MatrixView& matrix = *matrices[i];
      if (matrix.empty()) continue;
      const ExpertLayout::Part& part = expert_.parts[i];
      std::memcpy(packed.data() + part.values, matrix.values, value_bytes(matrix));
      if (scale_bytes(matrix) > 0)
        std::memcpy(packed.data() + part.scales, matrix.scales, scale_bytes(matrix));
      trailer.shift[i] = shift_of(matrix);
      trailer.factor[i] = std::ldexp(matrix.global_scale, trailer.shift[i]);
    }
    std::memcpy(packed.data() + expert_.trailer, &trailer, sizeof trailer);
  }

  std::unique_ptr<MoeLayer> bind(const void* packed, size_t packed_bytes) const override;

  void run(const std::byte* packed, const Routing& routing, const TensorView& x,
           const TensorView& y, void* workspace) const;

 private:
  struct Pointers;

  // X (rows, L) times gate or up, or H (rows, F) times down. Looked up once for each size.
  const CublasProduct& product(int rows, MatrixIndex matrix) const {
    const bool is_down = matrix == kDown;
    const auto key = std::pair(rows, is_down);
    auto found = products_->find(key);
    if (found == products_->end()) {
      const int width = padded(shape_.hidden), inner = padded(shape_.intermediate);
      found = products_
                  ->emplace(key, CublasProduct({rows, is_down ? width : inner,
                                                is_down ? inner : width, DType::kF32}))
                  .first;
    }
    return found->second;
  }

  void run_rows(const std::byte* expert, const int32_t* slots, int count, const TensorView& x,
                const Pointers& at, float* out) const;
  void multiply(const std::byte* expert, MatrixIndex index, const void* from, int count, float* to,
                const Pointers& at) const;
  cudaStream_t stream() const { return static_cast<cudaStream_t>(device_->stream()); }
  const ExpertTrailer* trailer(const std::byte* expert) const {
    return reinterpret_cast<const ExpertTrailer*>(expert + expert_.trailer);
  }

  MoeShape shape_;
  MoeLimits limits_;
  CudaDevice* device_;
  ExpertLayout expert_;
  Workspace workspace_;
  MoeLayout layout_;
  using Products = std::map<std::pair<int, bool>, CublasProduct>;
  std::shared_ptr<Products> products_ = std::make_shared<Products>();
};

struct DequantPlan::Pointers {
  void *weights, *x;
  float *gate, *up;
  void* hidden;
  float* rows;
  int32_t *slots, *row_of_slot;

  Pointers(void* workspace, const Workspace& parts) {
    auto* base = static_cast<std::byte*>(workspace);
    weights = base + parts.weights;
    x = base + parts.x;
    gate = reinterpret_cast<float*>(base + parts.gate);
    up = reinterpret_cast<float*>(base + parts.up);
    hidden = base + parts.hidden;
    rows = reinterpret_cast<float*>(base + parts.rows);
    slots = reinterpret_cast<int32_t*>(base + parts.slots);
    row_of_slot = reinterpret_cast<int32_t*>(base + parts.row_of_slot);
  }
};

void refuse_capture(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  HB_CUDA(cudaStreamIsCapturing(stream, &status));
  if (status != cudaStreamCaptureStatusNone)
    throw Error(ErrorKind::kUnsupported, "moe backend dequant",
                "reads the routing back, so it cannot be captured in a CUDA graph; backend hopper "
                "can");
}

// NOTE: allocates, reads back and waits; that a run does not is a promise of the fast backends.
void DequantPlan::run(const std::byte* packed, const Routing& routing, const TensorView& x,
                      const TensorView& y, void* workspace) const {
  check_call(routing, x, y, shape_, limits_);
  if (x.dtype != DType::kBf16)
    throw Error(ErrorKind::kUnsupported, "moe backend dequant x",
                fmt::format("{}: expected BF16", name_of(x.dtype)));
  device_->make_current();
  const cudaStream_t stream = this->stream();
  refuse_capture(stream);
  if (routing.num_tokens == 0) return;
  const Pointers at(workspace, workspace_);

  // The routing, sorted by expert.
  const size_t num_slots =
      static_cast<size_t>(routing.num_tokens) * static_cast<size_t>(shape_.top_k);
  std::vector<int32_t> ids(num_slots);
  HB_CUDA(cudaMemcpyAsync(ids.data(), routing.topk_ids, num_slots * sizeof(int32_t),
                          cudaMemcpyDeviceToHost, stream));
  HB_CUDA(cudaStreamSynchronize(stream));
  std::vector<int64_t> offsets(static_cast<size_t>(shape_.num_experts) + 1), order(num_slots);
  const int64_t kept = sort_slots(ids.data(), static_cast<int64_t>(num_slots), shape_.num_experts,
                                  offsets.data(), order.data());
  std::vector<int32_t> slots(num_slots), row_of_slot(num_slots);
  for (int64_t row = 0; row < kept; ++row) {
    const auto slot = static_cast<int32_t>(order[static_cast<size_t>(row)]);
    slots[static_cast<size_t>(row)] = slot;
    row_of_slot[static_cast<size_t>(slot)] = static_cast<int32_t>(row);
  }
  // NOTE: out of pageable memory: it has been read when the call returns.
  const auto upload = [&](int32_t* to, const std::vector<int32_t>& from) {
    HB_CUDA(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(int32_t), cudaMemcpyHostToDevice,
                            stream));
  };
  upload(at.slots, slots);
  upload(at.row_of_slot, row_of_slot);

  // Experts, by rising number: the rows that a product writes past its own belong to later ones.
  for (int e = 0; e < shape_.num_experts; ++e) {
    const int64_t end = offsets[static_cast<size_t>(e) + 1];
    for (int64_t begin = offsets[static_cast<size_t>(e)]; begin < end; begin += kMaxRows)
      run_rows(packed + static_cast<size_t>(e) * layout_.expert_bytes, at.slots + begin,
               static_cast<int>(std::min<int64_t>(kMaxRows, end - begin)), x, at,
               at.rows + begin * padded(shape_.hidden));
  }

  dequant::Combine combine;
  combine.routing = routing;
  combine.num_experts = shape_.num_experts;
  combine.top_k = shape_.top_k;
  combine.rows = at.rows;
  combine.row_stride = padded(shape_.hidden);
  combine.row_of_slot = at.row_of_slot;
  combine.trailer = trailer(packed);
  combine.expert_bytes = layout_.expert_bytes;
  HB_CUDA(dequant::combine(combine, y, stream));
}

// out (count, L) = the expert's output for the tokens of `slots`, without the factor of down.
void DequantPlan::run_rows(const std::byte* expert, const int32_t* slots, int count,
                           const TensorView& x, const Pointers& at, float* out) const {
  const cudaStream_t stream = this->stream();
  HB_CUDA(dequant::gather(x, slots, count, shape_.top_k, at.x, padded(shape_.hidden), stream));
  if (shape_.activation.gated()) multiply(expert, kGate, at.x, count, at.gate, at);
  multiply(expert, kUp, at.x, count, at.up, at);
  HB_CUDA(dequant::activate(at.gate, at.up, trailer(expert), shape_.activation, count,
                            shape_.intermediate, padded(shape_.intermediate), at.hidden, stream));
  multiply(expert, kDown, at.hidden, count, out, at);
}

void DequantPlan::multiply(const std::byte* expert, MatrixIndex index, const void* from, int count,
                           float* to, const Pointers& at) const {
  const cudaStream_t stream = this->stream();
  const ExpertLayout::Part& part = expert_.parts[index];
  PackedMatrix matrix;
  matrix.format = shape_.weights;
  matrix.rows = static_cast<int>(part.matrix.rows);
  matrix.cols = static_cast<int>(part.matrix.cols);
  matrix.values = expert + part.values;
  matrix.scales = expert + part.scales;
  matrix.shift = &trailer(expert)->shift[index];
  HB_CUDA(dequant::decode(matrix, at.weights, padded(matrix.rows), padded(matrix.cols), stream));
  product(product_rows(count), index).run(from, at.weights, to, nullptr, stream);
}

class DequantLayer : public MoeLayer {
 public:
  DequantLayer(const DequantPlan& plan, const std::byte* packed) : plan_(plan), packed_(packed) {}
  void run(const Routing& routing, TensorView x, TensorView y, void* workspace) const override {
    plan_.run(packed_, routing, x, y, workspace);
  }

 private:
  DequantPlan plan_;
  const std::byte* packed_;
};

std::unique_ptr<MoeLayer> DequantPlan::bind(const void* packed, size_t packed_bytes) const {
  check_packed(packed, packed_bytes, layout_);
  return std::make_unique<DequantLayer>(*this, static_cast<const std::byte*>(packed));
}

}  // namespace

std::unique_ptr<MoePlan> plan_moe_dequant(const MoeShape& shape, const MoeLimits& limits,
                                          Device& device) {
  return std::make_unique<DequantPlan>(shape, limits, dynamic_cast<CudaDevice&>(device));
}

}  // namespace halfbyte

// The MoE operation as its definition reads (halfbyte/moe.h): plain loops, double accumulators.
//
//   h[s][f] = act(sum_l gate[f][l] x[t][l], sum_l up[f][l] x[t][l]), rounded once to the dtype of x
//   o[s][l] = sum_f down[l][f] h[s][f];    y[t][l] = sum_k weight[t][k] o[t K + k][l], k rising
//
// Letters: t token, s = t K + k slot, l < L, f < F. Packed: for each expert the matrices as the
// checkpoint stores them, values then scales, gate, up, down; then three fp32 global scales. Each
// part starts at a multiple of 64 bytes. Checked: tests/golden/moe_op_test.cpp against an
// independent double-precision script.
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "formats/bf16.h"
#include "formats/decode.h"
#include "moe/backend.h"
#include "moe/routing.h"
#include "ops/activation.h"

namespace halfbyte {

namespace {

// Tokens that are worked on at once, so that a weight row is decoded once for all of them.
constexpr int kTokensAtOnce = 64;

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

double load(const TensorView& view, int64_t row, int64_t col) {
  return view.dtype == DType::kF32 ? double{view.row<float>(row)[col]}
                                   : double{bf16_to_float(view.row<uint16_t>(row)[col])};
}

void store(const TensorView& view, int64_t row, int64_t col, double value) {
  const float rounded = static_cast<float>(value);
  if (view.dtype == DType::kF32)
    view.row<float>(row)[col] = rounded;
  else
    view.row<uint16_t>(row)[col] = float_to_bf16(rounded);
}

// Where one expert's parts begin in its packed bytes.
struct Layout {
  struct Part {
    size_t values = 0, scales = 0;
    MatrixView matrix;  // format and shape only
  };
  Part gate, up, down;
  size_t global_scales = 0;  // gate, up, down
  size_t bytes = 0;

  explicit Layout(const MoeShape& shape) {
    const auto add = [&](Part& part, int rows, int cols) {
      part.matrix.format = shape.weights;
      part.matrix.rows = rows;
      part.matrix.cols = cols;
      part.values = bytes;
      part.scales = part.values + aligned(value_bytes(part.matrix));
      bytes = part.scales + aligned(scale_bytes(part.matrix));
    };
    if (shape.activation.gated()) add(gate, shape.intermediate, shape.hidden);
    add(up, shape.intermediate, shape.hidden);
    add(down, shape.hidden, shape.intermediate);
    global_scales = bytes;
    bytes += aligned(3 * sizeof(float));
  }
};

void copy_part(const MatrixView& from, const Layout::Part& part, std::byte* packed) {
  std::memcpy(packed + part.values, from.values, value_bytes(from));
  if (scale_bytes(from) > 0) std::memcpy(packed + part.scales, from.scales, scale_bytes(from));
}

MatrixView view_part(const Layout::Part& part, const std::byte* packed, float global_scale) {
  MatrixView view = part.matrix;
  view.values = packed + part.values;
  view.scales = packed + part.scales;
  view.global_scale = global_scale;
  return view;
}

class RefMoePlan : public MoePlan {
 public:
  RefMoePlan(const MoeShape& shape, const MoeLimits& limits)
      : shape_(shape), limits_(limits), parts_(shape) {
    layout_.name = fmt::format("{}.reference", name_of(shape.weights));
    layout_.expert_bytes = parts_.bytes;
    layout_.packed_bytes = parts_.bytes * static_cast<size_t>(shape.num_experts);
  }

  const MoeShape& shape() const override { return shape_; }
  const MoeLimits& limits() const { return limits_; }
  const MoeLayout& layout() const override { return layout_; }
  const Layout& parts() const { return parts_; }
  size_t workspace_bytes() const override { return 0; }
  std::string describe() const override {
    return fmt::format("moe reference, {} weights, plain loops, double accumulators",
                       name_of(shape_.weights));
  }

  void pack_expert(const ExpertWeights& expert, std::span<std::byte> packed) const override {
    check_expert(expert, shape_, layout_, packed.size());
    const std::array<float, 3> globals = {expert.gate.global_scale, expert.up.global_scale,
                                          expert.down.global_scale};
    if (shape_.activation.gated()) copy_part(expert.gate, parts_.gate, packed.data());
    copy_part(expert.up, parts_.up, packed.data());
    copy_part(expert.down, parts_.down, packed.data());
    std::memcpy(packed.data() + parts_.global_scales, globals.data(), sizeof globals);
  }

  std::unique_ptr<MoeLayer> bind(const void* packed, size_t packed_bytes) const override;

 private:
  MoeShape shape_;
  MoeLimits limits_;
  Layout parts_;
  MoeLayout layout_;
};

class RefMoeLayer : public MoeLayer {
 public:
  RefMoeLayer(const RefMoePlan& plan, const std::byte* packed) : plan_(plan), packed_(packed) {}

  // NOTE: allocates as it goes; that a run does not is a promise of the fast backends.
  void run(const Routing& routing, TensorView x, TensorView y, void*) const override {
    check_call(routing, x, y, plan_.shape(), plan_.limits());
    const int top_k = plan_.shape().top_k;
    for (int64_t begin = 0; begin < routing.num_tokens; begin += kTokensAtOnce) {
      const int64_t count = std::min<int64_t>(kTokensAtOnce, routing.num_tokens - begin);
      run_tokens({routing.topk_ids + begin * top_k, routing.topk_weights + begin * top_k,
                  static_cast<int>(count)},
                 x.row_slice(begin, count), y.row_slice(begin, count));
    }
  }

 private:
  void run_tokens(const Routing& routing, TensorView x, TensorView y) const {
    const MoeShape& shape = plan_.shape();
    const int64_t top_k = shape.top_k;
    const int64_t num_slots = routing.num_tokens * top_k;
    std::vector<int64_t> offsets(static_cast<size_t>(shape.num_experts) + 1);
    std::vector<int64_t> order(static_cast<size_t>(num_slots));
    sort_slots(routing.topk_ids, num_slots, shape.num_experts, offsets.data(), order.data());

    std::vector<double> out(static_cast<size_t>(num_slots * shape.hidden));  // (slots, L)
    for (int e = 0; e < shape.num_experts; ++e) {
      const int64_t* slots = order.data() + offsets[static_cast<size_t>(e)];
      const int64_t count = offsets[static_cast<size_t>(e) + 1] - offsets[static_cast<size_t>(e)];
      if (count > 0) run_expert(e, slots, count, x, out);
    }

    // y = sum over slots in slot order. A slot without an expert or with weight 0 adds nothing.
    for (int64_t t = 0; t < routing.num_tokens; ++t)
      for (int64_t l = 0; l < shape.hidden; ++l) {
        double sum = 0;
        for (int64_t slot = t * top_k; slot < (t + 1) * top_k; ++slot) {
          const int32_t id = routing.topk_ids[slot];
          const float weight = routing.topk_weights[slot];
          if (id >= 0 && id < shape.num_experts && weight != 0)
            sum += double{weight} * out[static_cast<size_t>(slot * shape.hidden + l)];
        }
        store(y, t, l, sum);
      }
  }

  // out[slot] = down act(gate x, up x) for the slots of one expert.
  void run_expert(int expert, const int64_t* slots, int64_t count, TensorView x,
                  std::vector<double>& out) const {
    const MoeShape& shape = plan_.shape();
    const Layout& parts = plan_.parts();
    const std::byte* bytes = packed_ + static_cast<size_t>(expert) * plan_.layout().expert_bytes;
    std::array<float, 3> globals;
    std::memcpy(globals.data(), bytes + parts.global_scales, sizeof globals);
    const MatrixView up = view_part(parts.up, bytes, globals[1]);
    const MatrixView down = view_part(parts.down, bytes, globals[2]);
    const size_t L = static_cast<size_t>(shape.hidden), F = static_cast<size_t>(shape.intermediate);
    const size_t M = static_cast<size_t>(count);

    // Hidden: h (M, F).
    std::vector<double> gate_row(L), up_row(L), h(M * F);
    for (size_t f = 0; f < F; ++f) {
      if (shape.activation.gated())
        decode_row(view_part(parts.gate, bytes, globals[0]), static_cast<int64_t>(f),
                   gate_row.data());
      decode_row(up, static_cast<int64_t>(f), up_row.data());
      for (size_t m = 0; m < M; ++m) {
        const int64_t t = slots[m] / shape.top_k;
        double g = 0, u = 0;
        for (size_t l = 0; l < L; ++l) {
          const double value = load(x, t, static_cast<int64_t>(l));
          g += gate_row[l] * value;
          u += up_row[l] * value;
        }
        const float value = static_cast<float>(activate<double>(shape.activation, g, u));
        h[m * F + f] = x.dtype == DType::kF32 ? value : bf16_to_float(float_to_bf16(value));
      }
    }

    // Output: out (slots, L).
    std::vector<double> down_row(F);
    for (size_t l = 0; l < L; ++l) {
      decode_row(down, static_cast<int64_t>(l), down_row.data());
      for (size_t m = 0; m < M; ++m) {
        double sum = 0;
        for (size_t f = 0; f < F; ++f) sum += down_row[f] * h[m * F + f];
        out[static_cast<size_t>(slots[m]) * L + l] = sum;
      }
    }
  }

  RefMoePlan plan_;
  const std::byte* packed_;
};

std::unique_ptr<MoeLayer> RefMoePlan::bind(const void* packed, size_t packed_bytes) const {
  check_packed(packed, packed_bytes, layout_);
  return std::make_unique<RefMoeLayer>(*this, static_cast<const std::byte*>(packed));
}

}  // namespace

std::unique_ptr<MoePlan> plan_moe_ref(const MoeShape& shape, const MoeLimits& limits, Device&) {
  return std::make_unique<RefMoePlan>(shape, limits);
}

}  // namespace halfbyte

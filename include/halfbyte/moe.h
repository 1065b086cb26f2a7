// The fused mixture-of-experts operation: shape -> plan -> pack -> bind -> run.
//
//   y[t] = sum_k weight[t][k] * down_e( act( gate_e(x[t]), up_e(x[t]) ) ),   e = expert[t][k]; -1:
//   not here
//
// Letters: T tokens, E experts, K experts a token, L width of x and y, F inner width of an expert.
// Numerics (docs/numerics.md): weights decode exactly to BF16; products accumulate in fp32; the
// fp32 scale of a matrix multiplies the accumulator, gate and up each with its own, before the
// nonlinearity; the activation is evaluated in fp32; the hidden h is rounded once to the dtype of
// x; slots are combined in fp32 in slot order (backend hopper: where the call is small, in an order
// that the set of experts fixes; beyond 64 tokens, slots rounded to BF16). Results are bitwise the
// same from run to run, for any number of threads and any order of the tokens; on ref and cpu also
// for any company in the batch. Device "ref" is the definition: plain loops, double accumulators.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "halfbyte/activation.h"
#include "halfbyte/device.h"
#include "halfbyte/tensor.h"

namespace halfbyte {

class DevicePacker;  // src/moe/device_packer.h

struct MoeShape {
  int num_experts = 0;   // E
  int top_k = 0;         // K
  int hidden = 0;        // L, a multiple of the format's group (16 for NVFP4, 32 for MXFP4)
  int intermediate = 0;  // F, the same
  Activation activation;
  WeightFormat weights = WeightFormat::kNvfp4;  // kBf16, kNvfp4 or kMxfp4
};

struct MoeLimits {
  int max_tokens = 1;  // the largest T that `run` will see
  // Experts that the router chooses among, if num_experts of them are here (expert parallelism); 0:
  // all are here. Says how many rows an expert will have, on average; results differ by rounding.
  int num_global_experts = 0;
};

// How packed weights lie in memory: equal layouts may exchange packed bytes.
struct MoeLayout {
  std::string name;         // e.g. "nvfp4.cpu.tile16"
  size_t expert_bytes = 0;  // one expert, its scales and global scales included
  size_t packed_bytes = 0;  // the layer: E * expert_bytes
};

// One expert as the checkpoint stores it: gate and up (F, L), down (L, F). `gate` is empty if not
// gated.
struct ExpertWeights {
  MatrixView gate, up, down;
};
using ExpertSource = std::function<ExpertWeights(int expert)>;

// Which experts each token goes to. Device memory.
struct Routing {
  const int32_t* topk_ids =
      nullptr;  // (T, K); an id outside [0, E) is skipped, whatever its weight
  // (T, K); final factors, applied to the expert's output; 0 skips the slot, even if the expert
  // gives NaN
  const float* topk_weights = nullptr;
  int num_tokens = 0;  // T, 0 is legal
};

class MoeLayer {
 public:
  virtual ~MoeLayer() = default;
  // x (T, L) BF16 or F32 (plan.takes_f32_x()), y (T, L) BF16 or F32; `workspace` has at least
  // plan.workspace_bytes(). Queues the work: no allocation, no wait, no read-back (but backend
  // dequant). Rows of y without any expert become 0. x and y do not overlap. Calls on one GPU
  // follow each other: blocks of a kernel may wait for the others of their grid to run as well.
  // Throws Error{kInput} for what does not fit the plan.
  virtual void run(const Routing& routing, TensorView x, TensorView y, void* workspace) const = 0;
};

class MoePlan {
 public:
  virtual ~MoePlan() = default;
  virtual const MoeShape& shape() const = 0;
  virtual const MoeLayout& layout() const = 0;
  virtual size_t workspace_bytes() const = 0;
  virtual std::string describe() const = 0;  // kernels and tiles, one line
  // May x be F32? It may always be BF16.
  virtual bool takes_f32_x() const { return true; }
  // Repacks one expert into `packed` (layout().expert_bytes of host memory). Checks format, shapes
  // and every scale; throws Error{kInput} that names the tensor. May be called for different
  // experts from several threads.
  virtual void pack_expert(const ExpertWeights& expert, std::span<std::byte> packed) const = 0;
  // Packs tensors that lie in the device's memory; null: this backend packs on the host only. Lives
  // as long as the plan.
  virtual const DevicePacker* device_packer() const { return nullptr; }
  // `packed` (device memory, layout().packed_bytes) must outlive the layer. Checks everything, here
  // and never again.
  virtual std::unique_ptr<MoeLayer> bind(const void* packed, size_t packed_bytes) const = 0;
};

// `backend`: "auto" (the fastest that can), "reference", "cpu", and with CUDA "hopper" (fused) or
// "dequant" (experts decoded to BF16, then plain products). SGLang's "flashinfer_cutedsl" and
// "marlin" mean "hopper", which is logged. Throws Error{kUnsupported} with the reason and what
// would work.
std::unique_ptr<MoePlan> plan_moe(const MoeShape& shape, const MoeLimits& limits, Device& device,
                                  std::string_view backend = "auto");

// All experts of a layer, in order, into packed host memory of plan.layout().packed_bytes.
void pack_experts(const ExpertSource& source, const MoePlan& plan, std::span<std::byte> packed);

}  // namespace halfbyte

// Dense operations of the CPU devices: each is cut into pieces for the threads of the device's
// pool; the pieces' loops are in dense.h. Pieces are cut by sizes alone and never add into each
// other, so that results do not depend on the number of threads.
#pragma once

#include "ops/cpu/dense.h"
#include "ops/ops.h"
#include "simd/cpu_device.h"

namespace halfbyte::cpu {

class CpuOps : public Ops {
 public:
  explicit CpuOps(CpuDevice& device);

  std::unique_ptr<Linear> load_linear(const MatrixView& weight) override;
  std::unique_ptr<LatentAttention> load_latent_attention(
      const MatrixView& kv_b, const LatentAttentionShape& shape) override;
  void embed(TensorView table, const int32_t* ids, TensorView y) override;
  void copy(TensorView x, TensorView y) override;
  void add(TensorView x, TensorView y) override;
  void rmsnorm(TensorView x, const float* gain, float eps, TensorView y) override;
  void residual_mix(std::span<const TensorView> candidates, const float* score_weight, float eps,
                    TensorView y) override;
  void activate(TensorView gate, TensorView up, const Activation& activation,
                TensorView y) override;
  void sigmoid_gate(TensorView x, TensorView gate, TensorView y) override;
  void route(TensorView logits, const float* bias, const RouterRule& rule, int32_t* ids,
             float* weights) override;
  void short_conv(TensorView u, const float* taps, int width, TensorView state,
                  TensorView y) override;
  size_t kda_workspace_bytes(const KdaShape& shape) const override;
  void kda(const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs, float* state,
           TensorView o, void* workspace) override;
  void gated_head_norm(TensorView o, TensorView gate, const float* gain, int head_dim, float eps,
                       TensorView y) override;

 private:
  CpuDevice& device_;
  const DenseKernels& kernels_;
};

std::unique_ptr<LatentAttention> load_cpu_latent_attention(CpuDevice& device,
                                                           const MatrixView& kv_b,
                                                           const LatentAttentionShape& shape);

}  // namespace halfbyte::cpu

// Intermediates of a forward pass, by name, on the host: what tests and `halfbyte logits --trace`
// compare layer by layer.
//
// Names, with rows = tokens: layers.N.{attn_mix, attn_norm, attn_out, mlp_mix, mlp_norm, mlp_out,
// residual_out}; of MoE layers router_ids (I32), router_weights (by falling weight), shared_out,
// and, if the experts are latent, latent, routed_sum, routed_out; final_mix, final_norm.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "halfbyte/device.h"

namespace halfbyte {

class Trace {
 public:
  struct Tensor {
    DType dtype = DType::kF32;  // kF32, or kI32
    int64_t cols = 0;
    std::vector<float> values;  // kF32: (rows, cols)
    std::vector<int32_t> ids;   // kI32: (rows, cols)
    int64_t rows() const {
      return static_cast<int64_t>(dtype == DType::kI32 ? ids.size() : values.size()) / cols;
    }
  };

  // Appends the rows of `view` (device memory; BF16, F32 or I32): a prompt in pieces gives the same
  // tensors as in one piece.
  void record(Device& device, const std::string& name, const TensorView& view);

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  void write(const std::filesystem::path& path) const;  // safetensors

 private:
  std::map<std::string, Tensor> tensors_;
};

}  // namespace halfbyte

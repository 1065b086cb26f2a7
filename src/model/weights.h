// The weights of a model on a device, loaded from a checkpoint.
//
// Letters as in ops.h. Every matrix is packed once, in the form it is stored in (BF16, FP8 blocks,
// NVFP4, MXFP4), and its mapped pages are dropped; vectors become F32.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "formats/checkpoint.h"
#include "halfbyte/device.h"
#include "halfbyte/moe.h"
#include "model/config.h"
#include "ops/ops.h"

namespace halfbyte {

// F32 values in device memory.
class DeviceVector {
 public:
  DeviceVector() = default;
  DeviceVector(Device& device, const std::vector<float>& values);
  operator const float*() const { return static_cast<const float*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

using Matrix = std::unique_ptr<Linear>;

struct GatedMlpWeights {
  Matrix gate, up, down;
};

struct KdaLayerWeights {
  Matrix q, k, v;                       // (H*D, hidden)
  DeviceVector q_conv, k_conv, v_conv;  // (W, H*D)
  Matrix decay_a, decay_b;              // forget gate: (D, hidden), (H*D, D)
  Matrix strength;                      // (H, hidden)
  DeviceVector log_decay;               // (H)
  DeviceVector decay_bias;              // (H*D)
  Matrix gate_a, gate_b;  // output gate: (D, hidden), (H*D, D); or gate_b alone, full rank
  DeviceVector out_norm;  // (D)
  Matrix out;             // (hidden, H*D)
};

struct MlaLayerWeights {
  Matrix q_a;  // (rank, hidden); none: q_b reads x
  DeviceVector q_norm;
  Matrix q_b;            // (H*(N+R), rank or hidden)
  Matrix kv_a;           // (C+R, hidden)
  DeviceVector kv_norm;  // (C)
  std::unique_ptr<LatentAttention> attention;
  Matrix gate;  // (H*V, hidden), or none
  Matrix out;   // (hidden, H*V)
};

struct MoeLayerWeights {
  Matrix router;                  // (E, hidden)
  DeviceVector router_bias;       // (E)
  Matrix latent_down, latent_up;  // (L, hidden), (hidden, L); or none
  DeviceVector latent_norm;       // (L), or none
  Buffer packed;
  std::unique_ptr<MoeLayer> experts;
  GatedMlpWeights shared;  // or none
};

struct LayerWeights {
  DeviceVector attention_mix;  // (hidden) score weight of the residual mix, or none
  DeviceVector attention_norm;
  std::unique_ptr<KdaLayerWeights> kda;  // one of the two
  std::unique_ptr<MlaLayerWeights> mla;
  DeviceVector mlp_mix;
  DeviceVector mlp_norm;
  std::unique_ptr<GatedMlpWeights> dense;  // one of the two
  std::unique_ptr<MoeLayerWeights> moe;
};

struct ModelWeights {
  Buffer embedding_memory;
  TensorView embedding;  // (V, hidden) BF16 or F32
  std::vector<LayerWeights> layers;
  DeviceVector output_mix;
  DeviceVector output_norm;
  Matrix lm_head;
  std::map<WeightFormat, std::unique_ptr<MoePlan>> plans;  // of the layers' experts
  size_t moe_workspace_bytes = 0;
};

struct LoadOptions {
  int max_chunk = 512;               // the largest T of one pass
  std::string moe_backend = "auto";  // plan_moe's
  // Called after every layer, on the calling thread.
  std::function<void(int layers_done, int layers)> progress = {};
};

// Checks every name, shape and dtype before any work. Throws Error that names file and tensor.
ModelWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config, Device& device,
                          const LoadOptions& options);

}  // namespace halfbyte

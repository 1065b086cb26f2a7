// One MoE operation in a safetensors file: the layout of tests/golden/moe-op.
//
//   metadata "case"   JSON: "activation", "params" {beta, linear_beta, alpha, limit, up_bias}, all
//                     numbers; linear_beta may be null, which is "none" and not its default
//   hidden            BF16 or F32 (T, L)
//   topk_ids          I32 (T, K); topk_weights F32 (T, K)
//   experts.E.w1|gate_proj, .w3|up_proj, .w2|down_proj: `.weight` U8 with `.weight_scale` F8_E4M3
//   and
//                     `.weight_scale_2` F32 (NVFP4), U8 with `.weight_scale` F8_E8M0 (MXFP4), or
//                     BF16.
//                     `.input_scale` is ignored: activations are not quantised.
#pragma once

#include <filesystem>
#include <vector>

#include "formats/safetensors.h"
#include "halfbyte/moe.h"

namespace halfbyte {

struct MoeCase {
  explicit MoeCase(const std::filesystem::path& path);  // throws Error{kInput}: file and tensor

  SafetensorsFile file;
  MoeShape shape;
  std::vector<ExpertWeights> experts;  // views into the file
  TensorView x;                        // (T, L), read-only
  Routing routing;                     // views into the file
};

}  // namespace halfbyte

// Dense products and latent attention on "ref": weights stay as the checkpoint stores them, rows
// are decoded to doubles where they are used.
#pragma once

#include <memory>
#include <vector>

#include "ops/ops.h"

namespace halfbyte::ref {

std::unique_ptr<Linear> load_ref_linear(const MatrixView& weight);
std::unique_ptr<LatentAttention> load_ref_latent_attention(const MatrixView& kv_b,
                                                           const LatentAttentionShape& shape);

}  // namespace halfbyte::ref

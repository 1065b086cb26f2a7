#include "moe/cost.h"

#include <vector>

namespace halfbyte {

MoeCost moe_cost(const MoeShape& shape, const MoeLayout& layout, const Routing& routing,
                 DType x_dtype, DType y_dtype) {
  MoeCost cost;
  std::vector<bool> active(static_cast<size_t>(shape.num_experts));
  const int64_t slots = int64_t{routing.num_tokens} * shape.top_k;
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int32_t id = routing.topk_ids[slot];
    // A weight of 0 asks for nothing.
    if (id < 0 || id >= shape.num_experts || routing.topk_weights[slot] == 0) continue;
    ++cost.active_slots;
    if (!active[static_cast<size_t>(id)]) ++cost.active_experts;
    active[static_cast<size_t>(id)] = true;
  }
  const double matrices = shape.activation.gated() ? 3 : 2;
  cost.flops =
      2.0 * shape.hidden * shape.intermediate * matrices * static_cast<double>(cost.active_slots);
  cost.weight_bytes =
      static_cast<double>(cost.active_experts) * static_cast<double>(layout.expert_bytes);
  cost.bytes =
      cost.weight_bytes + static_cast<double>(routing.num_tokens) * shape.hidden *
                              static_cast<double>(dtype_bytes(x_dtype) + dtype_bytes(y_dtype));
  return cost;
}

}  // namespace halfbyte

// What one call of the MoE operation must read, write and compute: the numbers that a benchmark's
// "% of roof" is made of.
//
//   bytes: packed weights of every expert that has a token, once; x once and y once.
//   flops: 2 L F per matrix and slot (gate, up, down; two matrices if there is no gate).
#pragma once

#include <cstdint>

#include "halfbyte/moe.h"

namespace halfbyte {

struct MoeCost {
  int64_t active_experts = 0;
  int64_t active_slots = 0;
  double weight_bytes = 0;
  double bytes = 0;  // weights, x and y
  double flops = 0;
};

// `routing.topk_ids` must be readable by the host. `y_dtype` as of the call, x the same or BF16.
MoeCost moe_cost(const MoeShape& shape, const MoeLayout& layout, const Routing& routing,
                 DType x_dtype, DType y_dtype);

}  // namespace halfbyte

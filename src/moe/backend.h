// What the table of backends (plan.cpp) knows of each, and checks that they share.
#pragma once

#include <memory>
#include <span>

#include "halfbyte/moe.h"

namespace halfbyte {

std::unique_ptr<MoePlan> plan_moe_ref(const MoeShape& shape, const MoeLimits& limits,
                                      Device& device);
std::unique_ptr<MoePlan> plan_moe_cpu(const MoeShape& shape, const MoeLimits& limits,
                                      Device& device);
// Only with CUDA.
std::unique_ptr<MoePlan> plan_moe_hopper(const MoeShape& shape, const MoeLimits& limits,
                                         Device& device);
std::unique_ptr<MoePlan> plan_moe_dequant(const MoeShape& shape, const MoeLimits& limits,
                                          Device& device);

// Throws Error{kInput} that names the matrix, unless `expert` is what `shape` promises: format,
// shapes, gate there or not, every scale; and `packed_bytes` what the layout needs.
void check_expert(const ExpertWeights& expert, const MoeShape& shape, const MoeLayout& layout,
                  size_t packed_bytes);

// Throws Error{kInput} unless `packed_bytes` is the layer's size.
void check_packed(const void* packed, size_t packed_bytes, const MoeLayout& layout);

// Throws Error{kInput} unless a call keeps to its plan.
void check_call(const Routing& routing, const TensorView& x, const TensorView& y,
                const MoeShape& shape, const MoeLimits& limits);

}  // namespace halfbyte

// Routings at random, for benchmarks: which experts each token goes to when a router is even,
// skewed, or stuck.
#pragma once

#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "halfbyte/moe.h"

namespace halfbyte {

enum class RoutingKind {
  kUniform,  // K different experts a token, all equally likely
  kZipf,     // K different experts a token, drawn with weights 1 / rank, ranks being shuffled
  kOne,      // every slot names the same expert
};

const char* name_of(RoutingKind kind);                  // "uniform", "zipf", "one"
RoutingKind parse_routing_kind(std::string_view name);  // else Error{kInput}

struct DrawnRouting {
  std::vector<int32_t> ids;    // (T, K)
  std::vector<float> weights;  // (T, K), all 1/K
  int num_tokens = 0;
  Routing view() const { return {ids.data(), weights.data(), num_tokens}; }
};

// Draws among `num_experts`, of which the first `num_local` are here: the others become -1 (expert
// parallelism). kOne draws a local one. With more choices than experts, experts repeat.
DrawnRouting draw_routing(RoutingKind kind, int num_tokens, int top_k, int num_experts,
                          int num_local, std::mt19937_64& random);

}  // namespace halfbyte

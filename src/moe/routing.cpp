#include "moe/routing.h"

#include <algorithm>

namespace halfbyte {

int64_t sort_slots(const int32_t* ids, int64_t num_slots, int num_experts, int64_t* offsets,
                   int64_t* order) {
  const auto is_here = [&](int32_t id) { return id >= 0 && id < num_experts; };

  // Count: offsets[e + 1] = slots of e; then sum, so that offsets[e] is where e begins.
  std::fill_n(offsets, num_experts + 1, int64_t{0});
  for (int64_t slot = 0; slot < num_slots; ++slot)
    if (is_here(ids[slot])) ++offsets[ids[slot] + 1];
  for (int e = 0; e < num_experts; ++e) offsets[e + 1] += offsets[e];

  // Place: offsets[e] moves to the end of e; shifted back by one expert afterwards.
  for (int64_t slot = 0; slot < num_slots; ++slot)
    if (is_here(ids[slot])) order[offsets[ids[slot]]++] = slot;
  for (int e = num_experts; e > 0; --e) offsets[e] = offsets[e - 1];
  offsets[0] = 0;
  return offsets[num_experts];
}

}  // namespace halfbyte

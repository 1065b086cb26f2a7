// Slots in the order of their experts. A slot is one (token, choice) pair, numbered token * K +
// choice; K experts a token.
#pragma once

#include <cstdint>

namespace halfbyte {

// Stable counting sort. `order` (up to num_slots) receives the slots of expert 0, then of expert 1,
// and so on, each expert's slots rising; those of expert e lie in [offsets[e], offsets[e + 1]),
// `offsets` being (E + 1). A slot whose id lies outside [0, E) is left out. A token may name one
// expert twice. Returns how many slots were kept.
int64_t sort_slots(const int32_t* ids, int64_t num_slots, int num_experts, int64_t* offsets,
                   int64_t* order);

}  // namespace halfbyte

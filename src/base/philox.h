// Philox4x32-10: random numbers as a function of (key, counter), without state.
//
// Any draw can be made on its own, in any order, on any thread. Salmon et al., "Parallel Random
// Numbers: As Easy as 1, 2, 3" (2011). Checked against the known answers of Random123.
#pragma once

#include <array>
#include <cstdint>

namespace halfbyte {

inline std::array<uint32_t, 4> philox(std::array<uint32_t, 2> key,
                                      std::array<uint32_t, 4> counter) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Uniform in [0, 1), 53 bits: draw `index` of stream `seed`.
inline double philox_uniform(uint64_t seed, uint64_t index) {
  const auto bits =
      philox({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
             {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0});
  return static_cast<double>((uint64_t{bits[1]} << 32 | bits[0]) >> 11) * 0x1p-53;
}

}  // namespace halfbyte

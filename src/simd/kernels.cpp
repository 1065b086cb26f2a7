#include "simd/kernels.h"

#include <fmt/format.h>

#include "halfbyte/error.h"
#include "simd/kernels_levels.h"

namespace halfbyte {

namespace {

Kernels make(SimdLevel level, void (*fill)(Kernels&)) {
  Kernels table;
  table.level = level;
  fill(table);
  return table;
}

}  // namespace

const Kernels& kernels(SimdLevel level) {
  switch (level) {
#if defined(__x86_64__)
    case SimdLevel::kAvx512: {
      static const Kernels table = make(level, avx512::fill);
      return table;
    }
    case SimdLevel::kAvx2: {
      static const Kernels table = make(level, avx2::fill);
      return table;
    }
#endif
    case SimdLevel::kScalar: {
      static const Kernels table = make(level, scalar::fill);
      return table;
    }
    default:
      throw Error(ErrorKind::kUnsupported, "instruction set",
                  fmt::format("this build has no kernels for {}", name_of(level)));
  }
}

}  // namespace halfbyte

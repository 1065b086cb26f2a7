#include "ops/cpu/dense.h"

#include <string>

#include "halfbyte/error.h"
#include "ops/cpu/dense_levels.h"

namespace halfbyte::cpu {

const DenseKernels& dense_kernels(SimdLevel level) {
  static const DenseKernels scalar_table = scalar::table();
#if defined(__x86_64__)
  static const DenseKernels avx2_table = avx2::table();
  static const DenseKernels avx512_table = avx512::table();
  if (level == SimdLevel::kAvx2) return avx2_table;
  if (level == SimdLevel::kAvx512) return avx512_table;
#endif
  if (level == SimdLevel::kScalar) return scalar_table;
  throw Error(ErrorKind::kUnsupported, "device",
              std::string("this build has no kernels for ") + name_of(level));
}

}  // namespace halfbyte::cpu

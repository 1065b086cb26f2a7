#include "ops/activation_kernels.h"

namespace halfbyte {

ActivateKernel activate_kernel(SimdLevel level) {
  switch (level) {
#if defined(__x86_64__)
    case SimdLevel::kAvx512:
      return avx512::activate;
    case SimdLevel::kAvx2:
      return avx2::activate;
#endif
    default:
      return scalar::activate;
  }
}

}  // namespace halfbyte

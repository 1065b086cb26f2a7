#include "formats/quant_kernels.h"

namespace halfbyte {

const std::vector<const QuantKernels*>& quant_kernels() {
  static const std::vector<const QuantKernels*> found = [] {
    std::vector<const QuantKernels*> kernels = {&kQuantScalar};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) kernels.push_back(&kQuantAvx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
      kernels.push_back(&kQuantAvx512);
#endif
    return kernels;
  }();
  return found;
}

}  // namespace halfbyte

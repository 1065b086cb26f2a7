// Each level makes the table of dense.h. Private to ops/cpu.
#pragma once

#include "ops/cpu/dense.h"

namespace halfbyte::cpu {

namespace scalar {
DenseKernels table();
}
namespace avx2 {
DenseKernels table();
}
namespace avx512 {
DenseKernels table();
}

}  // namespace halfbyte::cpu

// Each level fills the table of simd/kernels.h. Private to simd/.
#pragma once

#include "simd/kernels.h"

namespace halfbyte {

namespace scalar {
void fill(Kernels& table);
}
namespace avx2 {
void fill(Kernels& table);
}
namespace avx512 {
void fill(Kernels& table);
}

}  // namespace halfbyte

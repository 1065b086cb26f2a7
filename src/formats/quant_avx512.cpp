#include <bit>
#include <cstdint>
#include <limits>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/quant_kernels.h"

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")

namespace halfbyte {
namespace {
#include "formats/quant_body.inl.h"
}  // namespace

const QuantKernels kQuantAvx512 = {"avx512",       max_bits_f32, max_bits_bf16,
                                   widen_bf16,     max_scales,   transpose_magnitudes,
                                   squared_errors, encode,       encode_e4m3};

}  // namespace halfbyte

#pragma GCC pop_options
#endif

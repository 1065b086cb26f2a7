#include <bit>
#include <cstdint>
#include <limits>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/quant_kernels.h"

namespace halfbyte {
namespace {
#include "formats/quant_body.inl.h"
}  // namespace

const QuantKernels kQuantScalar = {"scalar",       max_bits_f32, max_bits_bf16,
                                   widen_bf16,     max_scales,   transpose_magnitudes,
                                   squared_errors, encode,       encode_e4m3};

}  // namespace halfbyte

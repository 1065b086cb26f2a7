#include "moe/cuda/pack_device.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/check_matrix.h"
#include "halfbyte/error.h"
#include "moe/cuda/layout.h"
#include "moe/cuda/pack.h"

namespace halfbyte::hopper {

namespace {

void check_aligned(const char* what, const void* address, int64_t stride, int64_t row_stride,
                   int64_t bytes) {
  if (static_cast<int64_t>(reinterpret_cast<uintptr_t>(address)) % bytes != 0 ||
      stride % bytes != 0 || row_stride % bytes != 0)
    throw Error(ErrorKind::kInput, fmt::format("packing on the GPU: {}", what),
                fmt::format("address {} with strides {} and {}: expected multiples of {} bytes",
                            address, stride, row_stride, bytes));
}

}  // namespace

std::string BadScales::where() const {
  constexpr const char* kMatrices[] = {"gate", "up", "down", "?"};
  return fmt::format("expert {}: {}", ~first >> 46, kMatrices[~first >> 44 & 3]);
}

std::string BadScales::what() const {
  const uint64_t row = ~first >> 24 & 0xFFFFF, group = ~first >> 8 & 0xFFFF;
  return group == kGlobal
             ? "the global scale is not finite and positive"
             : fmt::format("scale [{}, {}] is byte 0x{:02X}", row, group, ~first & 0xFF);
}

cudaError_t pack_experts_device(const MoeShape& shape, const StridedExperts& experts, void* packed,
                                BadScales* bad, cudaStream_t stream, int first_expert) {
  const int64_t alignment = shape.weights == WeightFormat::kMxfp4 ? 16 : 8;
  const auto check_codes = [&](const char* what, const StridedTensor& codes) {
    check_aligned(what, codes.data, codes.expert_stride, codes.row_stride, alignment);
  };
  if (shape.activation.gated()) check_codes("codes of gate", experts.gate.codes);
  check_codes("codes of up", experts.up.codes);
  check_codes("codes of down", experts.down.codes);
  check_aligned("packed experts", packed, 0, 0, 128);
  return launch_pack(shape, experts, packed, bad, stream, first_expert);
}

cudaError_t pack_experts_in_place(const MoeShape& shape, void* packed, void* scratch,
                                  size_t scratch_bytes, BadScales* bad, cudaStream_t stream) {
  const ExpertLayout layout = expert_layout(shape);
  const StagedExpert staged = staged_expert(shape);
  check_aligned("packed experts", packed, 0, 0, 128);
  check_aligned("scratch", scratch, 0, 0, 128);
  if (scratch_bytes < layout.bytes)
    throw Error(ErrorKind::kInput, "packing on the GPU: scratch",
                fmt::format("{} bytes: expected room for one packed expert, {} bytes",
                            scratch_bytes, layout.bytes));
  const auto stride = static_cast<int64_t>(layout.bytes);
  const int64_t group = scale_group(shape.weights);
  const int at_once = static_cast<int>(
      std::min(scratch_bytes / layout.bytes, static_cast<size_t>(shape.num_experts)));

  for (int first = 0; first < shape.num_experts; first += at_once) {
    MoeShape part = shape;
    part.num_experts = std::min(at_once, shape.num_experts - first);
    uint8_t* const here = static_cast<uint8_t*>(packed) + static_cast<size_t>(first) * layout.bytes;
    const auto* globals = reinterpret_cast<const float*>(here + staged.global_scales);
    const auto matrices = [&](size_t codes, size_t scales, int cols, const float* global_scale) {
      return StridedMatrices{{here + codes, stride, cols / 2},
                             {here + scales, stride, cols / group},
                             global_scale,
                             stride / 4};
    };
    const StridedExperts experts = {
        matrices(staged.gate_codes, staged.gate_scales, shape.hidden, globals),
        matrices(staged.up_codes, staged.up_scales, shape.hidden, globals + 1),
        matrices(staged.down_codes, staged.down_scales, shape.intermediate, globals + 2)};
    if (const cudaError_t error = pack_experts_device(part, experts, scratch, bad, stream, first);
        error != cudaSuccess)
      return error;
    if (const cudaError_t error =
            cudaMemcpyAsync(here, scratch, static_cast<size_t>(part.num_experts) * layout.bytes,
                            cudaMemcpyDeviceToDevice, stream);
        error != cudaSuccess)
      return error;
  }
  return cudaSuccess;
}

}  // namespace halfbyte::hopper

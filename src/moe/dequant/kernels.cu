// Plain kernels: one thought each, formulas as in docs/formats.md, functions as accurate as the
// CUDA library has them. Nothing is shared with the Hopper kernels: this is the second opinion on
// them.
#include <cuda_bf16.h>

#include "moe/dequant/kernels.h"

namespace halfbyte::dequant {
namespace {

constexpr int kThreads = 256;

__device__ float decode_e2m1(uint32_t code) {
  const uint32_t magnitude = code & 7;
  const float value = magnitude < 2 ? 0.5f * static_cast<float>(magnitude)
                                    : ldexpf(static_cast<float>(2 + (magnitude & 1)),
                                             static_cast<int>(magnitude >> 1) - 2);
  return (code & 8) != 0 ? -value : value;
}

__device__ float decode_e4m3(uint32_t byte) {
  const uint32_t exponent = (byte >> 3) & 15, mantissa = byte & 7;
  const float value =
      exponent == 0 ? ldexpf(static_cast<float>(mantissa), -9)
                    : ldexpf(static_cast<float>(8 + mantissa), static_cast<int>(exponent) - 10);
  return (byte & 128) != 0 ? -value : value;
}

// A thread decodes 16 columns: 8 bytes of codes, one scale. `cols` is a multiple of 16.
__global__ void decode_fp4_kernel(PackedMatrix m, __nv_bfloat16* out, int padded_rows,
                                  int padded_cols) {
  const int groups = padded_cols / 16;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = index / groups;
  const int group = static_cast<int>(index % groups);
  if (row >= padded_rows) return;
  __align__(16) __nv_bfloat16 decoded[16];
  if (row < m.rows && group * 16 < m.cols) {
    const auto* codes = reinterpret_cast<const uint8_t*>(m.values) + row * (m.cols / 2) + group * 8;
    const auto* scales = reinterpret_cast<const uint8_t*>(m.scales);
    const bool mx = m.format == WeightFormat::kMxfp4;
    const float e4m3 = mx ? 1.0f : decode_e4m3(scales[row * (m.cols / 16) + group]);
    const int power = mx ? scales[row * (m.cols / 32) + group / 2] - 127 - *m.shift : 0;
    for (int i = 0; i < 8; ++i)
      for (int half = 0; half < 2; ++half)
        decoded[2 * i + half] =
            __float2bfloat16_rn(ldexpf(decode_e2m1((codes[i] >> (4 * half)) & 15u) * e4m3, power));
  } else {
    for (__nv_bfloat16& value : decoded) value = __float2bfloat16_rn(0.0f);
  }
  auto* to = reinterpret_cast<uint4*>(out + row * padded_cols + group * 16);
  const auto* from = reinterpret_cast<const uint4*>(decoded);
  to[0] = from[0];
  to[1] = from[1];
}

__global__ void copy_bf16_kernel(PackedMatrix m, __nv_bfloat16* out, int padded_rows,
                                 int padded_cols) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = index / padded_cols, col = index % padded_cols;
  if (row >= padded_rows) return;
  const auto* values = reinterpret_cast<const __nv_bfloat16*>(m.values);
  out[index] =
      row < m.rows && col < m.cols ? values[row * m.cols + col] : __float2bfloat16_rn(0.0f);
}

__global__ void gather_kernel(const __nv_bfloat16* x, int64_t x_stride, int width,
                              const int32_t* slots, int top_k, __nv_bfloat16* out,
                              int padded_width) {
  const __nv_bfloat16* from = x + int64_t{slots[blockIdx.x] / top_k} * x_stride;
  __nv_bfloat16* to = out + int64_t{blockIdx.x} * padded_width;
  for (int l = static_cast<int>(threadIdx.x); l < padded_width; l += kThreads)
    to[l] = l < width ? from[l] : __float2bfloat16_rn(0.0f);
}

// Without overflow for either sign.
__device__ float sigmoid(float z) {
  const float e = expf(-fabsf(z));
  return (z < 0 ? e : 1.0f) / (1.0f + e);
}

struct Parameters {
  ActivationKind kind = ActivationKind::kSwiglu;
  float beta = 0, linear_beta = 0, alpha = 0, limit = 0, up_bias = 0;
  bool has_linear_beta = false;
};

__device__ float act(const Parameters& a, float gate, float up) {
  switch (a.kind) {
    case ActivationKind::kSwiglu:
      return gate * sigmoid(gate) * up;
    case ActivationKind::kSwigluClamped: {
      const float g = gate > a.limit ? a.limit : gate;
      const float u = up > a.limit ? a.limit : (up < -a.limit ? -a.limit : up);
      return g * sigmoid(a.alpha * g) * (u + a.up_bias);
    }
    case ActivationKind::kGegluTanh: {
      constexpr float kRoot = 0.7978845608028654f;  // sqrt(2 / pi)
      // 1 + tanh z = 2 sigmoid(2 z), without its cancellation.
      return gate * sigmoid(2 * kRoot * (gate + 0.044715f * gate * gate * gate)) * up;
    }
    case ActivationKind::kRelu2:
      return up < 0 ? 0.0f : up * up;
    case ActivationKind::kSitu: {
      const float u = a.has_linear_beta ? a.linear_beta * tanhf(up / a.linear_beta) : up;
      return a.beta * tanhf(gate / a.beta) * sigmoid(gate) * u;
    }
  }
  return 0;
}

__global__ void activate_kernel(const float* gate, const float* up, const ExpertTrailer* trailer,
                                Parameters parameters, int width, int stride, int64_t count,
                                __nv_bfloat16* h) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= count) return;
  float value = 0;
  if (index % stride < width) {
    const float g =
        parameters.kind == ActivationKind::kRelu2 ? 0.0f : gate[index] * trailer->factor[kGate];
    value = act(parameters, g, up[index] * trailer->factor[kUp]);
  }
  h[index] = __float2bfloat16_rn(value);
}

template <class Out>
__global__ void combine_kernel(Combine c, Out* y, int64_t y_stride, int width) {
  const int64_t token = blockIdx.x;
  for (int l = static_cast<int>(threadIdx.x); l < width; l += kThreads) {
    float sum = 0;
    for (int64_t slot = token * c.top_k; slot < (token + 1) * c.top_k; ++slot) {
      const int32_t id = c.routing.topk_ids[slot];
      if (id < 0 || id >= c.num_experts) continue;
      const float weight = c.routing.topk_weights[slot];
      if (weight == 0) continue;
      const auto* trailer = reinterpret_cast<const ExpertTrailer*>(
          reinterpret_cast<const std::byte*>(c.trailer) + static_cast<size_t>(id) * c.expert_bytes);
      const float value = c.rows[c.row_of_slot[slot] * c.row_stride + l];
      sum += weight * (trailer->factor[kDown] * value);
    }
    y[token * y_stride + l] = static_cast<Out>(sum);
  }
}

unsigned blocks_for(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

}  // namespace

cudaError_t decode(const PackedMatrix& matrix, void* out, int padded_rows, int padded_cols,
                   cudaStream_t stream) {
  auto* decoded = static_cast<__nv_bfloat16*>(out);
  const int64_t elements = int64_t{padded_rows} * padded_cols;
  if (matrix.format == WeightFormat::kBf16)
    copy_bf16_kernel<<<blocks_for(elements), kThreads, 0, stream>>>(matrix, decoded, padded_rows,
                                                                    padded_cols);
  else
    decode_fp4_kernel<<<blocks_for(elements / 16), kThreads, 0, stream>>>(matrix, decoded,
                                                                          padded_rows, padded_cols);
  return cudaGetLastError();
}

cudaError_t gather(const TensorView& x, const int32_t* slots, int count, int top_k, void* out,
                   int padded_width, cudaStream_t stream) {
  gather_kernel<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(
      static_cast<const __nv_bfloat16*>(x.data), x.stride, static_cast<int>(x.cols), slots, top_k,
      static_cast<__nv_bfloat16*>(out), padded_width);
  return cudaGetLastError();
}

cudaError_t activate(const float* gate, const float* up, const ExpertTrailer* trailer,
                     const Activation& activation, int count, int width, int stride, void* h,
                     cudaStream_t stream) {
  Parameters parameters;
  parameters.kind = activation.kind;
  parameters.beta = activation.beta;
  parameters.has_linear_beta = activation.linear_beta.has_value();
  parameters.linear_beta = activation.linear_beta.value_or(0.0f);
  parameters.alpha = activation.alpha;
  parameters.limit = activation.limit;
  parameters.up_bias = activation.up_bias;
  const int64_t elements = int64_t{count} * stride;
  activate_kernel<<<blocks_for(elements), kThreads, 0, stream>>>(
      gate, up, trailer, parameters, width, stride, elements, static_cast<__nv_bfloat16*>(h));
  return cudaGetLastError();
}

cudaError_t combine(const Combine& what, const TensorView& y, cudaStream_t stream) {
  const auto tokens = static_cast<unsigned>(what.routing.num_tokens);
  const int width = static_cast<int>(y.cols);
  if (y.dtype == DType::kF32)
    combine_kernel<<<tokens, kThreads, 0, stream>>>(what, static_cast<float*>(y.data), y.stride,
                                                    width);
  else
    combine_kernel<<<tokens, kThreads, 0, stream>>>(what, static_cast<__nv_bfloat16*>(y.data),
                                                    y.stride, width);
  return cudaGetLastError();
}

}  // namespace halfbyte::dequant

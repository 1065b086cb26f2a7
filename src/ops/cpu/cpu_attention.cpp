// Latent attention on the CPU. Few queries: the absorbed form, one piece a query and head, reading
// nothing but the cache and W_kvb. Many: the direct form, block of keys after block of keys: a
// matrix product brings the latents of a block to keys and values of all heads, then each head
// takes one step of its softmax.
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "formats/bf16.h"
#include "formats/decode.h"
#include "ops/cpu/cpu_linear.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/pieces.h"

namespace halfbyte::cpu {
namespace {

// Up to here a query costs less in the absorbed form: per key C + (C + R) against N + R + V, but no
// expansion of the whole cache.
constexpr int64_t kMaxAbsorbedQueries = 4;

class CpuLatentAttention : public LatentAttention {
 public:
  CpuLatentAttention(CpuDevice& device, const MatrixView& kv_b, const LatentAttentionShape& shape)
      : device_(device),
        kernels_(dense_kernels(device.level())),
        shape_(shape),
        expand_(load_cpu_linear(device, kv_b)),
        // BF16 stays BF16; other formats may need more digits.
        rows_dtype_(kv_b.format == WeightFormat::kBf16 ? DType::kBf16 : DType::kF32),
        rows_(allocate_host_memory(
            static_cast<size_t>(kv_b.rows * kv_b.cols * dtype_bytes(rows_dtype_)))) {
    if (rows_dtype_ == DType::kBf16) {
      std::memcpy(rows_.data(), kv_b.values, value_bytes(kv_b));
      return;
    }
    std::vector<double> row(static_cast<size_t>(kv_b.cols));
    float* next = static_cast<float*>(rows_.data());
    for (int64_t r = 0; r < kv_b.rows; ++r) {
      decode_row(kv_b, r, row.data());
      for (const double value : row) *next++ = static_cast<float>(value);
    }
  }

  size_t weight_bytes() const override { return expand_->weight_bytes() + rows_.bytes(); }

  size_t workspace_bytes() const override {
    return static_cast<size_t>(kv_floats() + state_floats() +
                               device_.pool().size() * thread_floats()) *
           sizeof(float);
  }

  void run(TensorView q, TensorView cache, TensorView o, void* workspace) const override {
    HB_CHECK(cache.dtype == DType::kBf16 && q.rows <= shape_.max_queries);
    float* work = static_cast<float*>(workspace);
    q.rows <= kMaxAbsorbedQueries ? run_absorbed(q, cache, o, work) : run_direct(q, cache, o, work);
  }

 private:
  int64_t kv_width() const { return int64_t{shape_.heads} * (shape_.key_dim + shape_.value_dim); }
  // The workspace: keys and values of a block; maximum, total and sum of every query and head; the
  // threads' own.
  int64_t kv_floats() const { return padded(kAttentionKeys * kv_width()); }
  int64_t head_state_floats() const { return shape_.max_queries * (padded(shape_.value_dim) + 2); }
  int64_t state_floats() const { return padded(shape_.heads * head_state_floats()); }
  int64_t thread_floats() const {
    return padded(
        std::max(attention_work_floats(shape_.key_dim, shape_.shared_key_dim, shape_.value_dim),
                 absorbed_work_floats(shape_.latent, shape_.shared_key_dim)));
  }
  float scale() const {
    return 1.0f / std::sqrt(static_cast<float>(shape_.key_dim + shape_.shared_key_dim));
  }
  const char* row_of(int64_t row) const {
    return static_cast<const char*>(rows_.data()) + row * shape_.latent * dtype_bytes(rows_dtype_);
  }

  void run_absorbed(TensorView q, TensorView cache, TensorView o, float* work) const {
    const int64_t heads = shape_.heads, past = cache.rows - q.rows;
    const int64_t cost = q.rows * heads * (cache.rows + shape_.key_dim) * shape_.latent;
    for_pieces(device_.pool(), q.rows * heads, cost, [&](int64_t i, int thread) {
      const int64_t t = i / heads, h = i % heads;
      const int64_t first_row = h * (shape_.key_dim + shape_.value_dim);
      kernels_.absorbed_attention(
          {.q = q.row<float>(t) + h * (shape_.key_dim + shape_.shared_key_dim),
           .key_rows = row_of(first_row),
           .value_rows = row_of(first_row + shape_.key_dim),
           .weights = rows_dtype_,
           .cache = cache.data,
           .cache_stride = cache.stride,
           .keys = past + t + 1,
           .latent = shape_.latent,
           .key_dim = shape_.key_dim,
           .shared_dim = shape_.shared_key_dim,
           .value_dim = shape_.value_dim,
           .scale = scale(),
           .o = o.row<float>(t) + h * shape_.value_dim,
           .work = work + thread * thread_floats()});
    });
  }

  void run_direct(TensorView q, TensorView cache, TensorView o, float* work) const {
    const int64_t heads = shape_.heads, tokens = q.rows, past = cache.rows - tokens;
    const int64_t value_width = padded(shape_.value_dim);
    const TensorView kv = TensorView::of(work, DType::kF32, kAttentionKeys, kv_width());
    float* states = work + kv_floats();
    float* scratch = states + state_floats();
    const auto max_of = [&](int64_t h) { return states + h * head_state_floats(); };
    const auto total_of = [&](int64_t h) { return max_of(h) + shape_.max_queries; };
    const auto sum_of = [&](int64_t h) { return total_of(h) + shape_.max_queries; };

    const int64_t state_cost = tokens * heads * value_width;
    for_pieces(device_.pool(), heads, state_cost, [&](int64_t h, int) {
      std::fill_n(max_of(h), tokens, -std::numeric_limits<float>::infinity());
      std::fill_n(total_of(h), tokens, 0.0f);
      std::fill_n(sum_of(h), tokens * value_width, 0.0f);
    });
    for (int64_t begin = 0; begin < cache.rows; begin += kAttentionKeys) {
      const int64_t keys = std::min(kAttentionKeys, cache.rows - begin);
      const TensorView latents = cache.row_slice(begin, keys);
      expand_->run(latents.col_slice(0, shape_.latent), kv.row_slice(0, keys));
      const TensorView shared = latents.col_slice(shape_.latent, shape_.shared_key_dim);
      const int64_t cost = tokens * heads * keys * shape_.key_dim;
      for_pieces(device_.pool(), heads, cost, [&](int64_t h, int thread) {
        kernels_.attention_block(
            {.q = q.row<float>(0) + h * (shape_.key_dim + shape_.shared_key_dim),
             .q_stride = q.stride,
             .kv = kv.row<float>(0) + h * (shape_.key_dim + shape_.value_dim),
             .kv_stride = kv.stride,
             .shared_key = shared.data,
             .cache_stride = shared.stride,
             .queries = tokens,
             .keys = keys,
             .first_visible = past - begin,
             .key_dim = shape_.key_dim,
             .shared_dim = shape_.shared_key_dim,
             .value_dim = shape_.value_dim,
             .scale = scale(),
             .max = max_of(h),
             .total = total_of(h),
             .sum = sum_of(h),
             .work = scratch + thread * thread_floats()});
      });
    }
    for_pieces(device_.pool(), heads, state_cost, [&](int64_t h, int) {
      for (int64_t t = 0; t < tokens; ++t) {
        const float* sum = sum_of(h) + t * value_width;
        float* out = o.row<float>(t) + h * shape_.value_dim;
        for (int64_t d = 0; d < shape_.value_dim; ++d) out[d] = sum[d] / total_of(h)[t];
      }
    });
  }

  CpuDevice& device_;
  const DenseKernels& kernels_;
  LatentAttentionShape shape_;
  std::unique_ptr<Linear> expand_;
  DType rows_dtype_;
  Buffer rows_;  // W_kvb (H * (N + V), C), for the absorbed form
};

}  // namespace

std::unique_ptr<LatentAttention> load_cpu_latent_attention(CpuDevice& device,
                                                           const MatrixView& kv_b,
                                                           const LatentAttentionShape& shape) {
  return std::make_unique<CpuLatentAttention>(device, kv_b, shape);
}

}  // namespace halfbyte::cpu

#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>

#include "halfbyte/error.h"
#include "model/k3.h"
#include "model/scratch.h"

namespace halfbyte {

struct Model::Scratch {
  Buffer memory;
  PassScratch pass;
};

std::unique_ptr<Model> Model::open(const std::filesystem::path& directory, Device& device,
                                   const LoadOptions& options) {
  ModelConfig config = read_model_config(directory);
  const Checkpoint checkpoint(directory);
  ModelWeights weights = load_weights(checkpoint, config, device, options);
  return std::make_unique<Model>(std::move(config), std::move(weights), device, options);
}

Model::Model(ModelConfig config, ModelWeights weights, Device& device, const LoadOptions& options)
    : config_(std::move(config)),
      device_(device),
      options_(options),
      weights_(std::move(weights)),
      scratch_(std::make_unique<Scratch>()) {
  Arena counting;
  carve_scratch(counting, config_, weights_, device_, options_.max_chunk);
  scratch_->memory = device_.allocate(counting.peak_bytes());
  Arena arena(scratch_->memory.data());
  scratch_->pass = carve_scratch(arena, config_, weights_, device_, options_.max_chunk);
}

Model::~Model() = default;

Sequence Model::new_sequence(int64_t capacity) const {
  Sequence sequence;
  sequence.capacity_ = capacity;
  const size_t latent_bytes =
      static_cast<size_t>(capacity * (config_.mla.kv_rank + config_.mla.shared_key_dim) *
                          dtype_bytes(device_.activation_dtype()));
  const size_t width = static_cast<size_t>(config_.kda.heads) * config_.kda.head_dim;
  for (const AttentionKind kind : config_.attention) {
    Sequence::LayerCache& cache = sequence.layers_.emplace_back();
    if (kind == AttentionKind::kMla) {
      cache.latents = device_.allocate(latent_bytes);
    } else {
      cache.state = device_.allocate(width * config_.kda.head_dim * sizeof(float));
      cache.conv = device_.allocate(3 * (config_.kda.conv_width - 1) * width * sizeof(float));
    }
  }
  return sequence;
}

std::span<const float> Model::forward(std::span<const int32_t> ids, Sequence& sequence,
                                      LogitRows rows, Trace* trace) {
  if (ids.empty()) throw Error(ErrorKind::kInput, "prompt", "is empty, expected token ids");
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= config_.vocab_size)
      throw Error(ErrorKind::kInput, fmt::format("token {}", i),
                  fmt::format("id {} is outside the vocabulary, expected 0 to {}", ids[i],
                              config_.vocab_size - 1));
  const int64_t count = static_cast<int64_t>(ids.size());
  if (sequence.length_ + count > sequence.capacity_)
    throw Error(ErrorKind::kInput, "sequence",
                fmt::format("{} tokens do not fit, {} of {} are used", count, sequence.length_,
                            sequence.capacity_));

  const PassScratch& s = scratch_->pass;
  const int64_t vocab = config_.vocab_size;
  const int64_t kept = rows == LogitRows::kAll ? count : rows == LogitRows::kLast ? 1 : 0;
  logits_.resize(static_cast<size_t>(kept * vocab));
  float* next_logits = logits_.data();
  for (int64_t begin = 0; begin < count; begin += options_.max_chunk) {
    const int64_t tokens = std::min<int64_t>(options_.max_chunk, count - begin);
    device_.copy_to_device(s.ids.data, ids.data() + begin, static_cast<size_t>(tokens) * 4);
    Forward(*this, s, sequence, tokens, trace).run();
    sequence.length_ += tokens;

    // Logits of the rows that are wanted, a few at a time.
    const bool last = begin + tokens == count;
    int64_t row = rows == LogitRows::kAll            ? 0
                  : rows == LogitRows::kLast && last ? tokens - 1
                                                     : tokens;
    while (row < tokens) {
      const int64_t some = std::min(PassScratch::kLogitRows, tokens - row);
      weights_.lm_head->run(s.normed.row_slice(row, some), s.logits.row_slice(0, some));
      device_.wait();
      device_.copy_to_host(next_logits, s.logits.data, static_cast<size_t>(some * vocab) * 4);
      next_logits += some * vocab;
      row += some;
    }
  }
  device_.wait();
  return logits_;
}

}  // namespace halfbyte

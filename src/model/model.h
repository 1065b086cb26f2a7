// A model on a device: token ids in, logits out.
//
//   const auto device = open_device("cpu");
//   const auto model = Model::open(directory, *device);
//   Sequence sequence = model->new_sequence(prompt.size() + max_new_tokens);
//   std::span<const float> logits = model->forward(prompt, sequence);       // prefill: last row
//   (V) for (;;) logits = model->forward({&next, 1}, sequence);                 // decode
//
// A Sequence is what the model remembers of one text: latents of MLA layers, states of KDA layers.
// A prompt may come in pieces of any size; the result is the same up to rounding. One forward at a
// time; several sequences may take turns. After warm-up (the first call with each LogitRows),
// forward does not allocate.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "halfbyte/device.h"
#include "model/config.h"
#include "model/trace.h"
#include "model/weights.h"

namespace halfbyte {

class Sequence {
 public:
  int64_t length() const { return length_; }      // tokens seen
  int64_t capacity() const { return capacity_; }  // tokens there is room for

 private:
  friend class Model;
  friend class Forward;
  struct LayerCache {
    Buffer latents;  // MLA: (capacity, C + R) A
    Buffer state;    // KDA: (H, D, D) F32
    Buffer conv;     // KDA: 3 x (W-1, H*D) F32, of q, k, v
  };
  int64_t length_ = 0;
  int64_t capacity_ = 0;
  std::vector<LayerCache> layers_;
};

// Of which positions the logits are wanted.
enum class LogitRows { kNone, kLast, kAll };

class Model {
 public:
  // Throws Error: whatever is wrong with the directory, before any work; what the device cannot
  // run.
  static std::unique_ptr<Model> open(const std::filesystem::path& directory, Device& device,
                                     const LoadOptions& options = {});
  Model(ModelConfig config, ModelWeights weights, Device& device, const LoadOptions& options);
  ~Model();

  const ModelConfig& config() const { return config_; }
  Device& device() const { return device_; }

  // Empty; room for `capacity` tokens.
  Sequence new_sequence(int64_t capacity) const;

  // Throws Error{kInput}, with the sequence unchanged: no ids, an id outside the vocabulary, no
  // room. Returns F32 (0, 1 or ids.size() rows, V) on the host, valid until the next call.
  std::span<const float> forward(std::span<const int32_t> ids, Sequence& sequence,
                                 LogitRows rows = LogitRows::kLast, Trace* trace = nullptr);

 private:
  friend class Forward;
  struct Scratch;

  ModelConfig config_;
  Device& device_;
  LoadOptions options_;
  ModelWeights weights_;
  std::unique_ptr<Scratch> scratch_;
  std::vector<float> logits_;
};

}  // namespace halfbyte

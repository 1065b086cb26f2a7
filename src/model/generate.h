// From a prompt to its end: prefill, then sample and decode.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "model/model.h"
#include "model/sampler.h"

namespace halfbyte {

struct GenerateOptions {
  int64_t max_new_tokens = 64;  // at least 1
  SamplingOptions sampling = {};
  std::vector<int32_t> stop_tokens = {};  // end the sequence; not handed out
};

struct GenerateStats {
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;  // of the prompt: not computed again
  int64_t new_tokens = 0;     // handed out
  int64_t decode_steps = 0;   // forward passes after the prompt's
  double prompt_seconds = 0;
  double decode_seconds = 0;  // of those passes, sampling included
};

// eos_token_id of generation_config.json, a number or a list, else of config.json.
std::vector<int32_t> read_stop_tokens(const std::filesystem::path& directory,
                                      const ModelConfig& config);

// Generates again and again, as the turns of a conversation: where a prompt begins with all that
// the last call has put into the sequence, that is not computed again. One call at a time.
class Generator {
 public:
  // `model` must outlive this.
  explicit Generator(Model& model) : model_(model) {}

  // Throws Error{kInput} before any work: an empty prompt, an id outside the vocabulary, an option
  // out of range. `on_token` sees each token as soon as it is known, and says whether to go on.
  GenerateStats generate(std::span<const int32_t> prompt, const GenerateOptions& options,
                         const std::function<bool(int32_t)>& on_token);

 private:
  std::span<const float> forward(std::span<const int32_t> ids);

  Model& model_;
  std::optional<Sequence> sequence_;
  std::vector<int32_t> held_;  // what the sequence has seen
};

// One prompt.
GenerateStats generate(Model& model, std::span<const int32_t> prompt,
                       const GenerateOptions& options,
                       const std::function<void(int32_t)>& on_token);

}  // namespace halfbyte

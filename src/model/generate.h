// One sequence from a prompt to its end: prefill, then sample and decode.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
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
  int64_t new_tokens = 0;    // handed out
  int64_t decode_steps = 0;  // forward passes after the prompt's
  double prompt_seconds = 0;
  double decode_seconds = 0;  // of those passes, sampling included
};

// eos_token_id of generation_config.json, a number or a list, else of config.json.
std::vector<int32_t> read_stop_tokens(const std::filesystem::path& directory,
                                      const ModelConfig& config);

// Throws Error{kInput} before any work: an empty prompt, an id outside the vocabulary, an option
// out of range. `on_token` sees each token as soon as it is known.
GenerateStats generate(Model& model, std::span<const int32_t> prompt,
                       const GenerateOptions& options,
                       const std::function<void(int32_t)>& on_token);

}  // namespace halfbyte

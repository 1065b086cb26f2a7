// A folder of tests/golden that holds a whole model: its prompts, expected values and tolerances.
#pragma once

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "formats/safetensors.h"

namespace halfbyte {

inline const std::vector<std::string> kGoldenModels = {"k3-tiny-bf16", "k3-tiny-mxfp4",
                                                       "k3-tiny-nvfp4", "kimi-linear-tiny"};

struct GoldenPrompt {
  std::string name;  // "len5"
  std::vector<int32_t> ids;
  std::vector<int32_t> top1;     // (T)
  std::vector<double> top1_gap;  // (T)
  std::vector<double> logprobs;  // (T), of ids[t] given those before; the first is NaN
  std::vector<int32_t> greedy;   // continuation
  std::vector<double> greedy_gap;
};

struct GoldenTolerances {
  double fp32_logits_max_abs, fp32_trace_max;
  double bf16_trace_rel_l2, bf16_last_rel_l2, bf16_last_rel_l2_median, bf16_last_cos_min;
  double bf16_logits_max_abs, bf16_logprob_max_abs, bf16_top1_gap;
};

struct GoldenModel {
  explicit GoldenModel(const std::string& folder);

  const GoldenPrompt& prompt(const std::string& name) const;
  // Expected logits, F32: of all positions (nothing for long prompts), of the last.
  std::vector<float> logits(const GoldenPrompt& prompt) const;
  std::vector<float> last_logits(const GoldenPrompt& prompt) const;

  std::string name;
  std::filesystem::path directory;
  std::vector<GoldenPrompt> prompts;
  GoldenTolerances tolerances;
  SafetensorsFile expected;
  SafetensorsFile trace;  // of len5; names "len5.layers.0.attn_mix"
};

std::vector<float> f32_values(const StoredTensor& tensor);

// Distances. a: ours, b: expected.
double max_abs_difference(const std::vector<float>& a, const std::vector<float>& b);
double relative_l2(const std::vector<float>& a, const std::vector<float>& b);
double cosine(const std::vector<float>& a, const std::vector<float>& b);
double max_abs(const std::vector<float>& values);
double median(std::vector<double> values);
int32_t argmax(const float* values, int64_t count);
// log softmax(logits)[id]
double log_probability(const float* logits, int64_t count, int32_t id);

}  // namespace halfbyte

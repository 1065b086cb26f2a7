#include "support/golden_model.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace halfbyte {
namespace {

template <class T>
std::vector<T> numbers(const Json& array) {
  std::vector<T> out;
  for (const Json& element : array.elements())
    out.push_back(element.is_null() ? std::numeric_limits<T>::quiet_NaN()
                                    : static_cast<T>(element.number()));
  return out;
}

}  // namespace

std::vector<float> f32_values(const StoredTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / 4);
  std::memcpy(values.data(), tensor.bytes.data(), values.size() * 4);
  return values;
}

GoldenModel::GoldenModel(const std::string& folder)
    : name(folder),
      directory(std::filesystem::path(HALFBYTE_TEST_DATA) / folder),
      expected(directory / "expected.safetensors"),
      trace(directory / "trace_len5.safetensors") {
  const JsonDocument document = JsonDocument::from_file(directory / "expected.json");
  for (const Json& p : document.root().get("prompts").elements())
    prompts.push_back({std::string(p.get("name").string()), numbers<int32_t>(p.get("ids")),
                       numbers<int32_t>(p.get("top1")), numbers<double>(p.get("top1_gap")),
                       numbers<double>(p.get("prompt_logprobs")), numbers<int32_t>(p.get("greedy")),
                       numbers<double>(p.get("greedy_gap"))});
  const Json fp32 = document.root().get("tolerances").get("fp32_activations");
  const Json bf16 = document.root().get("tolerances").get("bf16_activations");
  tolerances = {fp32.get("logits_max_abs").number(),
                fp32.get("trace_max_abs_over_tensor_max").number(),
                bf16.get("trace_rel_l2").number(),
                bf16.get("logits_last_rel_l2").number(),
                bf16.get("logits_last_rel_l2_median_over_prompts").number(),
                bf16.get("logits_last_cos_min").number(),
                bf16.get("logits_max_abs").number(),
                bf16.get("prompt_logprob_max_abs").number(),
                bf16.get("top1_must_match_when_gap_above").number()};
}

const GoldenPrompt& GoldenModel::prompt(const std::string& wanted) const {
  for (const GoldenPrompt& p : prompts)
    if (p.name == wanted) return p;
  throw std::out_of_range(wanted);
}

std::vector<float> GoldenModel::logits(const GoldenPrompt& p) const {
  const StoredTensor* tensor = expected.find(p.name + ".logits");
  return tensor == nullptr ? std::vector<float>{} : f32_values(*tensor);
}

std::vector<float> GoldenModel::last_logits(const GoldenPrompt& p) const {
  return f32_values(expected.get(p.name + ".logits_last"));
}

double max_abs_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double max = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - b[i]);
    if (!(difference <= max)) max = difference;  // a NaN stays
  }
  return max;
}

double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return -1;
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += double{a[i]} * b[i];
    aa += double{a[i]} * a[i];
    bb += double{b[i]} * b[i];
  }
  return ab / std::sqrt(aa * bb);
}

double max_abs(const std::vector<float>& values) {
  double max = 0;
  for (const float value : values) max = std::max(max, std::abs(double{value}));
  return max;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

int32_t argmax(const float* values, int64_t count) {
  return static_cast<int32_t>(std::max_element(values, values + count) - values);
}

double log_probability(const float* logits, int64_t count, int32_t id) {
  const double max = logits[argmax(logits, count)];
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += std::exp(logits[i] - max);
  return logits[id] - max - std::log(total);
}

}  // namespace halfbyte

#include "model/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/philox.h"
#include "halfbyte/error.h"

namespace halfbyte {

void check_sampling(const SamplingOptions& options) {
  const auto check = [](bool good, const char* name, double value, const char* expected) {
    if (!good)
      throw Error(ErrorKind::kInput, name, fmt::format("is {}, expected {}", value, expected));
  };
  check(std::isfinite(options.temperature) && options.temperature >= 0, "temperature",
        options.temperature, "0 or more");
  check(options.top_p > 0 && options.top_p <= 1, "top-p", options.top_p, "more than 0, at most 1");
  check(options.top_k >= 0, "top-k", options.top_k, "0 (all) or more");
}

int32_t argmax(std::span<const float> logits) {
  HB_CHECK(!logits.empty());
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    HB_CHECK(!std::isnan(logits[i]));
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

int32_t sample(std::span<const float> logits, const SamplingOptions& options, uint64_t draw) {
  const int32_t largest = argmax(logits);
  if (options.temperature == 0) return largest;

  const auto better = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const double temperature = options.temperature, top = logits[largest];
  const auto weight_of = [&](int32_t id) { return std::exp((logits[id] - top) / temperature); };

  // ---- Which ids may be drawn: all, or the best few in falling order.
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < ids.size()) {
    std::partial_sort(ids.begin(), ids.begin() + options.top_k, ids.end(), better);
    ids.resize(static_cast<size_t>(options.top_k));
  }
  double sum = 0;
  for (const int32_t id : ids) sum += weight_of(id);
  if (options.top_p < 1) {
    const auto worse = [&](int32_t a, int32_t b) { return better(b, a); };
    std::vector<int32_t> heap = std::move(ids);
    std::make_heap(heap.begin(), heap.end(), worse);
    ids.clear();
    double kept = 0;
    const double wanted = options.top_p * sum;
    while (!heap.empty() && kept < wanted) {
      std::pop_heap(heap.begin(), heap.end(), worse);
      ids.push_back(heap.back());
      heap.pop_back();
      kept += weight_of(ids.back());
    }
    sum = kept;
  }

  // ---- One of them.
  const double target = philox_uniform(options.seed, draw) * sum;
  double passed = 0;
  int32_t drawn = ids.front();
  for (const int32_t id : ids) {
    const double weight = weight_of(id);
    if (weight > 0) drawn = id;  // NOTE: rounding may leave `target` past the last sum
    passed += weight;
    if (target < passed) break;
  }
  return drawn;
}

}  // namespace halfbyte

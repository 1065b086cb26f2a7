// The golden models on every level of the CPU, within the bf16 tolerances of their READMEs: every
// prompt, every position, traces, the median rule, greedy continuations up to the first near-tie.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "model/model.h"
#include "support/golden_model.h"

namespace halfbyte {
namespace {

struct Loaded {
  Loaded(const std::string& folder, const std::string& device_name)
      : golden(folder),
        device(open_device(device_name)),
        model(Model::open(golden.directory, *device, {.max_chunk = 256})) {}
  GoldenModel golden;
  std::unique_ptr<Device> device;
  std::unique_ptr<Model> model;
};

using Case = std::tuple<std::string, std::string>;  // folder, device

Loaded& loaded(const Case& wanted) {
  static std::map<Case, std::unique_ptr<Loaded>> all;
  std::unique_ptr<Loaded>& one = all[wanted];
  if (one == nullptr) one = std::make_unique<Loaded>(std::get<0>(wanted), std::get<1>(wanted));
  return *one;
}

std::vector<std::string> cpu_levels() {
  std::vector<std::string> names;
  for (const std::string& name : available_devices())
    if (name.starts_with("cpu.")) names.push_back(name);
  return names;
}

class GoldenModelOnCpu : public ::testing::TestWithParam<Case> {};

TEST_P(GoldenModelOnCpu, Trace) {
  Loaded& l = loaded(GetParam());
  Trace trace;
  Sequence sequence = l.model->new_sequence(64);
  l.model->forward(l.golden.prompt("len5").ids, sequence, LogitRows::kAll, &trace);
  EXPECT_EQ(trace.tensors().size(), l.golden.trace.tensors().size());
  for (const auto& [name, ours] : trace.tensors()) {
    const StoredTensor& expected = l.golden.trace.get("len5." + name);
    if (expected.dtype == DType::kI32) {
      const int32_t* ids = expected.as<int32_t>();
      // NOTE: as sets. Two weights that nearly agree may change places, which changes nothing else.
      for (int64_t t = 0; t < ours.rows(); ++t) {
        const auto sorted = [&](const int32_t* row) {
          std::vector<int32_t> copy(row, row + ours.cols);
          std::sort(copy.begin(), copy.end());
          return copy;
        };
        EXPECT_EQ(sorted(ours.ids.data() + t * ours.cols), sorted(ids + t * ours.cols))
            << name << " token " << t;
      }
      continue;
    }
    EXPECT_LE(relative_l2(ours.values, f32_values(expected)), l.golden.tolerances.bf16_trace_rel_l2)
        << name;
  }
}

TEST_P(GoldenModelOnCpu, LogitsOfEveryPosition) {
  Loaded& l = loaded(GetParam());
  const GoldenTolerances& tolerance = l.golden.tolerances;
  const int64_t vocab = l.model->config().vocab_size;
  std::vector<double> last_rel_l2;
  double worst = 0;
  for (const GoldenPrompt& prompt : l.golden.prompts) {
    Sequence sequence = l.model->new_sequence(256);
    const auto span = l.model->forward(prompt.ids, sequence, LogitRows::kAll);
    const std::vector<float> ours(span.begin(), span.end());
    const std::vector<float> all = l.golden.logits(prompt);
    if (!all.empty()) {
      EXPECT_LE(max_abs_difference(ours, all), tolerance.bf16_logits_max_abs) << prompt.name;
      worst = std::max(worst, max_abs_difference(ours, all));
    }
    const std::vector<float> last(ours.end() - vocab, ours.end());
    const std::vector<float> expected = l.golden.last_logits(prompt);
    EXPECT_LE(max_abs_difference(last, expected), tolerance.bf16_logits_max_abs) << prompt.name;
    EXPECT_GE(cosine(last, expected), tolerance.bf16_last_cos_min) << prompt.name;
    last_rel_l2.push_back(relative_l2(last, expected));
    EXPECT_LE(last_rel_l2.back(), tolerance.bf16_last_rel_l2) << prompt.name;
    for (size_t t = 0; t < prompt.ids.size(); ++t) {
      const float* row = ours.data() + static_cast<int64_t>(t) * vocab;
      if (prompt.top1_gap[t] > tolerance.bf16_top1_gap) {
        EXPECT_EQ(argmax(row, vocab), prompt.top1[t]) << prompt.name << " position " << t;
      }
      if (t == 0) continue;
      EXPECT_NEAR(log_probability(row - vocab, vocab, prompt.ids[t]), prompt.logprobs[t],
                  tolerance.bf16_logprob_max_abs)
          << prompt.name << " position " << t;
    }
  }
  EXPECT_LE(median(last_rel_l2), tolerance.bf16_last_rel_l2_median);
  RecordProperty("last_rel_l2_median", std::to_string(median(last_rel_l2)));
  RecordProperty("last_rel_l2_max",
                 std::to_string(*std::max_element(last_rel_l2.begin(), last_rel_l2.end())));
  RecordProperty("max_abs", std::to_string(worst));
}

TEST_P(GoldenModelOnCpu, GreedyUpToTheFirstNearTie) {
  Loaded& l = loaded(GetParam());
  int compared = 0;
  for (const GoldenPrompt& prompt : l.golden.prompts) {
    Sequence sequence = l.model->new_sequence(256);
    auto logits = l.model->forward(prompt.ids, sequence);
    for (size_t n = 0; n < prompt.greedy.size(); ++n, ++compared) {
      if (prompt.greedy_gap[n] <= l.golden.tolerances.bf16_top1_gap) break;
      const int32_t next = argmax(logits.data(), l.model->config().vocab_size);
      ASSERT_EQ(next, prompt.greedy[n]) << prompt.name << " step " << n;
      logits = l.model->forward({&next, 1}, sequence);
    }
  }
  EXPECT_GE(compared, 5);  // that the gaps do not empty this test
}

INSTANTIATE_TEST_SUITE_P(, GoldenModelOnCpu,
                         ::testing::Combine(::testing::ValuesIn(kGoldenModels),
                                            ::testing::ValuesIn(cpu_levels())),
                         [](const auto& info) {
                           std::string name =
                               std::get<0>(info.param) + "_" + std::get<1>(info.param);
                           for (char& c : name)
                             if (c == '-' || c == '.') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace halfbyte

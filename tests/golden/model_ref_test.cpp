// The golden models on "ref", within the fp32 tolerances of their READMEs: every prompt, every
// position, the trace in the README's order, greedy continuations by cached decoding.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "model/model.h"
#include "support/golden_model.h"

namespace halfbyte {
namespace {

// One loaded model a folder, shared by the tests of this file.
struct Loaded {
  explicit Loaded(const std::string& folder)
      : golden(folder),
        device(open_device("ref")),
        model(Model::open(golden.directory, *device, {.max_chunk = 256})) {}
  GoldenModel golden;
  std::unique_ptr<Device> device;
  std::unique_ptr<Model> model;
};

Loaded& loaded(const std::string& folder) {
  static std::map<std::string, std::unique_ptr<Loaded>> all;
  std::unique_ptr<Loaded>& one = all[folder];
  if (one == nullptr) one = std::make_unique<Loaded>(folder);
  return *one;
}

class GoldenModelOnRef : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenModelOnRef, TraceInOrder) {
  Loaded& l = loaded(GetParam());
  const GoldenPrompt& prompt = l.golden.prompt("len5");
  Trace trace;
  Sequence sequence = l.model->new_sequence(64);
  l.model->forward(prompt.ids, sequence, LogitRows::kAll, &trace);

  // The README's order, layer by layer; what a model does not have is not in its golden trace.
  std::vector<std::string> names;
  for (int i = 0; i < l.model->config().num_layers; ++i)
    for (const char* part : {"attn_mix", "attn_norm", "attn_out", "mlp_mix", "mlp_norm",
                             "router_ids", "router_weights", "latent", "routed_sum", "routed_out",
                             "shared_out", "mlp_out", "residual_out"})
      names.push_back("layers." + std::to_string(i) + "." + part);
  names.insert(names.end(), {"final_mix", "final_norm"});
  size_t compared = 0;
  for (const std::string& name : names) {
    const StoredTensor* expected = l.golden.trace.find("len5." + name);
    if (expected == nullptr) {
      EXPECT_EQ(trace.tensors().count(name), 0u) << name << " is recorded, but not golden";
      continue;
    }
    ASSERT_EQ(trace.tensors().count(name), 1u) << name;
    const Trace::Tensor& ours = trace.tensors().at(name);
    ++compared;
    if (expected->dtype == DType::kI32) {
      const int32_t* ids = expected->as<int32_t>();
      ASSERT_EQ(ours.ids, std::vector<int32_t>(ids, ids + expected->elements())) << name;
      continue;
    }
    const std::vector<float> values = f32_values(*expected);
    ASSERT_LE(max_abs_difference(ours.values, values),
              l.golden.tolerances.fp32_trace_max * max_abs(values))
        << name;
  }
  EXPECT_EQ(compared, l.golden.trace.tensors().size());
}

TEST_P(GoldenModelOnRef, LogitsOfEveryPosition) {
  Loaded& l = loaded(GetParam());
  const int64_t vocab = l.model->config().vocab_size;
  for (const GoldenPrompt& prompt : l.golden.prompts) {
    Sequence sequence = l.model->new_sequence(256);
    const auto span = l.model->forward(prompt.ids, sequence, LogitRows::kAll);
    const std::vector<float> ours(span.begin(), span.end());
    const std::vector<float> all = l.golden.logits(prompt);
    if (!all.empty()) {
      EXPECT_LE(max_abs_difference(ours, all), l.golden.tolerances.fp32_logits_max_abs)
          << prompt.name;
    }
    const std::vector<float> last(ours.end() - vocab, ours.end());
    EXPECT_LE(max_abs_difference(last, l.golden.last_logits(prompt)),
              l.golden.tolerances.fp32_logits_max_abs)
        << prompt.name;
    for (size_t t = 0; t < prompt.ids.size(); ++t) {
      const float* row = ours.data() + static_cast<int64_t>(t) * vocab;
      // NOTE: a gap below the tolerance of two logits says nothing about the order.
      if (prompt.top1_gap[t] > 2 * l.golden.tolerances.fp32_logits_max_abs) {
        EXPECT_EQ(argmax(row, vocab), prompt.top1[t]) << prompt.name << " position " << t;
      }
      if (t == 0) continue;
      // |d log p| <= 2 max |d logit|, and the file has 7 decimals.
      EXPECT_NEAR(log_probability(row - vocab, vocab, prompt.ids[t]), prompt.logprobs[t],
                  2 * l.golden.tolerances.fp32_logits_max_abs + 1e-7)
          << prompt.name << " position " << t;
    }
  }
}

TEST_P(GoldenModelOnRef, GreedyContinuationByDecoding) {
  Loaded& l = loaded(GetParam());
  for (const GoldenPrompt& prompt : l.golden.prompts) {
    Sequence sequence = l.model->new_sequence(256);
    auto logits = l.model->forward(prompt.ids, sequence);
    for (size_t n = 0; n < prompt.greedy.size(); ++n) {
      const int32_t next = argmax(logits.data(), l.model->config().vocab_size);
      ASSERT_EQ(next, prompt.greedy[n]) << prompt.name << " step " << n;
      logits = l.model->forward({&next, 1}, sequence);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, GoldenModelOnRef, ::testing::ValuesIn(kGoldenModels),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace halfbyte

// The variants (a) to (i) of the specification's 11.1, each with random weights of its own: the CPU
// agrees with "ref", and the key in question changes the result.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "model/model.h"
#include "support/golden_model.h"
#include "support/temp_directory.h"
#include "support/tiny_model.h"

namespace halfbyte {
namespace {

struct Variant {
  const char* name;
  void (*change)(nlohmann::ordered_json& text);
  // The same weights serve the unchanged configuration: then only the key makes the difference.
  bool same_weights;
};

const Variant kVariants[] = {
    {"base", [](nlohmann::ordered_json&) {}, false},
    {"a_groups",
     [](nlohmann::ordered_json& c) {
       c["num_expert_group"] = 2;
       c["topk_group"] = 1;
     },
     true},
    {"b_scaling_without_latent_norm",
     [](nlohmann::ordered_json& c) {
       c["routed_scaling_factor"] = 2.446;
       c["latent_moe_use_norm"] = false;
     },
     true},
    {"c_no_lower_bound",
     [](nlohmann::ordered_json& c) { c["linear_attn_config"].erase("gate_lower_bound"); }, true},
    {"d_low_rank_gate",
     [](nlohmann::ordered_json& c) { c["linear_attn_config"]["use_full_rank_gate"] = false; },
     false},
    {"e_no_mla_gate", [](nlohmann::ordered_json& c) { c["mla_use_output_gate"] = false; }, true},
    {"f_ordinary_residuals", [](nlohmann::ordered_json& c) { c["attn_res_block_size"] = nullptr; },
     true},
    {"g_no_query_rank", [](nlohmann::ordered_json& c) { c["q_lora_rank"] = nullptr; }, false},
    {"h_silu", [](nlohmann::ordered_json& c) { c["hidden_act"] = "silu"; }, true},
    {"i_no_latent",
     [](nlohmann::ordered_json& c) {
       c["routed_expert_hidden_size"] = nullptr;
       c["latent_moe_use_norm"] = false;
     },
     false},
    {"no_shared_experts", [](nlohmann::ordered_json& c) { c["num_shared_experts"] = 0; }, true},
    {"moe_every_other_layer", [](nlohmann::ordered_json& c) { c["moe_layer_freq"] = 2; }, false},
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

class ModelVariant : public ::testing::TestWithParam<Variant> {};

constexpr size_t kPrompts = 16, kTokens = 12, kPrefill = 9, kVocab = 512;

struct Outcome {
  std::vector<float> logits;              // (kTokens, V)
  std::vector<std::set<int32_t>> routes;  // of every layer and token, layer by layer
};

// Prefill, then decoding.
Outcome run(Model& model, size_t prompt) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < kTokens; ++i)
    ids.push_back(static_cast<int32_t>((i * 37 + prompt * 101 + 11) % kVocab));
  Sequence sequence = model.new_sequence(kTokens);
  Trace trace;
  Outcome outcome;
  const auto forward = [&](size_t begin, size_t count) {
    const auto logits = model.forward({&ids[begin], count}, sequence, LogitRows::kAll, &trace);
    outcome.logits.insert(outcome.logits.end(), logits.begin(), logits.end());
  };
  forward(0, kPrefill);
  for (size_t t = kPrefill; t < kTokens; ++t) forward(t, 1);
  for (const auto& [name, tensor] : trace.tensors())
    for (size_t i = 0; i < tensor.ids.size(); i += tensor.cols)
      outcome.routes.emplace_back(tensor.ids.begin() + i, tensor.ids.begin() + i + tensor.cols);
  return outcome;
}

// Tokens before the first that is routed otherwise anywhere: a choice between experts that "ref"
// finds nearly equal may go the other way, and then more than rounding differs.
size_t tokens_with_equal_routes(const Outcome& a, const Outcome& b) {
  size_t tokens = kTokens;
  for (size_t i = 0; i < a.routes.size(); ++i)
    if (a.routes[i] != b.routes[i]) tokens = std::min(tokens, i % kTokens);
  return tokens;
}

TEST_P(ModelVariant, CpuAgreesWithRef) {
  TempDirectory directory;
  auto config = golden_config("k3-tiny-bf16");
  GetParam().change(config["text_config"]);
  write_tiny_model(directory.path(), config, 5);
  const auto ref_device = open_device("ref");
  const auto ref = Model::open(directory.path(), *ref_device);
  std::vector<Outcome> all_expected;
  for (size_t prompt = 0; prompt < kPrompts; ++prompt) all_expected.push_back(run(*ref, prompt));
  for (const std::string& name : available_devices()) {
    if (name == "ref") continue;
    const auto device = open_device(name);
    const auto model = Model::open(directory.path(), *device);
    size_t compared = 0;
    for (size_t prompt = 0; prompt < kPrompts; ++prompt) {
      const Outcome &expected = all_expected[prompt], ours = run(*model, prompt);
      const size_t tokens = tokens_with_equal_routes(ours, expected);
      compared += tokens;
      if (tokens == 0) continue;
      const auto first = [&](const std::vector<float>& all) {
        return std::vector<float>(all.begin(), all.begin() + static_cast<long>(tokens * kVocab));
      };
      // The tolerance of k3-tiny-bf16, which has the same shape and scales.
      EXPECT_LE(relative_l2(first(ours.logits), first(expected.logits)), 0.0364)
          << name << ", prompt " << prompt << ", " << tokens << " tokens";
    }
    // A wrong router would find other experts at once.
    EXPECT_GE(compared, 2 * kPrompts) << name;
  }
}

// Teeth: with the weights of the variant, the unchanged configuration says something else.
TEST_P(ModelVariant, TheKeyMatters) {
  const Variant& variant = GetParam();
  if (!variant.same_weights) return;  // needs other tensors, which loading checks
  TempDirectory directory;
  auto config = golden_config("k3-tiny-bf16");
  write_tiny_model(directory.path(), config, 5);
  const auto device = open_device("ref");
  const auto base = Model::open(directory.path(), *device);
  variant.change(config["text_config"]);
  write_text(directory / "config.json", config.dump());
  drop_unread_tensors(directory.path());
  const auto changed = Model::open(directory.path(), *device);
  EXPECT_GT(relative_l2(run(*changed, 0).logits, run(*base, 0).logits), 0.05);
}

INSTANTIATE_TEST_SUITE_P(, ModelVariant, ::testing::ValuesIn(kVariants),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace halfbyte

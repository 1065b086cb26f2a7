// Good checkpoints are broken in one place each: a conversion must be refused before it begins.
#include "model/convertible.h"

#include <gtest/gtest.h>

#include "model/roster.h"
#include "support/edited_model.h"

namespace halfbyte {
namespace {

std::string refusal_of(const std::filesystem::path& directory) {
  return message_of(
      [&] { check_convertible(Checkpoint(directory), read_model_config(directory)); });
}
std::string refusal_of(EditedModel& model) { return refusal_of(model.write()); }

const std::string kLayer = "language_model.model.layers.2.";

TEST(Convertible, GoldenModelsAre) {
  for (const char* name : {"k3-tiny-bf16", "k3-tiny-mxfp4", "kimi-linear-tiny"})
    EXPECT_EQ(refusal_of(std::filesystem::path(HALFBYTE_TEST_DATA) / name), "") << name;
}

TEST(Convertible, NoTensorMayBeMissing) {
  EditedModel model("k3-tiny-bf16");
  model.write();
  const ModelConfig config = read_model_config(model.directory.path());
  const std::vector<CraftedTensor> whole = model.tensors;
  int removed = 0;
  for (const RosterEntry& entry : make_roster(config, "language_model.")) {
    // Every kind of the dense and the first MoE layer, and what is outside of the layers; of the
    // experts the last.
    const bool other_layer = entry.name.find(".layers.") != std::string::npos &&
                             entry.name.find(".layers.0.") == std::string::npos &&
                             entry.name.find(".layers.3.") == std::string::npos;
    const bool other_expert =
        entry.role == TensorRole::kExpert && entry.name.find(".experts.7.") == std::string::npos;
    if (other_layer || other_expert) continue;
    const bool is_module = entry.role == TensorRole::kMatrix || entry.role == TensorRole::kExpert;
    const std::string name = is_module ? entry.name + ".weight" : entry.name;
    model.tensors = whole;
    model.erase(name);
    ASSERT_EQ(model.tensors.size() + 1, whole.size()) << name;
    EXPECT_EQ(refusal_of(model),
              model.directory.path().string() + ": tensor " + name + " is missing");
    ++removed;
  }
  EXPECT_GT(removed, 40);
}

TEST(Convertible, WhatTheResultCouldNotBeRunWithIsRefused) {
  const auto expect = [](auto&& change, const std::string& part) {
    EditedModel model("k3-tiny-bf16");
    change(model);
    const std::string message = refusal_of(model);
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nexpected: " << part;
  };
  expect([](EditedModel& m) { m.at("language_model.lm_head.weight").dtype = DType::kF16; },
         "tensor language_model.lm_head.weight: is F16; halfbyte runs");
  expect([](EditedModel& m) { m.at(kLayer + "self_attn.o_proj.weight").dtype = DType::kF16; },
         "tensor " + kLayer + "self_attn.o_proj.weight: is F16; halfbyte runs");
  expect([](EditedModel& m) { m.set<uint16_t>(kLayer + "input_layernorm.weight", 3, 0x7FC0); },
         "tensor " + kLayer + "input_layernorm.weight: value 3 is nan");
  expect(
      [](EditedModel& m) {
        m.at(kLayer + "self_attn.o_proj.weight").shape = {128, 64};
      },
      "o_proj.weight: is a matrix of 128 x 64, expected 64 x 128");
  expect(
      [](EditedModel& m) {
        m.tensors.push_back({kLayer + "self_attn.q_proj.bias", DType::kBf16, {128}, ""});
      },
      "q_proj.bias: is not known");
  expect([](EditedModel& m) { m.config["text_config"]["num_experts_per_token"] = 9; },
         "num_experts_per_token: is 9, more than num_experts = 8");
  expect([](EditedModel& m) { m.config["text_config"]["num_experts"] = 9; },
         "gate.weight: is a matrix of 8 x 64, expected 9 x 64 (and ");
}

// What the source's configs claim is replaced, so it does not count.
TEST(Convertible, ClaimsOfTheSourceDoNotCount) {
  EditedModel model("k3-tiny-bf16");
  model.config["quantization_config"] = {{"quant_method", "unheard of"}};
  EXPECT_EQ(refusal_of(model), "");
  EXPECT_NE(model.reasons(), "");
}

TEST(Convertible, LayersAndExpertsThatAreNotKeptMayBeThere) {
  EditedModel model("k3-tiny-bf16");
  const auto& directory = model.write();
  ModelConfig result = read_model_config(directory);
  result.num_layers = 5;
  result.attention.resize(5);
  result.moe.num_experts = 4;
  EXPECT_EQ(message_of([&] { check_convertible(Checkpoint(directory), result); }), "");
}

}  // namespace
}  // namespace halfbyte

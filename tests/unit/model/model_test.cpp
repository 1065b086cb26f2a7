// Loading refuses what it must, before work; forward refuses ids; names and layouts that it takes.
#include "model/model.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "formats/checkpoint.h"
#include "model/roster.h"
#include "support/craft.h"
#include "support/golden_model.h"
#include "support/temp_directory.h"
#include "support/tiny_model.h"

namespace halfbyte {
namespace {

// A golden model's tensors, to be changed and written again.
struct Copy {
  explicit Copy(const std::string& folder) : golden(folder), config(golden_config(folder)) {
    const Checkpoint checkpoint(golden.directory);
    for (const StoredTensor* tensor : checkpoint.tensors())
      tensors.push_back(
          {std::string(tensor->name),
           tensor->dtype,
           tensor->shape,
           {reinterpret_cast<const char*>(tensor->bytes.data()), tensor->bytes.size()}});
  }
  CraftedTensor& at(const std::string& name) {
    for (CraftedTensor& tensor : tensors)
      if (tensor.name == name) return tensor;
    throw std::out_of_range(name);
  }
  void remove(const std::string& part) {
    std::erase_if(tensors, [&](const CraftedTensor& tensor) {
      return tensor.name.find(part) != std::string::npos;
    });
  }
  void write() const {
    write_text(directory / "config.json", config.dump());
    write_safetensors(directory / "model.safetensors", tensors);
  }
  std::string refusal() const {
    write();
    const auto device = open_device("ref");
    return message_of([&] { Model::open(directory.path(), *device); });
  }
  std::vector<float> logits() const {
    write();
    const auto device = open_device("ref");
    const auto model = Model::open(directory.path(), *device);
    Sequence sequence = model->new_sequence(8);
    const auto span = model->forward(golden.prompt("len5").ids, sequence, LogitRows::kAll);
    return {span.begin(), span.end()};
  }
  void expect_right() const {
    EXPECT_LE(max_abs_difference(logits(), golden.logits(golden.prompt("len5"))),
              golden.tolerances.fp32_logits_max_abs);
  }

  TempDirectory directory;
  GoldenModel golden;
  nlohmann::ordered_json config;
  std::vector<CraftedTensor> tensors;
};

void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  EXPECT_FALSE(message.empty());
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
}

const std::string kLayer1 = "language_model.model.layers.1.";

TEST(ModelLoading, NamesWithAndWithoutThePrefix) {
  Copy copy("k3-tiny-bf16");
  for (CraftedTensor& tensor : copy.tensors)
    tensor.name = tensor.name.substr(std::strlen("language_model."));
  copy.expect_right();
}

TEST(ModelLoading, LogDecayInEitherShape) {
  Copy k3("k3-tiny-bf16");
  for (CraftedTensor& tensor : k3.tensors)
    if (tensor.name.ends_with("A_log")) {
      tensor.shape = {1, 1, 4, 1};
      tensor.bytes.resize(16);
    }
  k3.expect_right();
}

TEST(ModelLoading, LogDecayWithALiveTailIsRefused) {
  Copy copy("k3-tiny-bf16");
  const float value = 0.5f;
  std::memcpy(copy.at(kLayer1 + "self_attn.A_log").bytes.data() + 4 * 20, &value, 4);
  expect_parts(copy.refusal(), {"A_log", "20", "0.5", "4 heads"});
}

TEST(ModelLoading, TooFewLogDecaysAreRefused) {
  Copy copy("k3-tiny-bf16");
  copy.at(kLayer1 + "self_attn.A_log").shape = {3};
  copy.at(kLayer1 + "self_attn.A_log").bytes.resize(12);
  expect_parts(copy.refusal(), {"A_log", "[3]", "4"});
}

TEST(ModelLoading, AMissingTensorIsNamed) {
  for (const std::string& name :
       std::vector<std::string>{kLayer1 + "self_attn.q_proj.weight", kLayer1 + "self_attn.dt_bias",
                                kLayer1 + "block_sparse_moe.gate.e_score_correction_bias",
                                kLayer1 + "mlp_res_norm.weight", "language_model.lm_head.weight",
                                "language_model.model.embed_tokens.weight"}) {
    Copy copy("k3-tiny-bf16");
    copy.remove(name);
    expect_parts(copy.refusal(), {name, "missing"});
  }
}

// A checkpoint with a hole at expert 3 of 8 does not have 3 experts.
TEST(ModelLoading, AHoleAmongTheExpertsIsNamed) {
  Copy copy("k3-tiny-bf16");
  copy.remove("layers.1.block_sparse_moe.experts.3.");
  expect_parts(copy.refusal(), {"layers.1.block_sparse_moe.experts.3.w1", "missing"});
}

TEST(ModelLoading, OneExpertIsEnough) {
  TempDirectory directory;
  auto config = golden_config("k3-tiny-bf16");
  config["text_config"]["num_experts"] = 1;
  config["text_config"]["num_experts_per_token"] = 1;
  write_tiny_model(directory.path(), config, 1);
  for (const std::string& name : available_devices()) {
    const auto device = open_device(name);
    const auto model = Model::open(directory.path(), *device);
    Sequence sequence = model->new_sequence(1);
    const int32_t id = 3;
    for (const float logit : model->forward({&id, 1}, sequence)) ASSERT_TRUE(std::isfinite(logit));
  }
}

// What nobody reads under "experts." would leave weights out without a word.
TEST(ModelLoading, UnknownTensorsAmongTheExpertsAreRefused) {
  for (const char* name :
       {"block_sparse_moe.experts.0.w4.weight", "block_sparse_moe.experts.8.w1.weight",
        "block_sparse_moe.experts.gate_up_proj"}) {
    Copy copy("k3-tiny-bf16");
    copy.tensors.push_back({kLayer1 + name, DType::kBf16, {64, 32}, ""});
    expect_parts(copy.refusal(), {name});
  }
}

TEST(ModelLoading, VisionAndLaterLayersAreSkipped) {
  Copy copy("k3-tiny-bf16");
  copy.tensors.push_back({"vision_tower.blocks.0.experts.weight", DType::kBf16, {4, 4}, ""});
  copy.tensors.push_back({"mm_projector.w", DType::kBf16, {4, 4}, ""});
  copy.tensors.push_back({"language_model.model.layers.9.block_sparse_moe.experts.0.w1.weight",
                          DType::kBf16,
                          {64, 32},
                          ""});
  copy.expect_right();
}

TEST(ModelLoading, WrongShapesAndDtypesAreNamed) {
  {
    Copy copy("k3-tiny-bf16");
    copy.at(kLayer1 + "self_attn.o_proj.weight").shape = {128, 64};
    expect_parts(copy.refusal(), {"self_attn.o_proj.weight", "128 x 64", "64 x 128"});
  }
  {
    Copy copy("k3-tiny-bf16");
    copy.at(kLayer1 + "input_layernorm.weight").dtype = DType::kI16;
    expect_parts(copy.refusal(), {"input_layernorm.weight", "I16", "BF16"});
  }
  {
    Copy copy("k3-tiny-nvfp4");
    copy.remove("layers.0.self_attn.q_proj.weight_scale");
    expect_parts(copy.refusal(), {"layers.0.self_attn.q_proj", "weight_scale"});
  }
  {
    Copy copy("k3-tiny-nvfp4");
    copy.remove("layers.1.block_sparse_moe.experts.3.w2.weight_scale_2");
    expect_parts(copy.refusal(), {"experts.3.w2", "weight_scale_2"});
  }
  {
    Copy copy("k3-tiny-nvfp4");
    copy.at(kLayer1 + "block_sparse_moe.experts.5.w3.weight_scale").bytes[7] = 0x7F;
    expect_parts(copy.refusal(), {"experts.5.w3.weight_scale", "0x7F"});
  }
  {
    Copy copy("k3-tiny-bf16");
    copy.at(kLayer1 + "self_attn.dt_bias").bytes.replace(8, 4, "\x00\x00\xC0\x7F", 4);
    expect_parts(copy.refusal(), {"dt_bias", "2", "nan"});
  }
}

// W4A16 reads no activation scales: whatever they hold, and if they are missing.
TEST(ModelLoading, ActivationScalesChangeNothing) {
  Copy copy("k3-tiny-nvfp4");
  const std::vector<float> before = copy.logits();
  for (CraftedTensor& tensor : copy.tensors)
    if (tensor.name.ends_with("experts.2.w1.input_scale")) tensor.bytes.assign(4, '\xFF');
  copy.remove("experts.3.w1.input_scale");
  EXPECT_EQ(copy.logits(), before);
}

TEST(ModelForward, RefusesBadIdsAndLeavesTheSequenceAlone) {
  const GoldenModel golden("k3-tiny-bf16");
  const auto device = open_device("ref");
  const auto model = Model::open(golden.directory, *device);
  Sequence sequence = model->new_sequence(4);
  const auto refusal = [&](std::vector<int32_t> ids) {
    return message_of([&] { model->forward(ids, sequence); });
  };
  expect_parts(refusal({}), {"prompt", "empty"});
  expect_parts(refusal({1, 512}), {"token 1", "512", "511"});
  expect_parts(refusal({-1}), {"token 0", "-1"});
  expect_parts(refusal({1, 2, 3, 4, 5}), {"5 tokens", "0 of 4"});
  EXPECT_EQ(sequence.length(), 0);

  const std::vector<int32_t> ids = {5, 6, 7, 8};
  const auto logits = model->forward(ids, sequence);
  EXPECT_EQ(logits.size(), 512u);
  EXPECT_EQ(sequence.length(), 4);
  expect_parts(refusal({1}), {"1 tokens", "4 of 4"});
}

TEST(ModelForward, ReportsProgressOfLoading) {
  const GoldenModel golden("kimi-linear-tiny");
  const auto device = open_device("ref");
  std::vector<int> seen;
  Model::open(golden.directory, *device, {.max_chunk = 8, .progress = [&](int done, int layers) {
                                            EXPECT_EQ(layers, 7);
                                            seen.push_back(done);
                                          }});
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3, 4, 5, 6, 7}));
}

}  // namespace
}  // namespace halfbyte

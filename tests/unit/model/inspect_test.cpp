// Good checkpoints are broken in one place each: inspect must say so, with file and tensor.
#include "model/inspect.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halfbyte/device.h"
#include "model/model.h"
#include "support/edited_model.h"

namespace halfbyte {
namespace {

const std::string kLayer = "language_model.model.layers.2.";
const std::string kExpert = kLayer + "block_sparse_moe.experts.3.";

const TensorGroup& group(const Inspection& inspection, const std::string& name) {
  for (const TensorGroup& g : inspection.groups)
    if (g.name == name) return g;
  throw std::out_of_range(name);
}

TEST(Inspect, CountsWhatIsThere) {
  EditedModel model("k3-tiny-nvfp4");
  const Inspection inspection = model.inspect();
  EXPECT_TRUE(inspection.problems.empty()) << inspection.problems[0].what();
  EXPECT_EQ(inspection.num_tensors, 680);
  EXPECT_EQ(inspection.num_kda, 4);
  EXPECT_EQ(inspection.num_mla, 2);
  EXPECT_EQ(inspection.num_dense, 1);
  EXPECT_EQ(inspection.num_moe, 5);
  const TensorGroup& experts = group(inspection, "routed experts");
  EXPECT_EQ(experts.stored, "nvfp4");
  EXPECT_EQ(experts.claimed, "nvfp4");
  EXPECT_EQ(experts.count, 5 * 8 * 3);
  EXPECT_EQ(experts.values, 5 * 8 * 3 * 64 * 96);
  EXPECT_EQ(experts.bytes, experts.values / 2 + experts.values / 16 + 4 * experts.count);
  EXPECT_EQ(experts.scales.total, experts.values / 16);
  EXPECT_EQ(group(inspection, "KDA attention").stored, "fp8_block");
  EXPECT_EQ(group(inspection, "router").claimed, "none");
  EXPECT_EQ(inspection.gate_up_pairs, 40);
  EXPECT_EQ(inspection.gate_up_differing, 0);
}

TEST(Inspect, CountsZeroAndSubnormalScales) {
  EditedModel model("k3-tiny-nvfp4");
  model.set<uint8_t>(kExpert + "w1.weight_scale", 0, 0x00);
  model.set<uint8_t>(kExpert + "w1.weight_scale", 7, 0x07);
  model.set<uint8_t>(kExpert + "w2.weight_scale", 7, 0x01);
  const Inspection inspection = model.inspect();
  EXPECT_TRUE(inspection.problems.empty());
  EXPECT_EQ(group(inspection, "routed experts").scales.zero, 1);
  EXPECT_EQ(group(inspection, "routed experts").scales.subnormal, 2);
}

TEST(Inspect, CountsGateUpPairsThatDiffer) {
  EditedModel model("k3-tiny-nvfp4");
  float scale = 0;
  std::memcpy(&scale, model.at(kExpert + "w1.weight_scale_2").bytes.data(), sizeof scale);
  model.set<float>(kExpert + "w1.weight_scale_2", 0, scale * 4);
  model.set<float>(kLayer + "block_sparse_moe.experts.5.w3.weight_scale_2", 0, scale * 1.5f);
  model.set<float>(kExpert + "w2.weight_scale_2", 0, scale * 0.125f);  // down: none of its business
  const Inspection inspection = model.inspect();
  EXPECT_TRUE(inspection.problems.empty());  // both are applied: no reason against it
  EXPECT_EQ(inspection.gate_up_differing, 2);
  EXPECT_DOUBLE_EQ(inspection.gate_up_largest_ratio, 4);
}

TEST(Inspect, NamesMissingTensors) {
  EditedModel model("k3-tiny-nvfp4");
  model.erase(kExpert + "w3.weight_scale");
  EXPECT_EQ(model.reasons(), "model.safetensors: tensor " + kExpert +
                                 "w3.weight: has packed codes, but no weight_scale");
  for (const char* part : {"weight", "weight_scale_2", "input_scale"})
    model.erase(kExpert + "w3." + part);
  EXPECT_NE(model.reasons().find("tensor " + kExpert + "w3.weight is missing"), std::string::npos);
  model.erase(kLayer + "self_attn.A_log");
  model.erase("language_model.model.norm.weight");
  EXPECT_EQ(model.inspect().problems.size(), 3u);  // every reason, not only the first
}

// A hole at expert 3 of 8 is a hole, not a model of three experts; and no experts are no model.
TEST(Inspect, CountsExpertsByTheConfig) {
  EditedModel hole("kimi-linear-tiny");
  std::erase_if(hole.tensors, [](const CraftedTensor& tensor) {
    return tensor.name.find("layers.1.block_sparse_moe.experts.3.") != std::string::npos;
  });
  EXPECT_EQ(hole.inspect().problems.size(), 3u);

  EditedModel fewer("kimi-linear-tiny");
  fewer.config["num_experts"] = 7;
  EXPECT_NE(fewer.reasons().find("experts.7.w1.weight: is not known"), std::string::npos);
  fewer.config["num_experts"] = 0;
  EXPECT_NE(fewer.reasons(), "");

  EditedModel one("kimi-linear-tiny");
  one.config["num_experts"] = one.config["num_experts_per_token"] = 1;
  std::erase_if(one.tensors, [](const CraftedTensor& tensor) {
    return tensor.name.find(".experts.") != std::string::npos &&
           tensor.name.find(".experts.0.") == std::string::npos;
  });
  for (CraftedTensor& tensor : one.tensors) {
    if (tensor.name.find("block_sparse_moe.gate.") == std::string::npos) continue;
    tensor.shape[0] = 1;
    tensor.bytes.resize(tensor.bytes.size() / 8);
  }
  EXPECT_EQ(one.reasons(), "");
}

TEST(Inspect, NamesWrongShapesAndDtypes) {
  EditedModel model("k3-tiny-bf16");
  std::swap(model.at(kLayer + "block_sparse_moe.routed_expert_up_proj.weight").shape[0],
            model.at(kLayer + "block_sparse_moe.routed_expert_up_proj.weight").shape[1]);
  EXPECT_EQ(model.reasons(),
            "model.safetensors: tensor " + kLayer +
                "block_sparse_moe.routed_expert_up_proj.weight: is a matrix of 32 x "
                "64, expected 64 x 32");
  // As many values, in another order: taps before channels.
  EditedModel taps("k3-tiny-bf16");
  taps.at(kLayer + "self_attn.k_conv1d.weight").shape = {4, 1, 128};
  EXPECT_NE(taps.reasons().find("self_attn.k_conv1d.weight: has shape [4, 1, 128], expected 128 x"),
            std::string::npos)
      << taps.reasons();
  taps.at(kLayer + "self_attn.k_conv1d.weight").shape = {128, 4};
  EXPECT_EQ(taps.reasons(), "");
  EditedModel half("k3-tiny-bf16");
  half.at(kLayer + "self_attn.q_proj.weight").dtype = DType::kF16;
  EXPECT_NE(half.reasons().find("self_attn.q_proj.weight: is F16; halfbyte runs"),
            std::string::npos);
  EditedModel norm("k3-tiny-bf16");
  norm.at(kLayer + "input_layernorm.weight").dtype = DType::kF16;
  EXPECT_NE(norm.reasons().find("input_layernorm.weight: is F16, expected BF16 or F32"),
            std::string::npos);
}

TEST(Inspect, NamesWhatNobodyWouldRead) {
  EditedModel model("k3-tiny-bf16");
  model.tensors.push_back({kLayer + "block_sparse_moe.experts.8.w1.weight", DType::kBf16, {1}, ""});
  model.tensors.push_back({kExpert + "w1.weight_extra", DType::kBf16, {1}, ""});
  model.tensors.push_back({kLayer + "self_attn.q_proj.bias", DType::kBf16, {128}, ""});
  EXPECT_EQ(model.inspect().problems.size(), 3u) << model.reasons();

  // These change nothing: vision, layers beyond the config's, scales of a KV cache.
  EditedModel harmless("k3-tiny-bf16");
  harmless.tensors.push_back({"vision_tower.x.weight", DType::kBf16, {4}, ""});
  harmless.tensors.push_back({"mm_projector.0.bias", DType::kBf16, {4}, ""});
  harmless.tensors.push_back({"language_model.model.layers.9.x.weight", DType::kBf16, {4}, ""});
  harmless.tensors.push_back({kLayer + "self_attn.k_proj.k_scale", DType::kF32, {}, ""});
  const Inspection inspection = harmless.inspect();
  EXPECT_TRUE(inspection.problems.empty()) << harmless.reasons();
  int64_t unread = 0;
  for (const TensorGroup& g : inspection.unread) unread += g.count;
  EXPECT_EQ(unread, 4);
}

// A configuration that has lost a key describes another network than the weights.
TEST(Inspect, NamesWeightsThatTheConfigDoesNotAskFor) {
  for (const auto& [key, part] : std::vector<std::pair<const char*, const char*>>{
           {"mla_use_output_gate", "layers.3.self_attn.g_proj.weight"},
           {"attn_res_block_size", "layers.0.mlp_res_norm.weight"},
           {"latent_moe_use_norm", "layers.1.block_sparse_moe.routed_expert_norm.weight"}}) {
    EditedModel model("k3-tiny-bf16");
    model.config["text_config"].erase(key);
    EXPECT_NE(model.reasons().find(std::string(part) +
                                   ": would not be read: config.json describes a network"),
              std::string::npos)
        << key << "\n"
        << model.reasons();
  }
  EditedModel shared("k3-tiny-bf16");
  shared.config["text_config"]["num_shared_experts"] = 0;
  EXPECT_NE(shared.reasons().find("shared_experts.gate_proj.weight: would not be read"),
            std::string::npos);
}

TEST(Inspect, NamesBadValues) {
  const auto reasons = [](const auto& edit) {
    EditedModel model("k3-tiny-nvfp4");
    edit(model);
    return model.reasons();
  };
  EXPECT_NE(reasons([](EditedModel& m) {
              m.set<uint8_t>(kExpert + "w2.weight_scale", 13, 0x7F);
            }).find(kExpert + "w2.weight_scale: scale [2, 1] is byte 0x7F"),
            std::string::npos);
  EXPECT_NE(reasons([](EditedModel& m) {
              m.set<float>(kExpert + "w2.weight_scale_2", 0, -1);
            }).find(kExpert + "w2.weight_scale_2: is -1, expected a finite number above 0"),
            std::string::npos);
  EXPECT_NE(reasons([](EditedModel& m) {
              m.set<float>(kLayer + "self_attn.v_proj.weight_scale", 1, NAN);
            }).find("self_attn.v_proj.weight_scale: scale [0, 1] is nan"),
            std::string::npos);
  EXPECT_NE(reasons([](EditedModel& m) {
              m.set<uint16_t>(kLayer + "input_layernorm.weight", 5, 0x7FC0);
            }).find("input_layernorm.weight: value 5 is nan"),
            std::string::npos);
  EXPECT_NE(reasons([](EditedModel& m) {
              m.set<float>(kLayer + "self_attn.A_log", 5, 1);
            }).find("self_attn.A_log: value 5 is 1, expected zeros after the 5 heads"),
            std::string::npos);
}

TEST(Inspect, ComparesClaimsWithWhatIsStored) {
  EditedModel model("k3-tiny-nvfp4");
  // Claimed by name, but stored in BF16.
  CraftedTensor& weight = model.at(kLayer + "self_attn.q_proj.weight");
  weight.dtype = DType::kBf16;
  weight.bytes.resize(weight.bytes.size() * 2);
  model.erase(kLayer + "self_attn.q_proj.weight_scale");
  EXPECT_NE(model.reasons().find("self_attn.q_proj: is stored as bf16, but"), std::string::npos);

  EditedModel unknown("k3-tiny-nvfp4");
  unknown.config["quantization_config"]["quant_algo"] = "FP3";
  EXPECT_NE(
      unknown.reasons().find("config.json: quantization_config.quant_algo: \"FP3\" is not known"),
      std::string::npos);
}

TEST(Inspect, ExpertsOfALayerMustBeStoredAlike) {
  EditedModel model("k3-tiny-nvfp4");
  for (const char* part : {"weight_scale", "weight_scale_2"}) model.erase(kExpert + "w2." + part);
  CraftedTensor& weight = model.at(kExpert + "w2.weight");
  weight = {weight.name, DType::kBf16, {64, 96}, ""};
  EXPECT_NE(model.reasons().find(kExpert + "w2: is stored as bf16, expected nvfp4 as the first"),
            std::string::npos)
      << model.reasons();
}

// What inspect refuses without reading values, loading refuses before it starts, in the same words.
TEST(Inspect, LoadingRefusesTheSame) {
  const auto compare = [](const std::string& name, const auto& edit) {
    EditedModel model(name);
    edit(model);
    const Inspection inspection = model.inspect();
    const auto device = open_device("ref");
    const std::string message = message_of([&] { Model::open(model.directory.path(), *device); });
    EXPECT_EQ(message, inspection.problems.empty() ? "" : inspection.problems[0].what());
    return message;
  };
  EXPECT_EQ(compare("k3-tiny-nvfp4", [](EditedModel&) {}), "");
  EXPECT_NE(compare("k3-tiny-nvfp4",
                    [](EditedModel& m) { m.config["quantization_config"]["quant_algo"] = "FP3"; }),
            "");
  EXPECT_NE(compare("k3-tiny-nvfp4",
                    [](EditedModel& m) {
                      auto& layers = m.config["quantization_config"]["quantized_layers"];
                      layers["language_model.lm_head"]["quant_algo"] = "NVFP4";
                      m.config["quantization_config"]["exclude_modules"].clear();
                    }),
            "");
  EXPECT_NE(compare("k3-tiny-bf16", [](EditedModel& m) { m.erase(kExpert + "w1.weight"); }), "");
}

TEST(Inspect, WithoutAConfigItStillSaysWhatIsThere) {
  EditedModel model("k3-tiny-bf16");
  model.config["text_config"].erase("num_experts");
  const Inspection inspection = model.inspect();
  ASSERT_EQ(inspection.problems.size(), 1u);
  EXPECT_NE(std::string(inspection.problems[0].what()).find("num_experts: missing"),
            std::string::npos);
  EXPECT_GT(inspection.num_tensors, 0);
  EXPECT_NE(inspection_table(inspection, 10).find("cannot run this checkpoint: 1 reason"),
            std::string::npos);
  EXPECT_FALSE(nlohmann::json::parse(inspection_json(inspection))["can_run"].get<bool>());
}

TEST(Inspect, TheTableCutsALongListAndJsonDoesNot) {
  EditedModel model("kimi-linear-tiny");
  std::erase_if(model.tensors, [](const CraftedTensor& tensor) {
    return tensor.name.find(".w1.") != std::string::npos;
  });
  const Inspection inspection = model.inspect();
  EXPECT_EQ(inspection.problems.size(), 6u * 8u);
  EXPECT_NE(inspection_table(inspection, 5).find("\n  ... and 43 more\n"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(inspection_json(inspection))["reasons"].size(), 48u);
}

}  // namespace
}  // namespace halfbyte

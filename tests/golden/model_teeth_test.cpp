// Teeth of the golden comparisons: single mistakes, made on purpose, each caught.
//
// The generators of the golden files made some of the same mistakes in their own model and say what
// they do to the logits (`negative_controls`): where we can make the same one, our number must
// agree with theirs, so that it is the mistake that is caught and not some other one.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "model/model.h"
#include "ops/ref/ref_device.h"
#include "support/golden_model.h"
#include "support/temp_directory.h"
#include "support/tiny_model.h"

namespace halfbyte {
namespace {

constexpr const char* kPrompts[] = {"len5", "len17", "len65"};

std::vector<float> all_logits(Model& model, const GoldenModel& golden) {
  std::vector<float> all;
  for (const char* name : kPrompts) {
    Sequence sequence = model.new_sequence(256);
    const auto logits = model.forward(golden.prompt(name).ids, sequence, LogitRows::kAll);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

// The largest difference to the right logits of all positions: those of "ref" on the unchanged
// model, which GoldenModelOnRef compares with the expected ones (not all positions of len65 are in
// the golden files).
double largest_difference(Model& model, const GoldenModel& golden) {
  const auto device = open_device("ref");
  const auto right = Model::open(golden.directory, *device);
  return max_abs_difference(all_logits(model, golden), all_logits(*right, golden));
}

double negative_control(const GoldenModel& golden, const char* mistake) {
  const JsonDocument document = JsonDocument::from_file(golden.directory / "expected.json");
  return document.root().get("negative_controls").get(mistake).get("max_abs").number();
}

double difference_on_ref(const std::filesystem::path& directory, const GoldenModel& golden) {
  const auto device = open_device("ref");
  const auto model = Model::open(directory, *device);
  return largest_difference(*model, golden);
}

// "ref" with one operation made wrong.
template <class WrongOps>
class WrongDevice : public ref::RefDevice {
 public:
  Ops& ops() override { return wrong_; }

 private:
  WrongOps wrong_;
};

template <class WrongOps>
double difference_with(const GoldenModel& golden) {
  WrongDevice<WrongOps> device;
  const auto model = Model::open(golden.directory, device);
  return largest_difference(*model, golden);
}

// A copy of a golden model with something changed in its files.
struct Changed {
  explicit Changed(const std::string& folder) : golden(folder) {
    copy_checkpoint(golden.directory, directory.path());
  }
  void change_config(const std::function<void(nlohmann::ordered_json&)>& change) const {
    auto config = nlohmann::ordered_json::parse(read_text(directory / "config.json"));
    change(config);
    write_text(directory / "config.json", config.dump());
    drop_unread_tensors(directory.path());
  }
  void expect_caught() const {
    const double difference = difference_on_ref(directory.path(), golden);
    EXPECT_GT(difference, 2 * golden.tolerances.fp32_logits_max_abs);
  }
  void expect_as_predicted(const char* mistake) const {
    const double predicted = negative_control(golden, mistake);
    EXPECT_NEAR(difference_on_ref(directory.path(), golden), predicted, 1e-3 * predicted);
    EXPECT_GT(predicted, golden.tolerances.bf16_logits_max_abs);  // bf16 activations catch it too
  }
  TempDirectory directory;
  GoldenModel golden;
};

const std::string kLayer = "language_model.model.layers.";

TEST(GoldenTeeth, NothingChangedIsNothingCaught) {
  const Changed model("k3-tiny-bf16");
  EXPECT_LE(difference_on_ref(model.directory.path(), model.golden),
            model.golden.tolerances.fp32_logits_max_abs);
}

TEST(GoldenTeeth, SiluForSitu) {
  const Changed model("k3-tiny-bf16");
  model.change_config([](auto& config) { config["text_config"]["hidden_act"] = "silu"; });
  model.expect_as_predicted("silu");
}

TEST(GoldenTeeth, SituWithoutLinearBeta) {
  const Changed model("k3-tiny-bf16");
  model.change_config(
      [](auto& config) { config["text_config"]["activation_situ_linear_beta"] = nullptr; });
  model.expect_as_predicted("situ_no_linear");
}

TEST(GoldenTeeth, NoLowerBoundOfTheDecayGate) {
  const Changed model("k3-tiny-bf16");
  model.change_config([](auto& config) {
    config["text_config"]["linear_attn_config"]["gate_lower_bound"] = nullptr;
  });
  model.expect_as_predicted("no_lower_bound");
}

TEST(GoldenTeeth, NoOutputGateOfMla) {
  const Changed model("k3-tiny-bf16");
  model.change_config([](auto& config) { config["text_config"]["mla_use_output_gate"] = false; });
  model.expect_as_predicted("mla_no_gate");
}

TEST(GoldenTeeth, NoNormOfTheLatentSum) {
  const Changed model("k3-tiny-bf16");
  model.change_config([](auto& config) { config["text_config"]["latent_moe_use_norm"] = false; });
  model.expect_as_predicted("no_latent_norm");
}

TEST(GoldenTeeth, NoRenormalisation) {
  const Changed model("kimi-linear-tiny");
  model.change_config([](auto& config) { config["moe_renormalize"] = false; });
  model.expect_as_predicted("no_renorm");
}

TEST(GoldenTeeth, GateAndUpSwapped) {
  const Changed model("k3-tiny-bf16");
  for (int layer = 1; layer < 9; ++layer)
    for (int e = 0; e < 8; ++e) {
      const std::string expert =
          kLayer + std::to_string(layer) + ".block_sparse_moe.experts." + std::to_string(e);
      std::vector<uint8_t> gate, up;
      patch_tensor(model.directory.path(), expert + ".w1.weight",
                   [&](std::span<uint8_t> bytes) { gate.assign(bytes.begin(), bytes.end()); });
      patch_tensor(model.directory.path(), expert + ".w3.weight", [&](std::span<uint8_t> bytes) {
        up.assign(bytes.begin(), bytes.end());
        std::copy(gate.begin(), gate.end(), bytes.begin());
      });
      patch_tensor(model.directory.path(), expert + ".w1.weight", [&](std::span<uint8_t> bytes) {
        std::copy(up.begin(), up.end(), bytes.begin());
      });
    }
  model.expect_caught();
}

TEST(GoldenTeeth, OneFlippedNibble) {
  const Changed model("k3-tiny-mxfp4");
  // The sign of one weight of an expert that the len5 prompt uses.
  const int32_t expert = model.golden.trace.get("len5.layers.1.router_ids").as<int32_t>()[0];
  patch_tensor(
      model.directory.path(),
      kLayer + "1.block_sparse_moe.experts." + std::to_string(expert) + ".w2.weight_packed",
      [](std::span<uint8_t> bytes) {
        for (uint8_t& byte : bytes) {
          if ((byte & 0x07) < 4) continue;  // 2, 3, 4 or 6
          byte ^= 0x08;
          return;
        }
      });
  model.expect_caught();
}

TEST(GoldenTeeth, OneFlippedScaleBit) {
  for (const auto& [folder, layer] : {std::pair{"k3-tiny-mxfp4", 1}, {"k3-tiny-nvfp4", 2}}) {
    const Changed model(folder);
    const std::string moe = kLayer + std::to_string(layer) + ".block_sparse_moe.experts.";
    const int32_t expert =
        model.golden.trace.get("len5.layers." + std::to_string(layer) + ".router_ids")
            .as<int32_t>()[0];
    patch_tensor(model.directory.path(), moe + std::to_string(expert) + ".w2.weight_scale",
                 [](std::span<uint8_t> bytes) { bytes[0] ^= 0x01; });
    model.expect_caught();
  }
}

TEST(GoldenTeeth, OneFp8TileScale) {
  const Changed model("k3-tiny-nvfp4");
  patch_tensor(model.directory.path(), kLayer + "0.self_attn.o_proj.weight_scale",
               [](std::span<uint8_t> bytes) { bytes[4 * 3 + 2] ^= 0x10; });  // the last edge tile
  model.expect_caught();
}

// A_log read per channel: channel d of every head takes entry d (zeros behind the heads).
struct LogDecayPerChannel : ref::RefOps {
  void kda(const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs, float* state,
           TensorView o, void* workspace) override {
    // rate_d (r + bias) = rate_h ((r' + bias)): the wrong gate by way of another r.
    std::vector<float> changed(static_cast<size_t>(o.rows * shape.width()));
    KdaInputs wrong = inputs;
    wrong.decay = TensorView::of(changed.data(), DType::kF32, o.rows, shape.width());
    for (int64_t t = 0; t < o.rows; ++t)
      for (int h = 0; h < shape.heads; ++h)
        for (int d = 0; d < shape.head_dim; ++d) {
          const int64_t c = int64_t{h} * shape.head_dim + d;
          const double entry = d < shape.heads ? weights.log_decay[d] : 0;
          const double ratio = std::exp(entry - weights.log_decay[h]);
          const double bias = weights.decay_bias[c];
          wrong.decay.row<float>(t)[c] =
              static_cast<float>(ratio * (inputs.decay.row<float>(t)[c] + bias) - bias);
        }
    RefOps::kda(shape, weights, wrong, state, o, workspace);
  }
};

TEST(GoldenTeeth, LogDecayReadPerChannel) {
  const GoldenModel golden("k3-tiny-bf16");
  const double predicted = negative_control(golden, "a_log_per_channel");
  EXPECT_NEAR(difference_with<LogDecayPerChannel>(golden), predicted, 1e-3 * predicted);
  EXPECT_GT(predicted, golden.tolerances.bf16_logits_max_abs);
}

// The bias left in the weights: w = c / sum c with c = s + bias.
struct BiasInWeights : ref::RefOps {
  void route(TensorView logits, const float* bias, const RouterRule& rule, int32_t* ids,
             float* weights) override {
    RefOps::route(logits, bias, rule, ids, weights);
    for (int64_t t = 0; t < logits.rows; ++t) {
      double total = 0;
      const auto score = [&](int k) {
        const int32_t e = ids[t * rule.top_k + k];
        return 1 / (1 + std::exp(-double{logits.row<float>(t)[e]})) + bias[e];
      };
      for (int k = 0; k < rule.top_k; ++k) total += score(k);
      for (int k = 0; k < rule.top_k; ++k)
        weights[t * rule.top_k + k] = static_cast<float>(score(k) / total * rule.scale);
    }
  }
};

TEST(GoldenTeeth, BiasLeftInTheRouterWeights) {
  const GoldenModel golden("k3-tiny-bf16");
  const double predicted = negative_control(golden, "weights_from_biased");
  EXPECT_NEAR(difference_with<BiasInWeights>(golden), predicted, 1e-3 * predicted);
  EXPECT_GT(predicted, golden.tolerances.bf16_logits_max_abs);
}

struct SwappedRoute : ref::RefOps {
  void route(TensorView logits, const float* bias, const RouterRule& rule, int32_t* ids,
             float* weights) override {
    RefOps::route(logits, bias, rule, ids, weights);
    std::swap(ids[0], ids[1]);  // the weights stay
  }
};

TEST(GoldenTeeth, OneSwappedRoute) {
  const GoldenModel golden("k3-tiny-bf16");
  EXPECT_GT(difference_with<SwappedRoute>(golden), 2 * golden.tolerances.fp32_logits_max_abs);
}

struct UniformMix : ref::RefOps {
  void residual_mix(std::span<const TensorView> candidates, const float*, float eps,
                    TensorView y) override {
    const std::vector<float> zeros(static_cast<size_t>(y.cols));
    RefOps::residual_mix(candidates, zeros.data(), eps, y);
  }
};

TEST(GoldenTeeth, UniformMixOverDepth) {
  const GoldenModel golden("k3-tiny-bf16");
  const double predicted = negative_control(golden, "res_uniform");
  EXPECT_NEAR(difference_with<UniformMix>(golden), predicted, 1e-3 * predicted);
}

}  // namespace
}  // namespace halfbyte

#include "convert/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

#include "formats/bf16.h"
#include "formats/fp8_block.h"
#include "halfbyte/device.h"
#include "model/inspect.h"
#include "model/model.h"
#include "support/convert.h"
#include "support/craft.h"
#include "support/golden_model.h"
#include "support/temp_directory.h"
#include "support/tiny_model.h"

namespace halfbyte {
namespace {

const std::filesystem::path kData = HALFBYTE_TEST_DATA;

ConvertOptions with_threads(int threads) {
  ConvertOptions options;
  options.threads = threads;
  return options;
}

int64_t differing(const MatrixView& a, const MatrixView& b) {
  const std::vector<double> x = values_of(a), y = values_of(b);
  int64_t count = x.size() != y.size();
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) count += x[i] != y[i];
  return count;
}

double relative_error(const Checkpoint& source, const Checkpoint& result) {
  double error = 0, size = 0;
  for (const auto& module : expert_modules(source)) {
    const auto x = values_of(get_matrix(source, module)), y = values_of(get_matrix(result, module));
    for (size_t i = 0; i < x.size(); ++i) {
      error += (x[i] - y[i]) * (x[i] - y[i]);
      size += x[i] * x[i];
    }
  }
  return std::sqrt(error / size);
}

// ---- What comes out ----------------------------------------------------------------------------

TEST(Convert, Mxfp4ExpertsKeepEveryValue) {
  TempDirectory directory;
  const ConvertReport report =
      convert_checkpoint(kData / "k3-tiny-mxfp4", directory / "out", with_threads(2));
  const Checkpoint source(kData / "k3-tiny-mxfp4"), twin(kData / "k3-tiny-bf16");
  const Checkpoint result(directory / "out");
  const auto modules = expert_modules(source);
  ASSERT_EQ(modules.size(), 8u * 8 * 3);
  for (const auto& module : modules) {
    const MatrixView converted = get_matrix(result, module);
    ASSERT_EQ(converted.format, WeightFormat::kNvfp4);
    EXPECT_EQ(differing(converted, get_matrix(source, module)), 0) << module;
    EXPECT_EQ(differing(converted, get_matrix(twin, module)), 0) << module;
  }
  CastCounts counts;
  for (const auto& matrix : report.matrices) counts += matrix.cast;
  EXPECT_EQ(counts.total(), 192 * 64 * 32 / 16);
  EXPECT_EQ(counts.exact, counts.total());

  // Teeth: one flipped nibble, one flipped scale.
  MatrixView spoiled = get_matrix(result, modules[5]);
  std::vector<uint8_t> bytes(value_bytes(spoiled));
  std::memcpy(bytes.data(), spoiled.values, bytes.size());
  bytes[100] ^= 0x10;
  spoiled.values = bytes.data();
  EXPECT_EQ(differing(spoiled, get_matrix(source, modules[5])), 1);
}

// The quantiser's own bytes, with the global scale of gate and up together.
TEST(Convert, Bf16ExpertsAreQuantisedAsTheQuantiserDoes) {
  TempDirectory directory;
  for (const auto choice : {ScaleChoice::kMax, ScaleChoice::kMse, ScaleChoice::kFourOverSix}) {
    ConvertOptions options = with_threads(2);
    options.scale = choice;
    const std::filesystem::path out = directory / name_of(choice);
    convert_checkpoint(kData / "kimi-linear-tiny", out, options);
    const Checkpoint source(kData / "kimi-linear-tiny"), result(out);
    int shared_matters = 0;
    for (int expert = 0; expert < 8; ++expert) {
      const std::string base = "model.layers.2.block_sparse_moe.experts." + std::to_string(expert);
      const auto amax = [&](const char* name) {
        const MatrixView m = get_matrix(source, base + name);
        return max_magnitude(static_cast<const uint16_t*>(m.values), m.rows * m.cols);
      };
      const float together = std::max(amax(".w1"), amax(".w3"));
      shared_matters += amax(".w1") != amax(".w3");
      for (const char* name : {".w1", ".w2", ".w3"}) {
        const MatrixView from = get_matrix(source, base + name),
                         to = get_matrix(result, base + name);
        const float global_scale =
            nvfp4_global_scale(std::string(name) == ".w2" ? amax(".w2") : together, choice);
        EXPECT_EQ(to.global_scale, global_scale);
        std::vector<uint8_t> codes(value_bytes(to)), scales(scale_bytes(to));
        quantize_nvfp4(static_cast<const uint16_t*>(from.values), from.rows, from.cols,
                       global_scale, choice, codes.data(), scales.data());
        EXPECT_EQ(std::memcmp(codes.data(), to.values, codes.size()), 0);
        EXPECT_EQ(std::memcmp(scales.data(), to.scales, scales.size()), 0);
      }
    }
    EXPECT_GT(shared_matters, 4);  // teeth: an own scale for each would be another number
  }
}

TEST(Convert, ScaleSearchLowersTheError) {
  TempDirectory directory;
  double error[3] = {};
  for (const auto choice : {ScaleChoice::kMax, ScaleChoice::kMse, ScaleChoice::kFourOverSix}) {
    ConvertOptions options = with_threads(1);
    options.scale = choice;
    convert_checkpoint(kData / "kimi-linear-tiny", directory / name_of(choice), options);
    error[static_cast<int>(choice)] = relative_error(Checkpoint(kData / "kimi-linear-tiny"),
                                                     Checkpoint(directory / name_of(choice)));
  }
  EXPECT_LT(error[0], 0.11);
  EXPECT_LT(error[1], error[0] * 0.93);
  EXPECT_LT(error[2], error[0] * 0.97);
}

TEST(Convert, AttentionBecomesBlockFp8UnlessOnlyExpertsAreAskedFor) {
  TempDirectory directory;
  convert_checkpoint(kData / "k3-tiny-bf16", directory / "all", with_threads(2));
  ConvertOptions experts_only = with_threads(2);
  experts_only.recipe.experts_only = true;
  convert_checkpoint(kData / "k3-tiny-bf16", directory / "experts", experts_only);
  const Checkpoint source(kData / "k3-tiny-bf16"), all(directory / "all"),
      experts(directory / "experts");
  int fp8 = 0;
  for (const StoredTensor* tensor : source.tensors()) {
    const std::string name(tensor->name);
    if (name.find(".experts.") != std::string::npos) continue;
    const StoredTensor& kept = experts.get(name);
    EXPECT_EQ(kept.dtype, tensor->dtype) << name;
    EXPECT_EQ(kept.shape, tensor->shape) << name;
    EXPECT_TRUE(std::ranges::equal(kept.bytes, tensor->bytes)) << name;
    const StoredTensor& other = all.get(name);
    if (other.dtype != DType::kF8E4M3) {
      EXPECT_TRUE(std::ranges::equal(other.bytes, tensor->bytes)) << name;
      continue;
    }
    ++fp8;
    const int64_t rows = tensor->shape[0], cols = tensor->shape[1];
    std::vector<uint8_t> codes(static_cast<size_t>(rows * cols));
    std::vector<float> scales(static_cast<size_t>(fp8_tiles(rows) * fp8_tiles(cols)));
    quantize_fp8_block(tensor->as<uint16_t>(), rows, cols, codes.data(), scales.data());
    EXPECT_EQ(std::memcmp(codes.data(), other.bytes.data(), codes.size()), 0) << name;
    const StoredTensor& scale = all.get(name + "_scale");
    EXPECT_EQ(scale.shape, (std::vector<int64_t>{fp8_tiles(rows), 1, fp8_tiles(cols), 1}));
    EXPECT_EQ(std::memcmp(scales.data(), scale.bytes.data(), scale.bytes.size()), 0) << name;
  }
  EXPECT_EQ(fp8, 6 * 8 + 3 * 6);  // six KDA layers, three MLA layers
}

// "layers.1" -> names without layer and expert numbers, with dtype and rank.
std::set<std::string> kinds_of(const Checkpoint& checkpoint, const std::string& layer) {
  std::set<std::string> kinds;
  for (const StoredTensor* tensor : checkpoint.tensors()) {
    std::string name(tensor->name);
    const size_t at = name.find(layer + ".");
    if (at == std::string::npos) continue;
    name = name.substr(at + layer.size());
    if (const size_t expert = name.find(".experts."); expert != std::string::npos)
      name.erase(expert + 9, name.find('.', expert + 9) - expert - 9);
    kinds.insert(name + " " + name_of(tensor->dtype) + " " + std::to_string(tensor->shape.size()) +
                 "-D");
  }
  return kinds;
}

TEST(Convert, NamesAndDtypesAreThoseOfTheFixtureInModeloptsLayout) {
  TempDirectory directory;
  convert_checkpoint(kData / "k3-tiny-mxfp4", directory / "out", with_threads(2));
  const Checkpoint golden(kData / "k3-tiny-nvfp4"), ours(directory / "out");
  for (const char* layer : {"layers.0", "layers.1", "layers.3"}) {
    EXPECT_FALSE(kinds_of(golden, layer).empty());
    EXPECT_EQ(kinds_of(ours, layer), kinds_of(golden, layer));
  }
}

// B96: whatever is written is accepted, and the model computes the same.
TEST(Convert, TheResultLoadsAndComputesTheSame) {
  TempDirectory directory;
  ConvertOptions options = with_threads(2);
  options.recipe.experts_only = true;
  convert_checkpoint(kData / "k3-tiny-mxfp4", directory / "out", options);
  EXPECT_TRUE(inspect_checkpoint(directory / "out").problems.empty());
  const auto device = open_device("ref");
  const auto before = Model::open(kData / "k3-tiny-mxfp4", *device);
  const auto after = Model::open(directory / "out", *device);
  const std::vector<int32_t> ids = {5, 6, 7, 300, 9};
  Sequence a = before->new_sequence(8), b = after->new_sequence(8);
  const auto x = before->forward(ids, a, LogitRows::kAll);
  const auto y = after->forward(ids, b, LogitRows::kAll);
  ASSERT_EQ(x.size(), y.size());
  EXPECT_TRUE(std::ranges::equal(x, y));
}

TEST(Convert, InspectFindsNothingWrongInAnyResult) {
  TempDirectory directory;
  for (const std::string name : {"k3-tiny-bf16", "k3-tiny-mxfp4", "kimi-linear-tiny"}) {
    convert_checkpoint(kData / name, directory / name, with_threads(2));
    const Inspection inspection = inspect_checkpoint(directory / name);
    for (const Error& problem : inspection.problems) ADD_FAILURE() << problem.what();
    EXPECT_EQ(inspection.gate_up_differing, 0);
    EXPECT_GT(inspection.gate_up_pairs, 0);
    EXPECT_EQ(inspection.quant_algorithm, "MIXED_PRECISION");
  }
}

// ---- Truncation --------------------------------------------------------------------------------

TEST(Convert, KeepsTheFirstLayersAndExperts) {
  TempDirectory directory;
  ConvertOptions options = with_threads(2);
  options.recipe.num_layers = 5;
  options.recipe.keep_experts = 4;
  for (const std::string name : {"k3-tiny-bf16", "k3-tiny-mxfp4"}) {
    convert_checkpoint(kData / name, directory / name, options);
    const Inspection inspection = inspect_checkpoint(directory / name);
    for (const Error& problem : inspection.problems) ADD_FAILURE() << problem.what();
    const Checkpoint source(kData / name), result(directory / name);
    EXPECT_EQ(expert_modules(result).size(), 4u * 4 * 3);
    const std::string moe = "language_model.model.layers.4.block_sparse_moe.gate.";
    for (const std::string part : {"weight", "e_score_correction_bias"}) {
      const StoredTensor& before = source.get(moe + part);
      const StoredTensor& after = result.get(moe + part);
      EXPECT_EQ(after.shape[0], 4);
      EXPECT_EQ(after.bytes.size() * 2, before.bytes.size());
      EXPECT_TRUE(std::ranges::equal(after.bytes, before.bytes.first(after.bytes.size())));
    }
    EXPECT_EQ(result.find("language_model.model.layers.5.input_layernorm.weight"), nullptr);
    const auto device = open_device("ref");
    const auto model = Model::open(directory / name, *device);
    EXPECT_EQ(model->config().num_layers, 5);
    Sequence sequence = model->new_sequence(4);
    const std::vector<int32_t> ids = {1, 2, 3};
    for (const float logit : model->forward(ids, sequence)) ASSERT_TRUE(std::isfinite(logit));
  }
}

TEST(Convert, RefusesToKeepMoreThanThereIsOrFewerThanAreChosen) {
  TempDirectory directory;
  const auto message = [&](std::optional<int> layers, std::optional<int> experts) {
    ConvertOptions options;
    options.recipe.num_layers = layers;
    options.recipe.keep_experts = experts;
    return message_of(
        [&] { convert_checkpoint(kData / "k3-tiny-bf16", directory / "out", options); });
  };
  EXPECT_EQ(message(10, {}), "--num-layers: is 10; the checkpoint has 9 layers");
  EXPECT_EQ(message(0, {}), "--num-layers: is 0; the checkpoint has 9 layers");
  EXPECT_EQ(message({}, 9), "--keep-experts: is 9; the checkpoint has 8 experts");
  EXPECT_EQ(message({}, 2), "--keep-experts: is 2, but a token is sent to 3 experts");
  EXPECT_NE(message(1, {}).find("has no routed experts"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// ---- Files -------------------------------------------------------------------------------------

TEST(Convert, TheSameBytesEveryTimeForAnyNumberOfThreads) {
  TempDirectory directory;
  for (const std::string name : {"k3-tiny-bf16", "k3-tiny-mxfp4"}) {
    ConvertOptions options;
    options.max_shard_bytes = 300'000;
    std::map<std::string, std::string> first;
    for (const int threads : {1, 2, 3, 1}) {
      options.threads = threads;
      const ConvertReport report = convert_checkpoint(kData / name, directory / "out", options);
      EXPECT_GT(report.shards, 3);
      const auto bytes = bytes_of_directory(directory / "out");
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes == first, true) << threads;
      EXPECT_EQ(Checkpoint(directory / "out").files().size(), static_cast<size_t>(report.shards));
      std::filesystem::remove_all(directory / "out");
    }
    for (const char* file : {"config.json", "hf_quant_config.json", "generation_config.json",
                             "model.safetensors.index.json"})
      EXPECT_EQ(first.count(file), 1u) << file;
    EXPECT_EQ(first.count("expected.safetensors"), 0u);
  }
}

TEST(Convert, LeavesAFullDirectoryAlone) {
  TempDirectory directory;
  std::filesystem::create_directory(directory / "out");
  write_text(directory / "out/notes.txt", "mine");
  EXPECT_NE(message_of([&] {
              convert_checkpoint(kData / "k3-tiny-bf16", directory / "out", {});
            }).find("exists and is not an empty directory"),
            std::string::npos);
  EXPECT_EQ(read_text(directory / "out/notes.txt"), "mine");
  std::filesystem::remove(directory / "out/notes.txt");
  convert_checkpoint(kData / "k3-tiny-bf16", directory / "out", {});  // empty: fine
  EXPECT_FALSE(std::filesystem::exists(directory / "out.partial"));
}

// OUT.partial may be somebody's download, even the input itself.
TEST(Convert, ClearsOnlyItsOwnPartialDirectory) {
  TempDirectory directory;
  const std::filesystem::path in = directory / "model.partial";
  std::filesystem::copy(kData / "k3-tiny-bf16", in);
  const auto before = bytes_of_directory(in);
  EXPECT_NE(message_of([&] {
              convert_checkpoint(in, directory / "model", with_threads(1));
            }).find("model.partial: is in the way and not from a conversion"),
            std::string::npos);
  EXPECT_EQ(bytes_of_directory(in), before);
  EXPECT_FALSE(std::filesystem::exists(directory / "model"));

  std::filesystem::create_directory(directory / "empty.partial");
  convert_checkpoint(kData / "k3-tiny-bf16", directory / "empty", with_threads(1));
  EXPECT_EQ(bytes_of_directory(directory / "empty").count(".halfbyte-convert.lock"), 0u);
}

TEST(Convert, RefusesAnOutputThatNoRenameCanMake) {
  TempDirectory directory;
  std::filesystem::create_directory(directory / "real");
  std::filesystem::create_directory_symlink(directory / "real", directory / "link");
  const auto message = [&](const std::filesystem::path& out) {
    return message_of([&] { convert_checkpoint(kData / "k3-tiny-bf16", out, with_threads(1)); });
  };
  EXPECT_NE(message(directory / "link").find("exists and is not an empty directory"),
            std::string::npos);
  for (const char* out : {"", ".", "..", "/"})
    EXPECT_NE(message(out).find("is no name for a new directory"), std::string::npos) << out;
  EXPECT_EQ(message(directory / "sub/."), "");
  EXPECT_TRUE(std::filesystem::exists(directory / "sub/config.json"));
}

// ---- Faulty input ------------------------------------------------------------------------------

class ConvertFaults : public ::testing::Test {
 protected:
  // A copy of a golden model whose tensor `name` is changed.
  template <class F>
  std::string convert_spoiled(const std::string& model, const std::string& name, F&& spoil) {
    const std::filesystem::path copy = directory_ / "in";
    std::filesystem::remove_all(copy);
    std::filesystem::copy(kData / model, copy);
    const Checkpoint checkpoint(copy);
    const StoredTensor& tensor = checkpoint.get(name);
    std::vector<char> bytes(tensor.bytes.size());
    std::memcpy(bytes.data(), tensor.bytes.data(), bytes.size());
    spoil(bytes);
    std::fstream file(tensor.file->path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(reinterpret_cast<const char*>(tensor.bytes.data()) -
               reinterpret_cast<const char*>(tensor.file->bytes().data()));
    file.write(bytes.data(), static_cast<long>(bytes.size()));
    file.close();
    const std::string message =
        message_of([&] { convert_checkpoint(copy, directory_ / "out", with_threads(2)); });
    EXPECT_FALSE(std::filesystem::exists(directory_ / "out"));
    EXPECT_FALSE(std::filesystem::exists(directory_ / "out.partial"));
    return message;
  }
  TempDirectory directory_;
};

TEST_F(ConvertFaults, NonFiniteWeightsAreNamed) {
  const std::string expert = "language_model.model.layers.3.block_sparse_moe.experts.7.w2.weight";
  const auto put = [](int64_t at, uint16_t bits) {
    return [at, bits](std::vector<char>& bytes) { std::memcpy(bytes.data() + at * 2, &bits, 2); };
  };
  std::string message = convert_spoiled("k3-tiny-bf16", expert, put(5 * 64 + 9, 0x7FC0));
  EXPECT_NE(message.find("tensor " + expert + ": the value [5, 9] is nan"), std::string::npos)
      << message;
  const std::string attention = "language_model.model.layers.0.self_attn.q_proj.weight";
  message = convert_spoiled("k3-tiny-bf16", attention, put(127 * 64 + 63, 0xFF80));
  EXPECT_NE(message.find("tensor " + attention + ": the value [127, 63] is -inf"),
            std::string::npos)
      << message;
}

TEST_F(ConvertFaults, NanScalesAreNamed) {
  const std::string scale =
      "language_model.model.layers.2.block_sparse_moe.experts.1.w3.weight_scale";
  const std::string message = convert_spoiled("k3-tiny-mxfp4", scale, [](std::vector<char>& bytes) {
    bytes[17] = static_cast<char>(0xFF);
  });
  EXPECT_NE(message.find("tensor " + scale + ": the scale [17, 0] is NaN"), std::string::npos)
      << message;
}

// A block far below the others cannot be kept: it is counted, never called exact (B33).
TEST(Convert, LossyBlocksAreCountedByTensor) {
  TempDirectory directory;
  const std::filesystem::path copy = directory / "in";
  std::filesystem::copy(kData / "k3-tiny-mxfp4", copy);
  const std::string module = "language_model.model.layers.2.block_sparse_moe.experts.0.w1";
  {
    const Checkpoint checkpoint(copy);
    const StoredTensor& scale = checkpoint.get(module + ".weight_scale");
    std::fstream file(scale.file->path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(reinterpret_cast<const char*>(scale.bytes.data()) -
               reinterpret_cast<const char*>(scale.file->bytes().data()));
    file.put(static_cast<char>(scale.as<uint8_t>()[0] - 30));
  }
  const ConvertReport report = convert_checkpoint(copy, directory / "out", with_threads(2));
  for (const auto& matrix : report.matrices) {
    if (matrix.from != WeightFormat::kMxfp4) continue;
    EXPECT_EQ(matrix.cast.lossy, matrix.module == module ? 2 : 0) << matrix.module;
    EXPECT_EQ(matrix.cast.total(), matrix.elements / 16);
  }
  EXPECT_NE(report_table(report).find("1 matrices hold blocks whose values changed"),
            std::string::npos);
  const std::string json = report_json(report, {});
  EXPECT_NE(json.find(R"("mxfp4_blocks_of_16":{"exact":24574,"recoded":0,"lossy":2})"),
            std::string::npos);
}

// Crafted directories: a config for two layers of two experts, and the given tensors.
std::string convert_crafted(const std::vector<CraftedTensor>& tensors) {
  TempDirectory directory;
  std::filesystem::create_directory(directory / "in");
  write_text(directory / "in/config.json",
             R"({"num_hidden_layers": 2, "num_experts": 2, "num_experts_per_token": 1})");
  write_safetensors(directory / "in/model.safetensors", tensors);
  const std::string message =
      message_of([&] { convert_checkpoint(directory / "in", directory / "out", {}); });
  EXPECT_EQ(message.empty(), std::filesystem::exists(directory / "out"));
  EXPECT_FALSE(std::filesystem::exists(directory / "out.partial"));
  return message;
}

std::vector<CraftedTensor> two_experts() {
  std::vector<CraftedTensor> tensors;
  for (const char* expert : {"0", "1"})
    for (const char* name : {"w1", "w2", "w3"})
      tensors.push_back(
          {std::string("model.layers.1.mlp.experts.") + expert + "." + name + ".weight",
           DType::kBf16,
           {std::string(name) == "w2" ? 16 : 32, std::string(name) == "w2" ? 32 : 16},
           ""});
  return tensors;
}

TEST(Convert, LeavesNoFolderThatItMadeAndDidNotFill) {
  TempDirectory directory;
  std::filesystem::create_directory(directory / "old");
  ConvertOptions options = with_threads(1);
  options.accept = [&](const Checkpoint& source, const std::string& config_json) {
    EXPECT_EQ(source.directory(), kData / "kimi-linear-tiny");
    EXPECT_NE(config_json.find("modelopt_mixed"), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(directory / "old/new"));
    throw Error(ErrorKind::kInput, "accept", "no");
  };
  const auto message = [&](const std::filesystem::path& in) {
    return message_of([&] { convert_checkpoint(in, directory / "old/new/newer/out", options); });
  };
  EXPECT_EQ(message(kData / "kimi-linear-tiny"), "accept: no");
  EXPECT_TRUE(std::filesystem::is_empty(directory / "old"));

  // An error after they were made.
  options.accept = nullptr;
  std::filesystem::create_directories(directory / "in");
  for (const char* file : {"config.json", "model.safetensors"})
    std::filesystem::copy(kData / "kimi-linear-tiny" / file, directory / "in" / file);
  patch_tensor(directory / "in", "model.layers.0.self_attn.q_proj.weight",
               [](std::span<uint8_t> bytes) { bytes[0] = bytes[1] = 0xFF; });
  EXPECT_NE(message(directory / "in").find("the value [0, 0] is"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(directory / "old"));
  EXPECT_EQ(message(kData / "kimi-linear-tiny"), "");
  EXPECT_TRUE(std::filesystem::exists(directory / "old/new/newer/out/config.json"));
}

TEST(ConvertCrafted, WhatIsNoExpertCheckpointIsRefusedByName) {
  EXPECT_EQ(convert_crafted(two_experts()), "");  // all zeros: legal
  const auto expect = [](std::vector<CraftedTensor> tensors, const std::string& part) {
    const std::string message = convert_crafted(tensors);
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nexpected: " << part;
  };
  auto tensors = two_experts();
  tensors.pop_back();
  expect(tensors, "model.layers.1.mlp.experts.1 has no w3");
  tensors = two_experts();
  tensors.resize(3);
  expect(tensors, "model.layers.1.mlp.experts has 1 of the experts 0..1");
  tensors = two_experts();
  tensors[0].shape = {48, 16};
  expect(tensors, "experts.0.w3.weight: is a matrix of [32, 16], expected [48, 16]");
  tensors = two_experts();
  for (auto& tensor : tensors) tensor.shape = {24, 24};
  expect(tensors, "has 24 columns, expected a multiple of 16");
  tensors = two_experts();
  tensors.push_back({"model.layers.1.mlp.experts.1.w1.input_scale", DType::kBf16, {}, ""});
  expect(tensors, "experts.1.w1.input_scale: is no part of an expert");
  tensors = two_experts();
  tensors.push_back({"model.layers.1.mlp.experts.1.w4.weight", DType::kBf16, {16, 16}, ""});
  expect(tensors, "is of an unknown projection");
  tensors = two_experts();
  tensors.push_back({"model.layers.1.mlp.experts.2.w1.weight", DType::kBf16, {16, 16}, ""});
  expect(tensors, "is of expert 2, but num_experts is 2");
  tensors = two_experts();
  for (size_t i = 3; i < 6; ++i) tensors[i].name.replace(tensors[i].name.rfind(".1."), 3, ".00.");
  expect(tensors, "is of expert \"00\", expected a number without leading zeros");
  tensors = two_experts();
  tensors.push_back({"model.layers.0.mlp.up_proj.weight_packed", DType::kU8, {16, 16}, ""});
  expect(tensors, "up_proj.weight_packed: is U8, quantised already and no routed expert");
  expect({{"model.norm.weight", DType::kBf16, {16}, ""}}, "has no routed experts");
}

}  // namespace
}  // namespace halfbyte

#include "support/sparse_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "formats/safetensors.h"
#include "model/roster.h"
#include "support/craft.h"

namespace halfbyte {
namespace {

void append_tensors(const RosterEntry& entry, std::vector<TensorSpec>& tensors) {
  switch (entry.role) {
    case TensorRole::kExpert:
      tensors.push_back({entry.name + ".weight_packed", DType::kU8, {entry.rows, entry.cols / 2}});
      tensors.push_back({entry.name + ".weight_scale", DType::kU8, {entry.rows, entry.cols / 32}});
      break;
    case TensorRole::kMatrix:
      tensors.push_back({entry.name + ".weight", DType::kBf16, {entry.rows, entry.cols}});
      break;
    case TensorRole::kEmbedding:
      tensors.push_back({entry.name, DType::kBf16, {entry.rows, entry.cols}});
      break;
    case TensorRole::kVector:
      if (entry.cols == 1)
        tensors.push_back({entry.name, DType::kBf16, {entry.rows}});
      else
        tensors.push_back({entry.name, DType::kBf16, {entry.rows, 1, entry.cols}});
      break;
    case TensorRole::kLogDecay:
      tensors.push_back({entry.name, DType::kF32, {128}});
      break;
  }
}

void write_shard(const std::filesystem::path& path, std::vector<TensorSpec> tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return dtype_bytes(a.dtype) > dtype_bytes(b.dtype);
  });
  std::string header("{");
  int64_t end = 0;
  for (const TensorSpec& tensor : tensors) {
    int64_t bytes = dtype_bytes(tensor.dtype);
    for (const int64_t extent : tensor.shape) bytes *= extent;
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          header.size() > 1 ? "," : "", tensor.name, name_of(tensor.dtype),
                          fmt::join(tensor.shape, ","), end, end + bytes);
    end += bytes;
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  write_bytes(path, safetensors_bytes(header, 0));
  std::filesystem::resize_file(path, 8 + header.size() + static_cast<uintmax_t>(end));
}

}  // namespace

std::string k3_config_json(int layers, int experts) {
  auto config =
      nlohmann::ordered_json::parse(read_text(HALFBYTE_TEST_DATA "/k3-tiny-mxfp4/config.json"));
  auto& text = config["text_config"];
  text["vocab_size"] = 163840;
  text["hidden_size"] = 7168;
  text["num_hidden_layers"] = layers;
  text["intermediate_size"] = 33792;
  text["attn_res_block_size"] = 12;
  text["num_attention_heads"] = text["num_key_value_heads"] = 96;
  text["q_lora_rank"] = 1536;
  text["kv_lora_rank"] = 512;
  text["qk_nope_head_dim"] = text["v_head_dim"] = 128;
  text["qk_rope_head_dim"] = 64;
  auto& kda = text["linear_attn_config"];
  kda["num_heads"] = 96;
  kda["head_dim"] = 128;
  kda["kda_layers"] = nlohmann::json::array();
  kda["full_attn_layers"] = nlohmann::json::array();
  for (int i = 1; i <= layers; ++i)
    kda[i % 4 == 0 || i == 93 ? "full_attn_layers" : "kda_layers"].push_back(i);
  text["num_experts"] = experts;
  text["num_experts_per_token"] = 16;
  text["num_shared_experts"] = 2;
  text["moe_intermediate_size"] = 3072;
  text["routed_expert_hidden_size"] = 3584;
  for (auto* object : {&config, &text}) {
    (*object)["bos_token_id"] = 163584;
    (*object)["eos_token_id"] = 163586;
    (*object)["pad_token_id"] = 163839;
  }
  return config.dump(1);
}

int64_t write_sparse_checkpoint(const std::filesystem::path& directory,
                                const std::string& config_json) {
  write_bytes(directory / "config.json", config_json);
  const ModelConfig config =
      parse_model_config(JsonDocument::from_text(config_json, "config.json").root());
  std::map<int, std::vector<TensorSpec>> shards;  // by layer; the last holds the rest
  for (const RosterEntry& entry : make_roster(config, "language_model.")) {
    int layer = config.num_layers;
    std::sscanf(entry.name.c_str(), "language_model.model.layers.%d.", &layer);
    append_tensors(entry, shards[layer]);
  }
  std::string index = R"({"metadata": {}, "weight_map": {)";
  int64_t count = 0;
  for (const auto& [layer, tensors] : shards) {
    const std::string name =
        fmt::format("model-{:05}-of-{:06}.safetensors", layer + 1, shards.size());
    write_shard(directory / name, tensors);
    for (const TensorSpec& tensor : tensors)
      index += fmt::format("{}\n\"{}\": \"{}\"", count++ == 0 ? "" : ",", tensor.name, name);
  }
  write_bytes(directory / "model.safetensors.index.json", index + "}}");
  return count;
}

}  // namespace halfbyte

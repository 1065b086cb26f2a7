#include "support/tiny_model.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <stdexcept>

#include "base/file.h"
#include "base/json.h"
#include "formats/bf16.h"
#include "formats/checkpoint.h"
#include "model/roster.h"

namespace halfbyte {
namespace fs = std::filesystem;
namespace {

bool ends_with(const std::string& name, std::string_view end) { return name.ends_with(end); }

// One value of a vector, by the vector's name.
float vector_value(const std::string& name, std::mt19937& generator) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0, 1);
  if (ends_with(name, "_conv1d.weight")) return 0.7f * normal(generator);
  if (ends_with(name, "dt_bias")) return uniform(generator) - 0.5f;
  if (ends_with(name, "e_score_correction_bias")) return 0.1f * normal(generator);
  if (ends_with(name, "_proj.weight")) return 0.1f * normal(generator);  // residual scores
  return 1 + 0.05f * normal(generator);                                  // gains
}

// Of a matrix, times sqrt(columns), as measured in the golden models: gates and ups so large that
// both tanh of SiTU bend, what is added to the residual small.
float matrix_gain(const std::string& name) {
  const std::pair<std::string_view, float> gains[] = {{"routed_expert_up_proj", 0.28f},
                                                      {"gate_proj", 2},
                                                      {".w1", 2},
                                                      {"up_proj", 12},
                                                      {".w3", 12},
                                                      {"routed_expert_down_proj", 1},
                                                      {"down_proj", 0.035f},
                                                      {".w2", 0.035f},
                                                      {"lm_head", 2.5f},
                                                      {"f_b_proj", 0.5f},
                                                      {"o_proj", 0.35f},
                                                      {"block_sparse_moe.gate", 1.35f},
                                                      {"kv_a_proj_with_mqa", 0.6f},
                                                      {"q_a_proj", 0.1f}};
  for (const auto& [end, gain] : gains)
    if (name.ends_with(end)) return gain;
  return 1;
}

void append_bf16(float value, std::string& bytes) {
  const uint16_t bits = float_to_bf16(value);
  bytes.append(reinterpret_cast<const char*>(&bits), 2);
}

}  // namespace

nlohmann::ordered_json golden_config(const std::string& folder) {
  return nlohmann::ordered_json::parse(
      read_text(fs::path(HALFBYTE_TEST_DATA) / folder / "config.json"));
}

void write_tiny_model(const fs::path& directory, const nlohmann::ordered_json& config,
                      uint32_t seed) {
  fs::create_directories(directory);
  write_text(directory / "config.json", config.dump(1));
  const ModelConfig parsed = read_model_config(directory);
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<TensorSpec> specs;
  std::string data;
  // F32 first: safetensors wants no holes, and readers like alignment.
  for (const bool f32 : {true, false})
    for (const RosterEntry& entry : make_roster(parsed, parsed.nested ? "language_model." : "")) {
      const bool is_f32 = entry.role == TensorRole::kLogDecay;
      if (is_f32 != f32) continue;
      switch (entry.role) {
        case TensorRole::kLogDecay: {
          // One value a head, zeros up to the head's width.
          const int64_t width = std::max<int64_t>(entry.rows, parsed.kda.head_dim);
          std::uniform_real_distribution<float> rate(0, std::log(16.0f));
          std::vector<float> values(static_cast<size_t>(width));
          for (int64_t h = 0; h < entry.rows; ++h) values[h] = rate(generator);
          data.append(reinterpret_cast<const char*>(values.data()), values.size() * 4);
          specs.push_back({entry.name, DType::kF32, {width}});
          break;
        }
        case TensorRole::kVector:
          for (int64_t i = 0; i < entry.rows * entry.cols; ++i)
            append_bf16(vector_value(entry.name, generator), data);
          // Taps of a convolution are stored (channels, 1, width).
          specs.push_back({entry.name, DType::kBf16,
                           entry.cols > 1 ? std::vector<int64_t>{entry.rows, 1, entry.cols}
                                          : std::vector<int64_t>{entry.rows}});
          break;
        case TensorRole::kEmbedding:
          for (int64_t i = 0; i < entry.rows * entry.cols; ++i)
            append_bf16(2 * normal(generator), data);
          specs.push_back({entry.name, DType::kBf16, {entry.rows, entry.cols}});
          break;
        case TensorRole::kMatrix:
        case TensorRole::kExpert: {
          const float gain = matrix_gain(entry.name) / std::sqrt(static_cast<float>(entry.cols));
          for (int64_t i = 0; i < entry.rows * entry.cols; ++i)
            append_bf16(gain * normal(generator), data);
          specs.push_back({entry.name + ".weight", DType::kBf16, {entry.rows, entry.cols}});
          break;
        }
      }
    }
  SafetensorsWriter writer(directory / "model.safetensors", specs);
  writer.write(data.data(), data.size());
  writer.commit();
}

void copy_checkpoint(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  for (const fs::directory_entry& file : fs::directory_iterator(from)) {
    const std::string name = file.path().filename().string();
    const bool expected = name.starts_with("expected") || name.starts_with("trace");
    if (!expected && name != "README.md") fs::copy(file.path(), to / name);
  }
}

void drop_unread_tensors(const fs::path& directory) {
  std::vector<TensorSpec> specs;
  std::string data;
  {
    const ModelConfig config = read_model_config(directory);
    const Checkpoint checkpoint(directory);
    std::set<std::string_view> unread;
    const auto roster = make_roster(config, name_prefix(checkpoint));
    for (const UnreadTensor& tensor : unread_tensors(checkpoint, config, roster))
      unread.insert(tensor.tensor->name);
    for (const StoredTensor* tensor : checkpoint.tensors()) {
      if (unread.count(tensor->name) > 0) continue;
      specs.push_back({std::string(tensor->name), tensor->dtype, tensor->shape});
      data.append(reinterpret_cast<const char*>(tensor->bytes.data()), tensor->bytes.size());
    }
  }
  SafetensorsWriter writer(directory / "model.safetensors", specs);
  writer.write(data.data(), data.size());
  writer.commit();
}

void patch_tensor(const fs::path& directory, const std::string& name,
                  const std::function<void(std::span<uint8_t>)>& change) {
  fs::path path;
  size_t offset = 0;
  std::vector<uint8_t> bytes;
  {
    const Checkpoint checkpoint(directory);
    const StoredTensor* tensor = checkpoint.find(name);
    if (tensor == nullptr) throw std::out_of_range(name);
    path = tensor->file->path();
    offset = static_cast<size_t>(tensor->bytes.data() - tensor->file->bytes().data());
    const auto* begin = reinterpret_cast<const uint8_t*>(tensor->bytes.data());
    bytes.assign(begin, begin + tensor->bytes.size());
  }
  change(bytes);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

}  // namespace halfbyte

// A copy of a golden model in one file, to be changed before it is written.
#pragma once

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/file.h"
#include "formats/checkpoint.h"
#include "model/inspect.h"
#include "support/craft.h"
#include "support/temp_directory.h"

namespace halfbyte {

class EditedModel {
 public:
  explicit EditedModel(const std::string& name)
      : config(nlohmann::ordered_json::parse(
            read_text(HALFBYTE_TEST_DATA "/" + name + "/config.json"))) {
    const Checkpoint checkpoint(HALFBYTE_TEST_DATA "/" + name);
    for (const StoredTensor* tensor : checkpoint.tensors())
      tensors.push_back({std::string(tensor->name), tensor->dtype, tensor->shape,
                         std::string(tensor->as<char>(), tensor->bytes.size())});
  }

  CraftedTensor& at(const std::string& name) {
    for (CraftedTensor& tensor : tensors)
      if (tensor.name == name) return tensor;
    throw std::out_of_range(name);
  }
  void erase(const std::string& name) {
    std::erase_if(tensors, [&](const CraftedTensor& tensor) { return tensor.name == name; });
  }
  template <class T>
  void set(const std::string& name, size_t index, T value) {
    std::memcpy(at(name).bytes.data() + index * sizeof(T), &value, sizeof(T));
  }

  // The directory, with config.json and model.safetensors.
  const std::filesystem::path& write() {
    std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
      return dtype_bytes(a.dtype) > dtype_bytes(b.dtype);
    });
    write_text(directory / "config.json", config.dump());
    write_safetensors(directory / "model.safetensors", tensors);
    return directory.path();
  }

  Inspection inspect() { return inspect_checkpoint(write()); }
  // The reasons, without "DIR/", one a line.
  std::string reasons() {
    std::string all;
    for (const Error& problem : inspect().problems) {
      std::string text = problem.what();
      const std::string prefix = directory.path().string() + "/";
      if (text.rfind(prefix, 0) == 0) text.erase(0, prefix.size());
      all += (all.empty() ? "" : "\n") + text;
    }
    return all;
  }

  TempDirectory directory;
  nlohmann::ordered_json config;
  std::vector<CraftedTensor> tensors;
};

}  // namespace halfbyte

// A checkpoint directory: its config files and its tensors over all shards, with or without an
// index.
//
// Shards: `model.safetensors.index.json` if it is there, else every *.safetensors of the directory
// (one name in two files is an error). A checkpoint answers by exact name; it knows nothing of
// models.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"

namespace halfbyte {

class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& directory);

  const StoredTensor* find(std::string_view name) const;
  const StoredTensor& get(
      std::string_view name) const;  // throws Error{kInput}: "DIR: tensor NAME is missing"
  const std::vector<const StoredTensor*>& tensors() const;  // sorted by name
  const std::filesystem::path& directory() const { return directory_; }

 private:
  std::filesystem::path directory_;
};

}  // namespace halfbyte

// A checkpoint directory: its tensors over all shards, with or without an index.
//
// Shards: what `model.safetensors.index.json` names if it is there; else `model.safetensors`; else
// every *.safetensors of the directory. Index and shards must agree on every name; without an index
// a name may be in one file only, and of files called X-00001-of-00005 none may be missing.
// A checkpoint answers by exact name; it knows nothing of models.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"
#include "halfbyte/error.h"

namespace halfbyte {

void check_directory(const std::filesystem::path& checkpoint);  // throws Error{kInput}

class Checkpoint {
 public:
  // Throws the first Error. With `problems` it throws only if there is nothing to look at, appends
  // every error there, and holds what could be read.
  explicit Checkpoint(const std::filesystem::path& directory,
                      std::vector<Error>* problems = nullptr);

  const StoredTensor* find(std::string_view name) const;
  const StoredTensor& get(
      std::string_view name) const;  // throws Error{kInput}: "DIR: tensor NAME is missing"
  const std::vector<const StoredTensor*>& tensors() const { return tensors_; }  // sorted by name
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  const std::filesystem::path& directory() const { return directory_; }

 private:
  std::filesystem::path directory_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<const StoredTensor*> tensors_;

  // A hash table of indices into tensors_, twice as large as needed, probed in order. An index of
  // -1 is a free slot. Loading asks for many names that are not there; tags answer that in one
  // look.
  struct Slot {
    uint32_t tag = 0;  // the upper half of the hash
    int32_t tensor = -1;
  };
  void fill_table();
  std::vector<Slot> table_;
};

}  // namespace halfbyte

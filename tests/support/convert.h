// What tests of the converter share: whole directories as bytes, and matrices as numbers.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "formats/decode.h"
#include "formats/stored_matrix.h"

namespace halfbyte {

// File name -> bytes, of every file in a directory.
inline std::map<std::string, std::string> bytes_of_directory(const std::filesystem::path& path) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    files[entry.path().filename().string()] = read_text(entry.path());
  return files;
}

inline std::vector<double> values_of(const MatrixView& matrix) {
  std::vector<double> values(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t r = 0; r < matrix.rows; ++r) decode_row(matrix, r, values.data() + r * matrix.cols);
  return values;
}

// "...experts.3.w1.weight_packed" -> "...experts.3.w1", for every matrix of a routed expert.
inline std::vector<std::string> expert_modules(const Checkpoint& checkpoint) {
  std::vector<std::string> modules;
  for (const StoredTensor* tensor : checkpoint.tensors()) {
    const std::string name(tensor->name);
    for (const std::string part : {".weight", ".weight_packed"})
      if (name.find(".experts.") != std::string::npos && name.ends_with(part))
        modules.push_back(name.substr(0, name.size() - part.size()));
  }
  return modules;
}

}  // namespace halfbyte

// Crafted safetensors files: right ones in a line, and wrong ones byte by byte.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"
#include "halfbyte/error.h"

namespace halfbyte {

struct CraftedTensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  std::string bytes;  // too short: the rest is 0
};

inline void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<long>(bytes.size()));
}

// A header of exactly the given text in front of `data_bytes` zeros.
inline std::string safetensors_bytes(std::string_view header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  bytes += header;
  return bytes + std::string(data_bytes, '\0');
}

inline void write_safetensors(const std::filesystem::path& path,
                              const std::vector<CraftedTensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& tensor : tensors) specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(path, specs);
  for (const auto& tensor : tensors) {
    int64_t bytes = dtype_bytes(tensor.dtype);
    for (const int64_t extent : tensor.shape) bytes *= extent;
    std::string data = tensor.bytes;
    data.resize(static_cast<size_t>(bytes), '\0');
    writer.write(data.data(), data.size());
  }
  writer.commit();
}

// What `action` throws as one line, or "" if it does not.
template <class F>
std::string message_of(F&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace halfbyte

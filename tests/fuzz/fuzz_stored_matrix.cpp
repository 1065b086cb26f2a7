// A header, a zero byte and data as the safetensors file of a checkpoint (the length in front is
// made here, so that mutations reach further). Every matrix that is accepted is decoded to its last
// byte, all of which must lie inside the file.
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "formats/decode.h"
#include "formats/stored_matrix.h"
#include "fuzz.h"

namespace {

const std::filesystem::path& directory() {
  static const std::filesystem::path path = [] {
    const bool in_memory = std::filesystem::is_directory("/dev/shm");
    const std::filesystem::path parent =
        in_memory ? "/dev/shm" : std::filesystem::temp_directory_path();
    std::string pattern = (parent / "fuzz_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    std::atexit([] { std::filesystem::remove_all(directory()); });
    return std::filesystem::path(pattern);
  }();
  return path;
}

void check_inside(const halfbyte::MappedFile& file, const void* data, size_t bytes) {
  const auto whole = file.bytes();
  const auto* begin = static_cast<const std::byte*>(data);
  if (bytes > 0 && (begin < whole.data() || begin + bytes > whole.data() + whole.size()))
    std::abort();
}

}  // namespace

FUZZ_TARGET(stored_matrix) {
  const std::string_view header = data.substr(0, data.find('\0'));
  const std::string_view body = data.substr(std::min(header.size() + 1, data.size()));
  const uint64_t length = header.size();
  std::ofstream(directory() / "model.safetensors", std::ios::binary)
      .write(reinterpret_cast<const char*>(&length), sizeof length)
      .write(header.data(), static_cast<std::streamsize>(header.size()))
      .write(body.data(), static_cast<std::streamsize>(body.size()));

  const halfbyte::Checkpoint checkpoint(directory());
  for (const halfbyte::StoredTensor* tensor : checkpoint.tensors()) {
    if (checkpoint.find(tensor->name) != tensor) std::abort();
    const std::string_view module = tensor->name.substr(0, tensor->name.rfind('.'));
    refuse_or_finish(
        [&](std::string_view name) {
          const halfbyte::MatrixView matrix = halfbyte::get_matrix(checkpoint, name);
          check_inside(*tensor->file, matrix.values, halfbyte::value_bytes(matrix));
          check_inside(*tensor->file, matrix.scales, halfbyte::scale_bytes(matrix));
          std::vector<double> row(static_cast<size_t>(matrix.cols));
          for (int64_t r = 0; r < matrix.rows; ++r) halfbyte::decode_row(matrix, r, row.data());
        },
        module);
  }
}

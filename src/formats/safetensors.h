// safetensors files: 8 bytes of header length, a JSON header, the data.
//
// The reader maps the file and checks everything before it hands out a view: header length against
// the file, every offset, byte count = shape x dtype, no overlap, no gap, no bytes left over. It
// never copies tensor data. The writer streams: all names, dtypes and shapes first, then the data
// in that order; the file appears by commit(). Format: https://github.com/huggingface/safetensors,
// section "Format". Zero-element tensors are legal. The writer keeps the order it is given and pads
// the header with spaces to 8 bytes, so that equal input makes equal bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "halfbyte/tensor.h"

namespace halfbyte {

// One stored tensor; `bytes` lives as long as its file.
struct StoredTensor {
  std::string_view name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
  const MappedFile* file = nullptr;

  int64_t elements() const;
  std::string where() const;  // "DIR/model.safetensors: tensor NAME", for messages
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(bytes.data());
  }
};

// Throws Error{kInput} unless the tensor begins at a multiple of its element's size: for those that
// are read in place. Writers of today see to it; a file of others can be read byte by byte.
void check_aligned(const StoredTensor& tensor);

class SafetensorsFile {
 public:
  static constexpr size_t kMaxHeaderBytes = 512u << 20;

  explicit SafetensorsFile(
      const std::filesystem::path& path);  // throws Error{kInput}: file, tensor, what is wrong
  const StoredTensor* find(std::string_view name) const;
  const StoredTensor& get(std::string_view name) const;                  // throws Error{kInput}
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // by rising offset
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const MappedFile& file() const { return *file_; }

 private:
  std::unique_ptr<MappedFile> file_;
  std::unique_ptr<char[]> names_;  // all names, one after the other
  std::vector<StoredTensor> tensors_;
  std::vector<uint32_t> by_name_;  // indices into tensors_
  std::map<std::string, std::string> metadata_;
};

// Readers use elements in place, so each tensor must begin at a multiple of its element's size:
// give tensors by falling element size.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorSpec>& tensors,
                    const std::map<std::string, std::string>& metadata = {});
  // The next bytes of the data section: tensors follow each other in the order of the constructor.
  void write(const void* data, size_t bytes);
  // Bytes [offset, offset + bytes) of one tensor, given by its place in the constructor's list; in
  // any order, from any thread. A file is written either with `write` or with `write_at`.
  void write_at(size_t tensor, size_t offset, const void* data, size_t bytes);
  void commit();  // HB_CHECKs that exactly the promised bytes came

 private:
  AtomicFile file_;
  size_t data_begin_ = 0;       // in the file
  std::vector<size_t> begins_;  // of each tensor in the data section, and the end of the last
  size_t promised_bytes_ = 0;
  std::atomic<size_t> written_bytes_{0};
};

}  // namespace halfbyte

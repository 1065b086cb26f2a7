// Layout of a file: N (8 bytes, little-endian), N bytes of JSON, then the data. The JSON maps each
// name to {"dtype", "shape", "data_offsets": [begin, end)}, offsets counted from the data's begin;
// "__metadata__" maps strings to strings. Offsets must tile the data exactly.
#include "formats/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "base/json.h"
#include "halfbyte/error.h"

namespace halfbyte {

namespace {
constexpr size_t kLengthBytes = 8;
constexpr size_t kAlignment = 8;

std::optional<DType> find_dtype(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(DType::kF64); ++i)
    if (name == name_of(static_cast<DType>(i))) return static_cast<DType>(i);
  return std::nullopt;
}

// The bytes of an array, or nothing if they do not fit 63 bits.
std::optional<int64_t> count_bytes(DType dtype, const std::vector<int64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t bytes = dtype_bytes(dtype);
  for (const int64_t extent : shape)
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  return bytes;
}

struct Header {
  std::string_view json;
  size_t data_begin = 0;
};

Header read_header(const MappedFile& file) {
  const auto bytes = file.bytes();
  const auto fail = [&](std::string message) {
    throw Error(ErrorKind::kInput, file.path().string(), std::move(message));
  };
  if (bytes.size() < kLengthBytes)
    fail(fmt::format("has {} bytes, a safetensors file has at least 8", bytes.size()));
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length == 0) fail("header length is 0, expected a JSON header");
  if (length > bytes.size() - kLengthBytes)
    fail(fmt::format("header length is {}, but only {} bytes follow: truncated, or not safetensors",
                     length, bytes.size() - kLengthBytes));
  if (length > SafetensorsFile::kMaxHeaderBytes)
    fail(fmt::format("header length is {}, the limit is {}", length,
                     SafetensorsFile::kMaxHeaderBytes));
  return {{reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length},
          kLengthBytes + length};
}

// One entry of the header. `bytes` lies inside the data; tiling is checked by the caller.
StoredTensor read_entry(const MappedFile& file, size_t data_begin, std::string_view name,
                        const Json& entry) {
  const auto fail = [&](const std::string& message) {
    throw Error(ErrorKind::kInput, file.path().string(),
                fmt::format("tensor {}: {}", name, message));
  };
  StoredTensor tensor;
  tensor.file = &file;
  const std::string_view dtype_name = entry.get("dtype").string();
  const auto dtype = find_dtype(dtype_name);
  if (!dtype) fail(fmt::format("dtype {} is unknown", dtype_name));
  tensor.dtype = *dtype;
  for (const Json extent : entry.get("shape").elements()) {
    tensor.shape.push_back(extent.integer());
    if (tensor.shape.back() < 0) extent.fail(fmt::format("{} is negative", tensor.shape.back()));
  }
  const Json offsets = entry.get("data_offsets");
  const auto ends = offsets.elements();
  if (ends.size() != 2) offsets.fail(fmt::format("has {} numbers, expected 2", ends.size()));
  const int64_t begin = ends[0].integer(), end = ends[1].integer();
  const auto data_bytes = static_cast<int64_t>(file.bytes().size() - data_begin);
  if (begin < 0 || begin > end)
    fail(fmt::format("data_offsets [{}, {}] are not a range", begin, end));
  if (end > data_bytes)
    fail(fmt::format("data_offsets [{}, {}] end past the file's {} bytes of data: truncated?",
                     begin, end, data_bytes));
  const auto expected = count_bytes(tensor.dtype, tensor.shape);
  if (!expected)
    fail(fmt::format("shape [{}] of {} is larger than 2^63 bytes", fmt::join(tensor.shape, ", "),
                     dtype_name));
  if (end - begin != *expected)
    fail(fmt::format("has {} bytes, but shape [{}] of {} takes {}", end - begin,
                     fmt::join(tensor.shape, ", "), dtype_name, *expected));
  tensor.bytes = file.bytes().subspan(data_begin + static_cast<size_t>(begin),
                                      static_cast<size_t>(end - begin));
  return tensor;
}
}  // namespace

int64_t StoredTensor::elements() const {
  return static_cast<int64_t>(bytes.size()) / dtype_bytes(dtype);
}

std::string StoredTensor::where() const {
  return fmt::format("{}: tensor {}", file != nullptr ? file->path().string() : "", name);
}

void check_aligned(const StoredTensor& tensor) {
  const auto offset = tensor.bytes.data() - tensor.file->bytes().data();  // mapped at a page
  if (offset % dtype_bytes(tensor.dtype) != 0)
    throw Error(ErrorKind::kInput, tensor.where(),
                fmt::format("begins at byte {} of the file, not at a multiple of {}: rewriting the "
                            "file with any current safetensors writer mends it (the format asks "
                            "for a header that ends at a multiple of 8)",
                            offset, dtype_bytes(tensor.dtype)));
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(std::make_unique<MappedFile>(path)) {
  const Header header = read_header(*file_);
  const JsonDocument document = JsonDocument::from_text(header.json, path.string() + ": header");

  // Entries, in the header's order.
  size_t name_bytes = 0, count = 0;
  document.root().for_each_member([&](std::string_view name, const Json&) {
    name_bytes += name.size();
    ++count;
  });
  names_ = std::make_unique<char[]>(name_bytes);
  tensors_.reserve(count);
  char* next_name = names_.get();
  document.root().for_each_member([&](std::string_view name, const Json& entry) {
    if (name == "__metadata__") {
      entry.for_each_member(
          [&](std::string_view key, const Json& value) { metadata_.emplace(key, value.string()); });
      return;
    }
    tensors_.push_back(read_entry(*file_, header.data_begin, name, entry));
    std::copy(name.begin(), name.end(), next_name);
    tensors_.back().name = {next_name, name.size()};
    next_name += name.size();
  });

  // By offset: every tensor begins where the last one ended.
  std::sort(tensors_.begin(), tensors_.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.bytes.data(), a.bytes.size()) < std::pair(b.bytes.data(), b.bytes.size());
  });
  const std::byte* const data = file_->bytes().data() + header.data_begin;
  size_t end = 0;
  for (const StoredTensor& tensor : tensors_) {
    const auto begin = static_cast<size_t>(tensor.bytes.data() - data);
    if (begin != end)
      throw Error(
          ErrorKind::kInput, path.string(),
          fmt::format("tensor {}: begins at byte {} of the data, but the tensor before it ends at "
                      "{}: {}",
                      tensor.name, begin, end, begin < end ? "they overlap" : "there is a gap"));
    end += tensor.bytes.size();
  }
  const size_t data_bytes = file_->bytes().size() - header.data_begin;
  if (end != data_bytes)
    throw Error(ErrorKind::kInput, path.string(),
                fmt::format("{} bytes follow the last tensor, expected none", data_bytes - end));

  // By name.
  by_name_.resize(tensors_.size());
  for (uint32_t i = 0; i < by_name_.size(); ++i) by_name_[i] = i;
  std::sort(by_name_.begin(), by_name_.end(),
            [&](uint32_t a, uint32_t b) { return tensors_[a].name < tensors_[b].name; });
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [&](uint32_t i, std::string_view key) { return tensors_[i].name < key; });
  return found != by_name_.end() && tensors_[*found].name == name ? &tensors_[*found] : nullptr;
}

const StoredTensor& SafetensorsFile::get(std::string_view name) const {
  if (const StoredTensor* tensor = find(name)) return *tensor;
  throw Error(ErrorKind::kInput, file_->path().string(), fmt::format("tensor {} is missing", name));
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<TensorSpec>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  const auto quoted = [](const std::string& text) { return nlohmann::json(text).dump(); };
  std::string header = "{";
  if (!metadata.empty())
    header += "\"__metadata__\":" + nlohmann::json(metadata).dump() + (tensors.empty() ? "" : ",");
  for (const TensorSpec& tensor : tensors) {
    const auto bytes = count_bytes(tensor.dtype, tensor.shape);
    HB_CHECK(bytes);
    HB_CHECK(promised_bytes_ % static_cast<size_t>(dtype_bytes(tensor.dtype)) == 0);
    const size_t end = promised_bytes_ + static_cast<size_t>(*bytes);
    header +=
        fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                    &tensor == tensors.data() ? "" : ",", quoted(tensor.name),
                    name_of(tensor.dtype), fmt::join(tensor.shape, ","), promised_bytes_, end);
    begins_.push_back(promised_bytes_);
    promised_bytes_ = end;
  }
  begins_.push_back(promised_bytes_);
  header += "}";
  header.resize((header.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const uint64_t length = header.size();
  file_.write(&length, kLengthBytes);
  file_.write(header.data(), header.size());
  data_begin_ = kLengthBytes + header.size();
}

void SafetensorsWriter::write(const void* data, size_t bytes) {
  HB_CHECK(bytes <= promised_bytes_ - written_bytes_);
  file_.write(data, bytes);
  written_bytes_ += bytes;
}

void SafetensorsWriter::write_at(size_t tensor, size_t offset, const void* data, size_t bytes) {
  HB_CHECK(tensor + 1 < begins_.size());
  HB_CHECK(offset + bytes <= begins_[tensor + 1] - begins_[tensor]);
  file_.write_at(data_begin_ + begins_[tensor] + offset, data, bytes);
  written_bytes_ += bytes;
}

void SafetensorsWriter::commit() {
  HB_CHECK(written_bytes_ == promised_bytes_);
  file_.commit();
}

}  // namespace halfbyte

// Reading files by mapping them, and writing them so that a reader never sees half of one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace halfbyte {

// A whole file mapped read-only. Move-only. The bytes live as long as the object.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(
      const std::filesystem::path& path);  // throws Error{kInput}: missing, a directory, unreadable
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  // Tells the kernel that [offset, offset + count) will not be read again soon (keeps memory
  // bounded).
  void drop(size_t offset, size_t count) const;
  // Tells it that they will be read soon, so that reading may begin now.
  void expect(size_t offset, size_t count) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A file that appears under its name only by `commit()`: written beside it as NAME.partial, synced,
// renamed. Without commit the partial file is removed.
class AtomicFile {
 public:
  // Throws Error{kInput} if something other than a file is there, Error{kResource} if the partial
  // file cannot be created.
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  // Throws Error{kResource}, e.g. on a full disk. Small pieces are collected.
  void write(const void* data, size_t bytes);
  // At a place, which may lie beyond what is written so far; from any thread. `write` goes on where
  // the last `write` ended.
  void write_at(size_t offset, const void* data, size_t bytes);
  void commit();

 private:
  void write_through(const char* data, size_t bytes);

  std::filesystem::path path_, partial_;
  std::vector<char> pending_;
  int fd_ = -1;
};

std::string read_text(const std::filesystem::path& path);                   // throws Error{kInput}
void write_text(const std::filesystem::path& path, std::string_view text);  // atomically

}  // namespace halfbyte

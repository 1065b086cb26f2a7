#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "halfbyte/error.h"

namespace halfbyte {
namespace fs = std::filesystem;

namespace {
constexpr size_t kPendingBytes = 256 << 10;
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  // NOTE: O_NONBLOCK, or a pipe without a writer would be waited for; files do not care.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    throw Error(ErrorKind::kInput, path.string(),
                fmt::format("cannot be opened: {}", std::strerror(errno)));
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw Error(ErrorKind::kInput, path.string(), "is not a regular file");
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapped == MAP_FAILED) {
      const int reason = errno;
      ::close(fd);
      throw Error(ErrorKind::kResource, path.string(),
                  fmt::format("cannot be mapped: {}", std::strerror(reason)));
    }
    data_ = static_cast<const std::byte*>(mapped);
  }
  ::close(fd);
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop(size_t offset, size_t count) const {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = (offset + page - 1) / page * page;
  const size_t end = std::min(offset + count, size_) / page * page;
  if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

void MappedFile::expect(size_t offset, size_t count) const {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = offset / page * page;
  const size_t end = std::min(offset + count, size_);
  if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_WILLNEED);
}

AtomicFile::AtomicFile(fs::path path)
    : path_(std::move(path)), partial_(path_.string() + ".partial") {
  // NOTE: the rename would put a file where /dev/null was.
  struct stat info {};
  if (!path_.has_filename() || (::stat(path_.c_str(), &info) == 0 && !S_ISREG(info.st_mode)))
    throw Error(ErrorKind::kInput, path_.empty() ? "\"\"" : path_.string(),
                "is no place for a file");
  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0)
    throw Error(ErrorKind::kResource, partial_.string(),
                fmt::format("cannot be created: {}", std::strerror(errno)));
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_.c_str());
}

void AtomicFile::write(const void* data, size_t bytes) {
  const char* begin = static_cast<const char*>(data);
  if (pending_.size() + bytes < kPendingBytes) {
    pending_.insert(pending_.end(), begin, begin + bytes);
    return;
  }
  write_through(pending_.data(), pending_.size());
  pending_.clear();
  write_through(begin, bytes);
}

void AtomicFile::write_through(const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::write(fd_, data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0)
      throw Error(ErrorKind::kResource, partial_.string(),
                  fmt::format("cannot be written: {}", std::strerror(errno)));
    data += written;
    bytes -= static_cast<size_t>(written);
  }
}

void AtomicFile::write_at(size_t offset, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::pwrite(fd_, next, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0)
      throw Error(ErrorKind::kResource, partial_.string(),
                  fmt::format("cannot be written: {}", std::strerror(errno)));
    next += written;
    offset += static_cast<size_t>(written);
    bytes -= static_cast<size_t>(written);
  }
}

void AtomicFile::commit() {
  write_through(pending_.data(), pending_.size());
  pending_.clear();
  const bool synced = ::fsync(fd_) == 0;
  const int reason = errno;
  ::close(std::exchange(fd_, -1));
  if (!synced || ::rename(partial_.c_str(), path_.c_str()) != 0) {
    const int cause = synced ? errno : reason;
    ::unlink(partial_.c_str());
    throw Error(ErrorKind::kResource, path_.string(),
                fmt::format("cannot be written: {}", std::strerror(cause)));
  }
}

std::string read_text(const fs::path& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

void write_text(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace halfbyte

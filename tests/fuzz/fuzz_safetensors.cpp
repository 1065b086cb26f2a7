// Any bytes as a safetensors file. What is accepted must lie inside the file, to its last byte.
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "formats/safetensors.h"
#include "fuzz.h"

namespace {

// A file that only this process sees.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view data) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (::write(fd_, data.data(), data.size()) != static_cast<ssize_t>(data.size())) std::abort();
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace

FUZZ_TARGET(safetensors) {
  const MemoryFile memory(data);
  const halfbyte::SafetensorsFile file(memory.path());
  const auto whole = file.file().bytes();
  size_t total = 0;
  volatile std::byte sink{};
  for (const auto& tensor : file.tensors()) {
    const auto bytes = tensor.bytes;
    total += bytes.size();
    if (static_cast<size_t>(tensor.elements() * halfbyte::dtype_bytes(tensor.dtype)) !=
        bytes.size())
      std::abort();
    if (file.find(tensor.name) != &tensor) std::abort();
    if (bytes.empty()) continue;
    if (bytes.data() < whole.data() || bytes.data() + bytes.size() > whole.data() + whole.size())
      std::abort();
    sink = bytes.front();
    sink = bytes.back();
  }
  (void)sink;
  if (total > whole.size()) std::abort();
}

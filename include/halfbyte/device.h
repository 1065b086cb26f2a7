// A device is a place (memory) and one queue of work.
//
// Names: "ref" (slow, plain, double accumulators: the definition of right), "cpu" (the best
// instruction set that this processor has), "cpu.avx512", "cpu.avx2", "cpu.scalar" (that one, or an
// error), "cuda:N" (a Hopper GPU: MoE operations only), "auto" (the best that runs models). A
// device is used from one thread at a time; it owns its worker threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "halfbyte/tensor.h"

namespace halfbyte {

class Ops;

struct DeviceOptions {
  int threads = 0;  // 0: as many as the process may run on
};

// Memory on a device, aligned for its kernels, zero-filled. Move-only; must not outlive its device.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, size_t bytes, void (*release)(void*, size_t))
      : data_(data), bytes_(bytes), release_(release) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) release_(data_, bytes_);
  }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
  void (*release_)(void*, size_t) = nullptr;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;  // "cpu.avx512"
  virtual std::string describe()
      const = 0;  // one line for logs and records: name, processor, threads
  virtual DType activation_dtype()
      const = 0;           // what model activations are kept in: ref F32, the others BF16
  virtual Ops& ops() = 0;  // dense operations (src/ops/ops.h)

  virtual Buffer allocate(size_t bytes) = 0;  // throws Error{kResource}
  virtual void copy_to_device(void* to, const void* from_host, size_t bytes) = 0;
  virtual void copy_to_host(void* to_host, const void* from, size_t bytes) = 0;
  virtual void wait() = 0;  // until all queued work is done
};

// Throws Error{kInput} for an unknown name, Error{kUnsupported} for one this machine cannot run.
std::unique_ptr<Device> open_device(std::string_view name, const DeviceOptions& options = {});

// Every device of this machine that runs models, best last: tests loop over it.
std::vector<std::string> available_devices();

// The same, and then those that run MoE operations alone ("cuda:0").
std::vector<std::string> available_moe_devices();

}  // namespace halfbyte

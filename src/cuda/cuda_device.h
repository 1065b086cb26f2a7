// A Hopper GPU as a device: "cuda:N", numbered as the CUDA runtime does (CUDA_VISIBLE_DEVICES).
//
// Dense operations of models do not run on it yet: `ops` throws. MoE operations do.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "halfbyte/device.h"

namespace halfbyte {

class CudaDevice : public Device {
 public:
  // Throws Error{kUnsupported} if there is no such GPU, or if its kernels are not ours to run.
  explicit CudaDevice(int index);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int index() const { return index_; }
  int num_sms() const { return num_sms_; }

  // The queue, a cudaStream_t. Work goes to the device's own stream unless the caller, who stays
  // its owner, sets another; null is then the default stream of the CUDA runtime.
  void* stream() const { return stream_; }
  void set_stream(void* stream) { stream_ = stream; }
  void use_own_stream() { stream_ = own_stream_; }

  // Makes this the GPU that the CUDA runtime's calls of this thread go to, as every function here
  // does first.
  void make_current() const;

  std::string name() const override;
  std::string describe() const override;
  DType activation_dtype() const override { return DType::kBf16; }
  Ops& ops() override;
  Buffer allocate(size_t bytes) override;
  // Ordered in the stream; return when the copy is done.
  void copy_to_device(void* to, const void* from_host, size_t bytes) override;
  void copy_to_host(void* to_host, const void* from, size_t bytes) override;
  void wait() override;  // for the stream

 private:
  int index_;
  int num_sms_ = 0;
  void* own_stream_ = nullptr;
  void* stream_ = nullptr;
};

// `name`: "cuda:N"; throws Error{kInput} for something else.
std::unique_ptr<Device> open_cuda_device(std::string_view name);

// "cuda:0", ...: those that `open_cuda_device` opens. Empty without a driver; never throws.
std::vector<std::string> available_cuda_devices();

// Throws Error{kUnsupported} unless a GPU of this compute capability runs our kernels (9.0: they
// use instructions of sm_90a, which no other has).
void check_compute_capability(std::string_view device, std::string_view gpu, int major, int minor);

}  // namespace halfbyte

#include "cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cuda/check.h"
#include "halfbyte/error.h"

namespace halfbyte {

namespace {

double gib(size_t bytes) { return static_cast<double>(bytes) / (size_t{1} << 30); }

cudaStream_t cuda(void* stream) { return static_cast<cudaStream_t>(stream); }

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  HB_CUDA(cudaDeviceGetAttribute(&value, which, index));
  return value;
}

std::string version_text(int version) {  // 13000: "13.0"
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string gpu_name(int index) {
  cudaDeviceProp properties;
  HB_CUDA(cudaGetDeviceProperties(&properties, index));
  return properties.name;
}

std::string device_name(int index) { return fmt::format("cuda:{}", index); }

// Throws Error{kUnsupported}: what is missing before there can be a GPU `index`.
void check_there(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (error != cudaSuccess || count == 0)
    throw Error(ErrorKind::kUnsupported, device_name(index),
                fmt::format("no NVIDIA GPU can be used here ({}); device cpu needs none",
                            error == cudaSuccess ? "there is none" : cudaGetErrorString(error)));
  if (index >= count)
    throw Error(ErrorKind::kUnsupported, device_name(index),
                fmt::format("the last GPU of this machine is {}", device_name(count - 1)));
}

void check_usable(int index) {
  check_there(index);
  check_compute_capability(device_name(index), gpu_name(index),
                           attribute(cudaDevAttrComputeCapabilityMajor, index),
                           attribute(cudaDevAttrComputeCapabilityMinor, index));
}

}  // namespace

void check_compute_capability(std::string_view device, std::string_view gpu, int major, int minor) {
  if (major == 9 && minor == 0) return;
  throw Error(ErrorKind::kUnsupported, std::string(device),
              fmt::format("{} has compute capability {}.{}: kernels are for 9.0 alone (H100, H200, "
                          "GH200); device cpu needs no GPU",
                          gpu, major, minor));
}

CudaDevice::CudaDevice(int index) : index_(index) {
  check_usable(index);
  make_current();
  num_sms_ = attribute(cudaDevAttrMultiProcessorCount, index);
  cudaStream_t stream = nullptr;
  // NOTE: non-blocking, so that the default stream, and what other code does on it, is not waited
  // for.
  HB_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  own_stream_ = stream_ = stream;
}

CudaDevice::~CudaDevice() {
  cudaSetDevice(index_);
  cudaStreamDestroy(cuda(own_stream_));
}

void CudaDevice::make_current() const { HB_CUDA(cudaSetDevice(index_)); }

std::string CudaDevice::name() const { return device_name(index_); }

std::string CudaDevice::describe() const {
  make_current();
  size_t free_bytes = 0, total_bytes = 0;
  int driver = 0, runtime = 0;
  HB_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  HB_CUDA(cudaDriverGetVersion(&driver));
  HB_CUDA(cudaRuntimeGetVersion(&runtime));
  return fmt::format(
      "{}, {}, {} SMs at up to {} MHz, {:.1f} GiB at {} MHz, CUDA driver {}, runtime {}", name(),
      gpu_name(index_), num_sms_, attribute(cudaDevAttrClockRate, index_) / 1000, gib(total_bytes),
      attribute(cudaDevAttrMemoryClockRate, index_) / 1000, version_text(driver),
      version_text(runtime));
}

Ops& CudaDevice::ops() {
  throw Error(ErrorKind::kUnsupported, name(),
              "the dense operations of models do not run on cuda yet, only MoE operations do; "
              "models run on devices cpu and ref");
}

Buffer CudaDevice::allocate(size_t bytes) {
  if (bytes == 0) return {};
  make_current();
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    HB_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
    throw Error(ErrorKind::kResource, name(),
                fmt::format("cannot allocate {} bytes ({:.2f} GiB): {:.2f} of {:.2f} GiB are free",
                            bytes, gib(bytes), gib(free_bytes), gib(total_bytes)));
  }
  HB_CUDA(error);
  Buffer buffer(data, bytes, [](void* pointer, size_t) { cudaFree(pointer); });
  HB_CUDA(cudaMemsetAsync(data, 0, bytes, cuda(stream_)));
  wait();
  return buffer;
}

void CudaDevice::copy_to_device(void* to, const void* from_host, size_t bytes) {
  if (bytes == 0) return;
  make_current();
  HB_CUDA(cudaMemcpyAsync(to, from_host, bytes, cudaMemcpyHostToDevice, cuda(stream_)));
  wait();
}

void CudaDevice::copy_to_host(void* to_host, const void* from, size_t bytes) {
  if (bytes == 0) return;
  make_current();
  HB_CUDA(cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, cuda(stream_)));
  wait();
}

void CudaDevice::wait() {
  make_current();
  HB_CUDA(cudaStreamSynchronize(cuda(stream_)));
}

std::unique_ptr<Device> open_cuda_device(std::string_view name) {
  constexpr std::string_view kPrefix = "cuda:";
  const std::string_view number = name.substr(std::min(name.size(), kPrefix.size()));
  unsigned index = 0;
  const auto [stop, error] = std::from_chars(number.begin(), number.end(), index);
  if (!name.starts_with(kPrefix) || error != std::errc() || stop != number.end() || index > 255)
    throw Error(ErrorKind::kInput, "device",
                fmt::format("\"{}\": expected cuda:N, N a number from 0", name));
  return std::make_unique<CudaDevice>(static_cast<int>(index));
}

std::vector<std::string> available_cuda_devices() {
  std::vector<std::string> names;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  cudaGetLastError();
  for (int index = 0; index < count; ++index) {
    try {
      check_usable(index);
      names.push_back(device_name(index));
    } catch (const Error&) {
      // A GPU that we have no kernels for.
    }
  }
  return names;
}

}  // namespace halfbyte

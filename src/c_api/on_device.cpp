#include "c_api/on_device.h"

#ifdef HALFBYTE_CUDA
#include <cuda_runtime_api.h>

#include "cuda/cuda_device.h"
#endif

namespace halfbyte::c_api {

#ifdef HALFBYTE_CUDA

KeepCurrentGpu::KeepCurrentGpu() {
  if (cudaGetDevice(&index_) == cudaSuccess) return;
  cudaGetLastError();  // no driver, no GPU
  index_ = -1;
}

KeepCurrentGpu::~KeepCurrentGpu() {
  // NOTE: setting a GPU that nobody has used yet makes a context on it: only if it has changed.
  int now = -1;
  if (index_ >= 0 && cudaGetDevice(&now) == cudaSuccess && now != index_) cudaSetDevice(index_);
}

void OnDevice::use_stream(void* stream) {
  if (auto* gpu = dynamic_cast<CudaDevice*>(&device_)) gpu->set_stream(stream);
}

OnDevice::~OnDevice() {
  if (auto* gpu = dynamic_cast<CudaDevice*>(&device_)) gpu->use_own_stream();
}

#else

KeepCurrentGpu::KeepCurrentGpu() = default;
KeepCurrentGpu::~KeepCurrentGpu() = default;
void OnDevice::use_stream(void*) {}
OnDevice::~OnDevice() = default;

#endif

SharedDevice::~SharedDevice() {
  const KeepCurrentGpu keep;
  device.reset();
}

}  // namespace halfbyte::c_api

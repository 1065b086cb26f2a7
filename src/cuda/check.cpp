#include "cuda/check.h"

#include <fmt/format.h>

#include "halfbyte/error.h"

namespace halfbyte {

namespace {

ErrorKind kind_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorECCUncorrectable:
      return ErrorKind::kResource;
    default:
      return ErrorKind::kInternal;
  }
}

}  // namespace

void throw_cuda_error(cudaError_t error, std::string_view call) {
  cudaGetLastError();  // or the next call that only asks for the last error would report it again
  // The runtime says so of a machine without any driver, too.
  const char* hint = error == cudaErrorInsufficientDriver
                         ? "; is an NVIDIA driver installed? nvidia-smi says"
                         : "";
  throw Error(
      kind_of(error), "cuda",
      fmt::format("{}: {} ({}){}", call, cudaGetErrorName(error), cudaGetErrorString(error), hint));
}

}  // namespace halfbyte

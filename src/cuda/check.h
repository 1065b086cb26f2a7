// HB_CUDA(call): a call of the CUDA runtime, whose failure becomes an Error.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace halfbyte {

// Throws Error with the call, the runtime's name for the error, and its text: kResource if a device
// or its memory is missing or lost, kInternal if the call itself was wrong.
[[noreturn]] void throw_cuda_error(cudaError_t error, std::string_view call);

}  // namespace halfbyte

#define HB_CUDA(call)                                                           \
  do {                                                                          \
    if (const cudaError_t hb_cuda_error = (call); hb_cuda_error != cudaSuccess) \
      ::halfbyte::throw_cuda_error(hb_cuda_error, #call);                       \
  } while (false)

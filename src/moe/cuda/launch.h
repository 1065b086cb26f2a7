// Launching a kernel so that its blocks may start while those of the one before still run
// (programmatic dependent launch); the kernel says with wait_for_previous_kernel from where on it
// needs their results.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "moe/cuda/kernels.h"

namespace halfbyte::hopper {

template <class... Parameters, class... Arguments>
cudaError_t launch_overlapped(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared,
                              cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

// One block an SM.
template <class... Parameters, class... Arguments>
cudaError_t launch_overlapped(void (*kernel)(Parameters...), const LaunchOptions& options,
                              int threads, size_t shared, Arguments&&... arguments) {
  return launch_overlapped(kernel, dim3(static_cast<unsigned>(options.num_sms)), threads, shared,
                           options.stream, std::forward<Arguments>(arguments)...);
}

}  // namespace halfbyte::hopper

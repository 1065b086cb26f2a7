// Launching a kernel so that its blocks may start while those of the one before still run
// (programmatic dependent launch); the kernel says with wait_for_previous_kernel from where on it
// needs their results.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "moe/cuda/kernels.h"

namespace halfbyte::hopper {

// `cluster` blocks of the grid at a time share an SM's neighbourhood and each other's memory.
template <class... Parameters, class... Arguments>
cudaError_t launch_clusters(void (*kernel)(Parameters...), int cluster, dim3 grid, int threads,
                            size_t shared, cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = cluster == 1 ? 1 : 2;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

template <class... Parameters, class... Arguments>
cudaError_t launch_overlapped(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared,
                              cudaStream_t stream, Arguments&&... arguments) {
  return launch_clusters(kernel, 1, grid, threads, shared, stream,
                         std::forward<Arguments>(arguments)...);
}

// One block an SM.
template <class... Parameters, class... Arguments>
cudaError_t launch_overlapped(void (*kernel)(Parameters...), const LaunchOptions& options,
                              int threads, size_t shared, Arguments&&... arguments) {
  return launch_overlapped(kernel, dim3(static_cast<unsigned>(options.num_sms)), threads, shared,
                           options.stream, std::forward<Arguments>(arguments)...);
}

}  // namespace halfbyte::hopper

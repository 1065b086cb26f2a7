#include "moe/cuda/wgmma_kernel.cuh"

namespace halfbyte::hopper {

cudaError_t launch_wgmma_mxfp4(const WgmmaParams& params, const LaunchOptions& options) {
  return launch_wgmma_kernel<WeightFormat::kMxfp4>(params, options);
}

}  // namespace halfbyte::hopper

#include "moe/cuda/wgmma_kernel.cuh"

namespace halfbyte::hopper {

cudaError_t launch_wgmma_112(Product product, WeightFormat format, const WgmmaParams& params,
                             const LaunchOptions& options) {
  return launch_wgmma_kernels<Widths<48, 64, 80, 96, 112>>(product, format, params, options);
}

}  // namespace halfbyte::hopper

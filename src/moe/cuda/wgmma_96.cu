#include "moe/cuda/wgmma_kernel.cuh"

namespace halfbyte::hopper {

cudaError_t launch_wgmma_96(Product product, WeightFormat format, const WgmmaParams& params,
                            const LaunchOptions& options) {
  return launch_wgmma_kernels<Widths<3, 1, 64, 72, 80, 88, 96>>(product, format, params, options);
}

}  // namespace halfbyte::hopper

#include "moe/cuda/wgmma_kernel.cuh"

namespace halfbyte::hopper {

cudaError_t launch_wgmma_64(Product product, WeightFormat format, const WgmmaParams& params,
                            const LaunchOptions& options) {
  return launch_wgmma_kernels<Widths<3, 4, 32, 40, 48, 56, 64>>(product, format, params, options);
}

}  // namespace halfbyte::hopper

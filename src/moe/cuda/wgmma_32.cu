#include "moe/cuda/wgmma_kernel.cuh"

namespace halfbyte::hopper {

cudaError_t launch_wgmma_32(Product product, WeightFormat format, const WgmmaParams& params,
                            const LaunchOptions& options) {
  return launch_wgmma_kernels<Widths<4, 4, 8, 16, 24, 32>>(product, format, params, options);
}

}  // namespace halfbyte::hopper

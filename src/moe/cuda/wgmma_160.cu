#include "moe/cuda/wgmma_kernel.cuh"

namespace halfbyte::hopper {

cudaError_t launch_wgmma_160(Product product, WeightFormat format, const WgmmaParams& params,
                             const LaunchOptions& options) {
  return launch_wgmma_kernels<Widths<2, 1, 80, 96, 112, 128, 144, 160>>(product, format, params,
                                                                        options);
}

}  // namespace halfbyte::hopper

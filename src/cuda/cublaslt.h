// Dense BF16 products by cuBLASLt, which is loaded when it is first asked for: the binary starts on
// machines without it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "halfbyte/tensor.h"

namespace halfbyte {

// C (M, N) = A (M, K) W^T with W (N, K), all row-major and dense; A and W BF16, accumulated in
// fp32. N and K are multiples of 16; pointers are 16-byte aligned.
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;
  DType out = DType::kF32;  // of C: kF32 or kBf16
};

class CublasProduct {
 public:
  // Throws Error{kUnsupported} if there is no cuBLASLt, or it has no algorithm. `workspace_bytes`
  // is what `run` will be given; with 0, no algorithm cuts K between blocks, so that a row of C
  // does not depend on where it lies.
  explicit CublasProduct(const ProductShape& shape, size_t workspace_bytes = 0);
  CublasProduct(CublasProduct&&) noexcept;
  CublasProduct& operator=(CublasProduct&&) = delete;
  ~CublasProduct();

  int num_algorithms() const;  // best guess first
  // Queues.
  void run(const void* a, const void* w, void* c, void* workspace, cudaStream_t stream,
           int algorithm = 0) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace halfbyte

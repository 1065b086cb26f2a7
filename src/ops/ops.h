// Dense operations: the contract that every device implements, and all that model code may call.
//
// Letters: T tokens (rows), D hidden. Activations are TensorViews of the device's activation dtype
// (F32 on "ref", BF16 elsewhere) unless a line says otherwise; anything else is fp32 inside and
// rounded once. Operations are queued in order on the device. Nothing allocates except load_*.
#pragma once

#include <cstdint>
#include <memory>

#include "halfbyte/tensor.h"

namespace halfbyte {

// y = x W^T, W (N, K) packed for the device once.
class Linear {
 public:
  virtual ~Linear() = default;
  virtual int64_t in_features() const = 0;   // K
  virtual int64_t out_features() const = 0;  // N
  virtual size_t weight_bytes() const = 0;   // packed, as read by one run
  // x (T, K) BF16 or F32 -> y (T, N) BF16 or F32; fp32 accumulation. T = 0 is legal.
  virtual void run(TensorView x, TensorView y) const = 0;
};

class Ops {
 public:
  virtual ~Ops() = default;
  // Packs `weight` (host memory, any WeightFormat) for this device. Throws Error{kInput} that names
  // the tensor.
  virtual std::unique_ptr<Linear> load_linear(const MatrixView& weight) = 0;
};

}  // namespace halfbyte

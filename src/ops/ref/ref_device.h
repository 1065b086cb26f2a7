// Device "ref": the host, one thread, plain loops; activations in F32.
#pragma once

#include "halfbyte/device.h"
#include "ops/ref/ref_ops.h"

namespace halfbyte::ref {

class RefDevice : public Device {
 public:
  std::string name() const override { return "ref"; }
  std::string describe() const override {
    return "ref: plain loops, double accumulators, 1 thread";
  }
  DType activation_dtype() const override { return DType::kF32; }
  Ops& ops() override { return ops_; }
  Buffer allocate(size_t bytes) override;
  void copy_to_device(void* to, const void* from_host, size_t bytes) override;
  void copy_to_host(void* to_host, const void* from, size_t bytes) override;
  void wait() override {}

 private:
  RefOps ops_;
};

}  // namespace halfbyte::ref

// The CPU as a device: which instruction set, which threads, which memory.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/threads.h"
#include "halfbyte/device.h"

namespace halfbyte {

// Instruction sets that kernels are written for, by rising speed.
enum class SimdLevel {
  kScalar,  // plain C++, any processor
  kAvx2,    // AVX2 + FMA + F16C
  kAvx512,  // AVX-512 F, BW, VL, DQ, VBMI and BF16
};

const char* name_of(SimdLevel level);  // "scalar", "avx2", "avx512"
bool machine_has(SimdLevel level);
SimdLevel best_simd_level();

// Zero-filled, 2 MiB-aligned memory in huge pages where the system gives them. Throws
// Error{kResource}.
Buffer allocate_host_memory(size_t bytes);

class CpuDevice : public Device {
 public:
  // Ops live a layer above, so the device gets to know how to make (and to destroy) them here. May
  // be empty: then `ops` must not be called.
  using OpsFactory = std::function<std::shared_ptr<Ops>(CpuDevice&)>;
  CpuDevice(SimdLevel level, const DeviceOptions& options, const OpsFactory& make_ops);
  ~CpuDevice() override;

  SimdLevel level() const { return level_; }
  ThreadPool& pool() { return pool_; }

  // Memory that one operation at a time may use while it runs. `reserve_scratch` grows it, where
  // something is loaded; what `scratch` returned before is then void.
  void reserve_scratch(size_t bytes);
  std::byte* scratch() const { return static_cast<std::byte*>(scratch_.data()); }

  std::string name() const override;
  std::string describe() const override;
  DType activation_dtype() const override { return DType::kBf16; }
  Ops& ops() override { return *ops_; }
  Buffer allocate(size_t bytes) override { return allocate_host_memory(bytes); }
  void copy_to_device(void* to, const void* from_host, size_t bytes) override;
  void copy_to_host(void* to_host, const void* from, size_t bytes) override;
  void wait() override {}

 private:
  SimdLevel level_;
  ThreadPool pool_;
  Buffer scratch_;
  std::shared_ptr<Ops> ops_;
};

}  // namespace halfbyte

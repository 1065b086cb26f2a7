#include "simd/cpu_device.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>
#include <fstream>

#include "halfbyte/error.h"

namespace halfbyte {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// "AMD EPYC" from /proc/cpuinfo; "unknown processor" where that says nothing.
std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

}  // namespace

const char* name_of(SimdLevel level) {
  switch (level) {
    case SimdLevel::kScalar:
      return "scalar";
    case SimdLevel::kAvx2:
      return "avx2";
    case SimdLevel::kAvx512:
      return "avx512";
  }
  return "?";
}

bool machine_has(SimdLevel level) {
#if defined(__x86_64__)
  // NOTE: __builtin_cpu_supports also asks whether the operating system saves the registers.
  switch (level) {
    case SimdLevel::kScalar:
      return true;
    case SimdLevel::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case SimdLevel::kAvx512:
      return machine_has(SimdLevel::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi") &&
             __builtin_cpu_supports("avx512bf16");
  }
  return false;
#else
  return level == SimdLevel::kScalar;
#endif
}

SimdLevel best_simd_level() {
  if (machine_has(SimdLevel::kAvx512)) return SimdLevel::kAvx512;
  if (machine_has(SimdLevel::kAvx2)) return SimdLevel::kAvx2;
  return SimdLevel::kScalar;
}

Buffer allocate_host_memory(size_t bytes) {
  if (bytes == 0) return {};
  // One huge page more than asked for, so that the start can be moved to a boundary.
  const size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* mapped = rounded < bytes ? MAP_FAILED
                                 : mmap(nullptr, rounded + kHugePage, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED)
    throw Error(ErrorKind::kResource, "", fmt::format("cannot allocate {} bytes of memory", bytes));
  char* start = static_cast<char*>(mapped);
  const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
  if (skip > 0) munmap(start, skip);
  if (skip < kHugePage) munmap(start + skip + rounded, kHugePage - skip);
  // Advice only: without huge pages everything works, some 10 to 30 % slower.
  madvise(start + skip, rounded, MADV_HUGEPAGE);
  return Buffer(start + skip, bytes, [](void* data, size_t size) {
    munmap(data, (size + kHugePage - 1) / kHugePage * kHugePage);
  });
}

CpuDevice::CpuDevice(SimdLevel level, const DeviceOptions& options, const OpsFactory& make_ops)
    : level_(level), pool_(options.threads) {
  if (!machine_has(level))
    throw Error(ErrorKind::kUnsupported, fmt::format("device cpu.{}", name_of(level)),
                fmt::format("this processor ({}) lacks the instruction set; the best it has is "
                            "cpu.{}",
                            processor_name(), name_of(best_simd_level())));
  if (make_ops) ops_ = make_ops(*this);
}

CpuDevice::~CpuDevice() = default;

void CpuDevice::reserve_scratch(size_t bytes) {
  if (bytes > scratch_.bytes()) scratch_ = allocate_host_memory(bytes);
}

std::string CpuDevice::name() const { return fmt::format("cpu.{}", name_of(level_)); }

std::string CpuDevice::describe() const {
  return fmt::format("{}, {}, {} thread{}", name(), processor_name(), pool_.size(),
                     pool_.size() == 1 ? "" : "s");
}

void CpuDevice::copy_to_device(void* to, const void* from_host, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from_host, bytes);
}

void CpuDevice::copy_to_host(void* to_host, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to_host, from, bytes);
}

}  // namespace halfbyte

#include "simd/cpu_device.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "halfbyte/error.h"

namespace halfbyte {
namespace {

TEST(CpuDevice, EveryMachineHasTheScalarLevelAndTheBestOneIsThere) {
  EXPECT_TRUE(machine_has(SimdLevel::kScalar));
  EXPECT_TRUE(machine_has(best_simd_level()));
}

TEST(CpuDevice, NamesItsLevelAndCountsItsThreads) {
  CpuDevice device(SimdLevel::kScalar, {.threads = 3}, {});
  EXPECT_EQ(device.name(), "cpu.scalar");
  EXPECT_EQ(device.pool().size(), 3);
  EXPECT_NE(device.describe().find("3 threads"), std::string::npos) << device.describe();
}

TEST(CpuDevice, MemoryIsAlignedZeroAndWritableToItsEnd) {
  for (size_t bytes : {size_t{1}, size_t{4096}, (size_t{2} << 20) + 1}) {
    Buffer buffer = allocate_host_memory(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % (2u << 20), 0u);
    auto* data = static_cast<unsigned char*>(buffer.data());
    EXPECT_EQ(data[0], 0);
    EXPECT_EQ(data[bytes - 1], 0);
    std::memset(data, 0xFF, bytes);
  }
  EXPECT_EQ(allocate_host_memory(0).data(), nullptr);
}

TEST(CpuDevice, RefusesMoreMemoryThanThereCanBe) {
  try {
    allocate_host_memory(SIZE_MAX - 5);
    FAIL() << "allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
  }
}

}  // namespace
}  // namespace halfbyte

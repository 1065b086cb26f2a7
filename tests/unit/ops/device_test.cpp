#include "halfbyte/device.h"

#include <gtest/gtest.h>

#include "halfbyte/error.h"
#include "simd/cpu_device.h"

namespace halfbyte {
namespace {

// A silent skip shows here: what this machine can run is what the tests loop over.
TEST(Devices, RefScalarAndWhatThisMachineHas) {
  std::vector<std::string> expected = {"ref", "cpu.scalar"};
  if (machine_has(SimdLevel::kAvx2)) expected.push_back("cpu.avx2");
  if (machine_has(SimdLevel::kAvx512)) expected.push_back("cpu.avx512");
  EXPECT_EQ(available_devices(), expected);
  for (const std::string& name : expected) EXPECT_EQ(open_device(name)->name(), name);
}

TEST(Devices, AutoAndCpuAreTheBest) {
  EXPECT_EQ(open_device("auto")->name(), available_devices().back());
  EXPECT_EQ(open_device("cpu")->name(), available_devices().back());
}

TEST(Devices, UnknownNamesAreRefusedWithTheList) {
  try {
    open_device("gpu");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    EXPECT_NE(error.message().find("cpu.scalar"), std::string::npos) << error.what();
  }
}

TEST(Devices, ActivationsAreF32OnRefAndBf16OnCpu) {
  EXPECT_EQ(open_device("ref")->activation_dtype(), DType::kF32);
  EXPECT_EQ(open_device("cpu")->activation_dtype(), DType::kBf16);
}

}  // namespace
}  // namespace halfbyte

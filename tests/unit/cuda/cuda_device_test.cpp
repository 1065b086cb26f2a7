// What can be asked of CUDA devices without a GPU; tests/gpu/cuda_device_test.cpp asks the rest.
#include "cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>

#include "cuda/check.h"
#include "halfbyte/error.h"

namespace halfbyte {
namespace {

template <class Function>
Error error_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "threw nothing";
  return Error(ErrorKind::kInternal, "", "");
}

TEST(CudaDevice, NamesThatAreNoNumberAreRefused) {
  for (const char* name : {"cuda:", "cuda:x", "cuda:-1", "cuda:0 ", "cuda:1.5", "cuda:4294967296",
                           "cuda:256", "cuda", "cud", ""}) {
    const Error error = error_of([&] { open_cuda_device(name); });
    EXPECT_EQ(error.kind(), ErrorKind::kInput) << name;
    EXPECT_NE(error.message().find("cuda:N"), std::string::npos) << error.what();
  }
}

TEST(CudaDevice, OpensTheAvailableOnesAndRefusesTheNextInOneLine) {
  const std::vector<std::string> available = available_cuda_devices();
  for (const std::string& name : available) EXPECT_EQ(open_device(name)->name(), name);
  const Error error = error_of([] { open_device("cuda:255"); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_EQ(error.where(), "cuda:255");
  EXPECT_EQ(error.message().find('\n'), std::string::npos);
  if (available.empty()) {
    EXPECT_NE(error.message().find("device cpu"), std::string::npos) << error.what();
  }
}

TEST(CudaDevice, OnlyModelsAreKeptFromIt) {
  for (const std::string& name : available_devices())
    EXPECT_FALSE(name.starts_with("cuda")) << name;
  std::vector<std::string> expected = available_devices();
  for (const std::string& name : available_cuda_devices()) expected.push_back(name);
  EXPECT_EQ(available_moe_devices(), expected);
}

TEST(CudaDevice, KernelsAreForComputeCapability90Alone) {
  check_compute_capability("cuda:0", "NVIDIA H200", 9, 0);
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {9, 1}, {10, 0}, {12, 0}}) {
    const Error error =
        error_of([&] { check_compute_capability("cuda:1", "a GPU", major, minor); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_EQ(error.where(), "cuda:1");
    EXPECT_NE(error.message().find(std::to_string(major) + "." + std::to_string(minor)),
              std::string::npos)
        << error.what();
  }
}

TEST(CudaCheck, AnErrorSaysTheCallItsNameAndItsText) {
  HB_CUDA(cudaSuccess);
  const auto fail = [](cudaError_t code) { HB_CUDA(code); };
  const Error memory = error_of([&] { fail(cudaErrorMemoryAllocation); });
  EXPECT_EQ(memory.kind(), ErrorKind::kResource);
  EXPECT_EQ(memory.message(), "code: cudaErrorMemoryAllocation (out of memory)");
  EXPECT_EQ(error_of([&] { fail(cudaErrorInvalidValue); }).kind(), ErrorKind::kInternal);
}

}  // namespace
}  // namespace halfbyte

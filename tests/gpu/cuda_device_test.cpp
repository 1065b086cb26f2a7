// A CUDA device on a GPU: memory, copies, streams.
#include "cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "cuda/check.h"
#include "halfbyte/error.h"

namespace halfbyte {
namespace {

class CudaDeviceGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (available_cuda_devices().empty()) GTEST_SKIP() << "no Hopper GPU";
    device = std::make_unique<CudaDevice>(0);
  }
  std::unique_ptr<CudaDevice> device;
};

TEST_F(CudaDeviceGpu, DescribesItself) {
  EXPECT_EQ(device->name(), "cuda:0");
  EXPECT_GT(device->num_sms(), 0);
  for (const char* part : {"cuda:0, NVIDIA ", " SMs at ", " GiB at ", "driver ", "runtime "})
    EXPECT_NE(device->describe().find(part), std::string::npos) << device->describe();
}

TEST_F(CudaDeviceGpu, MemoryIsZeroToItsEndAndCopiesComeBack) {
  EXPECT_EQ(device->allocate(0).data(), nullptr);
  std::vector<uint8_t> sent(1000003);
  std::iota(sent.begin(), sent.end(), uint8_t{1});
  for (int round = 0; round < 3; ++round) {  // later rounds may get memory that was written to
    const Buffer buffer = device->allocate(sent.size());
    std::vector<uint8_t> back(sent.size(), 0xFF);
    device->copy_to_host(back.data(), buffer.data(), back.size());
    EXPECT_EQ(back, std::vector<uint8_t>(sent.size(), 0));
    device->copy_to_device(buffer.data(), sent.data(), sent.size());
    device->copy_to_host(back.data(), buffer.data(), back.size());
    EXPECT_EQ(back, sent);
  }
}

TEST_F(CudaDeviceGpu, SaysHowMuchWasAskedForAndHowMuchIsFree) {
  try {
    device->allocate(size_t{1} << 45);
    FAIL() << "allocated 32 TiB";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    EXPECT_EQ(error.where(), "cuda:0");
    EXPECT_NE(error.message().find("35184372088832 bytes"), std::string::npos) << error.what();
    EXPECT_NE(error.message().find("free"), std::string::npos) << error.what();
  }
  EXPECT_EQ(device->allocate(256).bytes(), 256u) << "the device goes on after a refusal";
}

TEST_F(CudaDeviceGpu, WorksOnTheStreamOfItsCaller) {
  cudaStream_t stream = nullptr;
  HB_CUDA(cudaStreamCreate(&stream));
  void* const own = device->stream();
  device->set_stream(stream);
  EXPECT_EQ(device->stream(), stream);
  const Buffer buffer = device->allocate(16);
  device->wait();
  device->use_own_stream();
  EXPECT_EQ(device->stream(), own);
  HB_CUDA(cudaStreamDestroy(stream));
}

TEST_F(CudaDeviceGpu, ModelsAreRefusedWithWhatWorks) {
  try {
    device->ops();
    FAIL() << "has dense operations";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(error.message().find("cpu"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace halfbyte

// How calls through the C ABI share a device with each other and with the program around them.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "halfbyte/device.h"

namespace halfbyte::c_api {

struct SharedDevice {
  explicit SharedDevice(std::unique_ptr<Device> opened) : device(std::move(opened)) {}
  ~SharedDevice();

  std::unique_ptr<Device> device;
  std::mutex mutex;
};

// The CUDA runtime's current GPU of this thread is, at the end, what it was at the beginning.
class KeepCurrentGpu {
 public:
  KeepCurrentGpu();
  ~KeepCurrentGpu();
  KeepCurrentGpu(const KeepCurrentGpu&) = delete;
  KeepCurrentGpu& operator=(const KeepCurrentGpu&) = delete;

 private:
  [[maybe_unused]] int index_ = -1;  // none; unused without CUDA
};

// One caller's turn on a device.
class OnDevice {
 public:
  explicit OnDevice(SharedDevice& shared) : lock_(shared.mutex), device_(*shared.device) {}
  OnDevice(SharedDevice& shared, void* stream) : OnDevice(shared) { use_stream(stream); }
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  Device& device() { return device_; }

 private:
  void use_stream(void* stream);  // until the end of the turn

  std::lock_guard<std::mutex> lock_;
  KeepCurrentGpu keep_;
  Device& device_;
};

}  // namespace halfbyte::c_api

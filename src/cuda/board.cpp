#include "cuda/board.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>

namespace halfbyte {
namespace {

// The part of NVML that is used here; 0 is success everywhere.
struct Nvml {
  int (*init)() = nullptr;
  int (*find)(const char* pci_bus_id, void** device) = nullptr;
  int (*clock)(void* device, int kind, unsigned* mhz) = nullptr;
  int (*power)(void* device, unsigned* milliwatts) = nullptr;
  bool loaded = false;

  static constexpr int kSmClock = 1;

  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto load = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    loaded = load(init, "nvmlInit_v2") && load(find, "nvmlDeviceGetHandleByPciBusId_v2") &&
             load(clock, "nvmlDeviceGetClockInfo") && load(power, "nvmlDeviceGetPowerUsage") &&
             init() == 0;
  }
};

const Nvml& nvml() {
  static const Nvml library;
  return library;
}

}  // namespace

Board::Board(int cuda_device) {
  char bus_id[32] = {};
  if (!nvml().loaded || cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, cuda_device) != cudaSuccess)
    return;
  if (nvml().find(bus_id, &device_) != 0) device_ = nullptr;
}

BoardState Board::read() const {
  BoardState state;
  if (device_ == nullptr) return state;
  unsigned value = 0;
  if (nvml().clock(device_, Nvml::kSmClock, &value) == 0) state.sm_mhz = value;
  if (nvml().power(device_, &value) == 0) state.watts = value * 1e-3;
  return state;
}

BoardSampler::BoardSampler(const Board& board)
    : thread_([this, board](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          readings_.push_back(board.read());
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
      }) {}

BoardState BoardSampler::finish() {
  thread_.request_stop();
  thread_.join();
  const size_t first = readings_.size() / 2;
  const auto median = [&](double BoardState::*field) {
    std::vector<double> values;
    for (size_t i = first; i < readings_.size(); ++i) values.push_back(readings_[i].*field);
    if (values.empty()) return 0.0;
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  return {median(&BoardState::sm_mhz), median(&BoardState::watts)};
}

}  // namespace halfbyte

#include "simd/roof.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

namespace halfbyte {

Roof::Roof(CpuDevice& device)
    : device_(device), kernels_(kernels(device.level())), buffer_(device.allocate(kProbeBytes)) {
  // NOTE: written once, or every page would be the one page of zeros.
  std::memset(buffer_.data(), 1, buffer_.bytes());
}

double Roof::read_bandwidth() {
  std::atomic<uint64_t> checksum{0};
  const size_t part = kProbeBytes / static_cast<size_t>(device_.pool().size()) / 4096 * 4096;
  const double began = seconds_now();
  device_.pool().run([&](int thread) {
    checksum += kernels_.read(
        static_cast<const std::byte*>(buffer_.data()) + static_cast<size_t>(thread) * part, part);
  });
  const double bytes = static_cast<double>(part) * device_.pool().size();
  return bytes / (seconds_now() - began);
}

double Roof::peak_flops() {
  constexpr int64_t kRounds = 400000;
  std::atomic<double> flops{0};
  const double began = seconds_now();
  device_.pool().run([&](int) {
    float sink = 0;
    const double done = kernels_.spin(kRounds, &sink);
    double all = flops.load();
    while (!flops.compare_exchange_weak(all, all + done)) {
    }
  });
  return flops.load() / (seconds_now() - began);
}

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
  };
  return {at(0.1), at(0.5), at(0.9)};
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace halfbyte

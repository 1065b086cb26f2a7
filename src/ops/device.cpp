// The table of devices: adding one is adding a line.
#include "halfbyte/device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "halfbyte/error.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/ref/ref_device.h"

namespace halfbyte {
namespace {

struct Entry {
  const char* name;
  bool (*available)();
  std::unique_ptr<Device> (*open)(const DeviceOptions&);
};

template <SimdLevel Level>
Entry cpu_entry(const char* name) {
  return {name, [] { return machine_has(Level); },
          [](const DeviceOptions& options) -> std::unique_ptr<Device> {
            return std::make_unique<CpuDevice>(Level, options, [](CpuDevice& device) {
              return std::make_shared<cpu::CpuOps>(device);
            });
          }};
}

// By rising speed.
const Entry kDevices[] = {
    {"ref", [] { return true; },
     [](const DeviceOptions&) -> std::unique_ptr<Device> {
       return std::make_unique<ref::RefDevice>();
     }},
    cpu_entry<SimdLevel::kScalar>("cpu.scalar"),
    cpu_entry<SimdLevel::kAvx2>("cpu.avx2"),
    cpu_entry<SimdLevel::kAvx512>("cpu.avx512"),
};

}  // namespace

std::vector<std::string> available_devices() {
  std::vector<std::string> names;
  for (const Entry& entry : kDevices)
    if (entry.available()) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<Device> open_device(std::string_view name, const DeviceOptions& options) {
  const std::string best = available_devices().back();
  if (name == "auto" || name == "cpu") name = best;
  for (const Entry& entry : kDevices) {
    if (name != entry.name) continue;
    if (!entry.available())
      throw Error(ErrorKind::kUnsupported, "device",
                  fmt::format("this machine cannot run {}; it can run {}", name,
                              fmt::join(available_devices(), ", ")));
    return entry.open(options);
  }
  throw Error(ErrorKind::kInput, "device",
              fmt::format("unknown device \"{}\"; known are auto, cpu, {}", name,
                          fmt::join(available_devices(), ", ")));
}

}  // namespace halfbyte

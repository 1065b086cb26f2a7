// The table of devices: adding one is adding a line.
#include "halfbyte/device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cuda/cuda_device.h"
#include "halfbyte/error.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/ref/ref_device.h"

namespace halfbyte {
namespace {

struct Entry {
  std::string_view name;  // "cuda:" stands for every name that begins so
  bool runs_models;       // has the dense operations; if not, it runs MoE operations alone
  std::vector<std::string> (*available)();  // names of this entry that `open` takes on this machine
  // Throws Error{kUnsupported} if this machine has no such device.
  std::unique_ptr<Device> (*open)(std::string_view name, const DeviceOptions&);
};

template <SimdLevel Level>
Entry cpu_entry(std::string_view name) {
  return {name, true,
          [] {
            return machine_has(Level)
                       ? std::vector<std::string>{fmt::format("cpu.{}", name_of(Level))}
                       : std::vector<std::string>{};
          },
          [](std::string_view, const DeviceOptions& options) -> std::unique_ptr<Device> {
            return std::make_unique<CpuDevice>(Level, options, [](CpuDevice& device) {
              return std::make_shared<cpu::CpuOps>(device);
            });
          }};
}

// By rising speed.
const Entry kDevices[] = {
    {"ref", true, [] { return std::vector<std::string>{"ref"}; },
     [](std::string_view, const DeviceOptions&) -> std::unique_ptr<Device> {
       return std::make_unique<ref::RefDevice>();
     }},
    cpu_entry<SimdLevel::kScalar>("cpu.scalar"),
    cpu_entry<SimdLevel::kAvx2>("cpu.avx2"),
    cpu_entry<SimdLevel::kAvx512>("cpu.avx512"),
#ifdef HALFBYTE_CUDA
    {"cuda:", false, available_cuda_devices,
     [](std::string_view name, const DeviceOptions&) { return open_cuda_device(name); }},
#else
    {"cuda:", false, [] { return std::vector<std::string>(); },
     [](std::string_view name, const DeviceOptions&) -> std::unique_ptr<Device> {
       throw Error(ErrorKind::kUnsupported, "device",
                   fmt::format("{}: this program was built without CUDA (HALFBYTE_CUDA); it can "
                               "run {}",
                               name, fmt::join(available_devices(), ", ")));
     }},
#endif
};

std::vector<std::string> names_of_devices(bool only_for_models) {
  std::vector<std::string> names;
  for (const Entry& entry : kDevices)
    if (entry.runs_models || !only_for_models)
      for (std::string& name : entry.available()) names.push_back(std::move(name));
  return names;
}

}  // namespace

std::vector<std::string> available_devices() { return names_of_devices(true); }

std::vector<std::string> available_moe_devices() { return names_of_devices(false); }

std::unique_ptr<Device> open_device(std::string_view name, const DeviceOptions& options) {
  const std::string best = available_devices().back();
  if (name == "auto" || name == "cpu") name = best;
  if (name == "cuda") name = "cuda:0";
  for (const Entry& entry : kDevices)
    if (entry.name.ends_with(':') ? name.starts_with(entry.name) : name == entry.name)
      return entry.open(name, options);
  throw Error(ErrorKind::kInput, "device",
              fmt::format("unknown device \"{}\"; known are auto, cpu, {}", name,
                          fmt::join(available_moe_devices(), ", ")));
}

}  // namespace halfbyte

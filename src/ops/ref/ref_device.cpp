#include "ops/ref/ref_device.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

#include "halfbyte/error.h"

namespace halfbyte::ref {

Buffer RefDevice::allocate(size_t bytes) {
  constexpr size_t kAlign = 64;
  const size_t rounded = (bytes + kAlign) / kAlign * kAlign;
  void* data = std::aligned_alloc(kAlign, rounded);
  if (data == nullptr)
    throw Error(ErrorKind::kResource, "ref", fmt::format("{} bytes cannot be allocated", bytes));
  std::memset(data, 0, rounded);
  return Buffer(data, bytes, [](void* memory, size_t) { std::free(memory); });
}

void RefDevice::copy_to_device(void* to, const void* from_host, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from_host, bytes);
}

void RefDevice::copy_to_host(void* to_host, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to_host, from, bytes);
}

}  // namespace halfbyte::ref

// Packing for backends that pack on the host: one expert after the other, its tensors read out of
// the device's memory, packed and written back.
#pragma once

#include <cstddef>

#include "halfbyte/device.h"
#include "halfbyte/moe.h"
#include "moe/device_packer.h"

namespace halfbyte::c_api {

// As DevicePacker::pack. Throws Error{kInput} that names the tensor, "expert 3 up".
void pack_through_host(const MoePlan& plan, Device& device, const StridedExperts& experts,
                       int first, int count, void* packed);

}  // namespace halfbyte::c_api

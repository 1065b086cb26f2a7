#include "formats/check_matrix.h"

#include <fmt/format.h>

#include <cmath>

#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "halfbyte/error.h"

namespace halfbyte {

int64_t scale_group(WeightFormat format) {
  switch (format) {
    case WeightFormat::kNvfp4:
      return 16;
    case WeightFormat::kMxfp4:
      return 32;
    default:
      return 1;
  }
}

namespace {

[[noreturn]] void refuse(const MatrixView& weight, const std::string& message) {
  throw Error(ErrorKind::kInput, std::string(weight.name), message);
}

// Finds the first scale byte for which `bad` holds, and names its row and group.
template <class Bad>
void check_scale_bytes(const MatrixView& weight, const char* expected, Bad bad) {
  const auto* scales = static_cast<const uint8_t*>(weight.scales);
  const int64_t groups = weight.cols / scale_group(weight.format);
  for (int64_t i = 0; i < weight.rows * groups; ++i)
    if (bad(scales[i]))
      refuse(weight, fmt::format("block scale byte 0x{:02X} at row {}, group {}: expected {}",
                                 scales[i], i / groups, i % groups, expected));
}

}  // namespace

void check_matrix(const MatrixView& weight) {
  if (weight.empty()) refuse(weight, "no weight data");
  if (weight.rows <= 0 || weight.cols <= 0)
    refuse(weight, fmt::format("shape ({}, {}): expected at least one row and one column",
                               weight.rows, weight.cols));
  const int64_t group = scale_group(weight.format);
  if (weight.cols % group != 0)
    refuse(weight, fmt::format("{} columns: {} needs a multiple of {}", weight.cols,
                               name_of(weight.format), group));
  const bool has_scales =
      weight.format != WeightFormat::kBf16 && weight.format != WeightFormat::kF32;
  if (has_scales && weight.scales == nullptr) refuse(weight, "no block scales");
  switch (weight.format) {
    case WeightFormat::kNvfp4:
      if (!(std::isfinite(weight.global_scale) && weight.global_scale > 0))
        refuse(weight, fmt::format("global scale {}: expected a finite number above 0",
                                   weight.global_scale));
      check_scale_bytes(weight, "a finite number, not negative",
                        [](uint8_t byte) { return e4m3_is_nan(byte) || (byte & 0x80) != 0; });
      break;
    case WeightFormat::kMxfp4:
      check_scale_bytes(weight, "a number, 0xFF is NaN",
                        [](uint8_t byte) { return byte == kE8m0Nan; });
      break;
    default:
      break;
  }
}

}  // namespace halfbyte

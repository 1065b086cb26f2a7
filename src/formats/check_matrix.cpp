#include "formats/check_matrix.h"

#include <fmt/format.h>

#include <cmath>

#include "formats/stored_matrix.h"
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
  if (weight.format == WeightFormat::kNvfp4 &&
      !(std::isfinite(weight.global_scale) && weight.global_scale > 0))
    refuse(weight,
           fmt::format("global scale {}: expected a finite number above 0", weight.global_scale));
  check_scales(weight);
}

}  // namespace halfbyte

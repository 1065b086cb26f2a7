#include "formats/stored_matrix.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "formats/decode.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/fp8_block.h"

namespace halfbyte {

namespace {

// Rows and columns; keeps every product of two far from 2^63.
constexpr int64_t kMaxExtent = int64_t{1} << 30;

constexpr const char* kUnsupportedParts[] = {".pre_quant_scale", ".svdquant_lora_a",
                                             ".weight_zero_point", ".weight_g_idx"};

[[noreturn]] void fail(const StoredTensor& tensor, const std::string& message,
                       ErrorKind kind = ErrorKind::kInput) {
  throw Error(kind, tensor.where(), message);
}

std::string shape_of(const StoredTensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape, ", "));
}

// The tensors of one module.
struct Parts {
  const StoredTensor* weight = nullptr;
  const StoredTensor* packed = nullptr;        // weight_packed
  const StoredTensor* scale = nullptr;         // weight_scale
  const StoredTensor* scale_2 = nullptr;       // weight_scale_2: multiplier
  const StoredTensor* global_scale = nullptr;  // weight_global_scale: its reciprocal

  Parts(const Checkpoint& checkpoint, std::string_view module) {
    std::string name(module);
    const auto part = [&](std::string_view suffix) {
      name.resize(module.size());
      return checkpoint.find(name.append(suffix));
    };
    weight = part(".weight");
    packed = part(".weight_packed");
    scale = part(".weight_scale");
    scale_2 = part(".weight_scale_2");
    global_scale = part(".weight_global_scale");
    if (scale != nullptr || packed != nullptr)
      for (const char* suffix : kUnsupportedParts)
        if (const StoredTensor* tensor = part(suffix))
          fail(*tensor, "belongs to a quantisation that halfbyte does not run",
               ErrorKind::kUnsupported);
  }
  bool none() const { return !weight && !packed && !scale && !scale_2 && !global_scale; }
};

void check_is_matrix(const StoredTensor& tensor) {
  const auto is_extent = [](int64_t extent) { return extent > 0 && extent <= kMaxExtent; };
  if (tensor.shape.size() != 2 || !is_extent(tensor.shape[0]) || !is_extent(tensor.shape[1]))
    fail(tensor, fmt::format("has shape {}, expected a matrix", shape_of(tensor)));
}

void refuse_leftover(const StoredTensor* leftover, const StoredTensor& beside) {
  if (leftover != nullptr)
    fail(*leftover, fmt::format("does not go with {} ({}): the matrix is stored twice, or in two "
                                "formats",
                                beside.name, name_of(beside.dtype)));
}

float read_global_scale(const StoredTensor& tensor, bool reciprocal) {
  if (tensor.dtype != DType::kF32 || tensor.elements() != 1)
    fail(tensor,
         fmt::format("is {} {}, expected one F32", name_of(tensor.dtype), shape_of(tensor)));
  float stored = 0;
  std::memcpy(&stored, tensor.bytes.data(), sizeof stored);
  if (!std::isfinite(stored) || stored <= 0)
    fail(tensor, fmt::format("is {}, expected a finite number above 0", stored));
  const float scale = reciprocal ? 1.0f / stored : stored;
  if (scale >= kGlobalScaleLimit)
    fail(tensor, fmt::format("is {}, so the matrix would be scaled by {}: expected below {}; is it "
                             "the {}?",
                             stored, scale, kGlobalScaleLimit,
                             reciprocal ? "multiplier instead of its reciprocal"
                                        : "reciprocal instead of the multiplier"));
  if (!std::isnormal(scale))
    fail(tensor, fmt::format("is {}, so the matrix would be scaled by {}: not a normal fp32 number",
                             stored, scale));
  return scale;
}

// weight BF16, F32.
MatrixView read_plain(const Parts& parts) {
  const StoredTensor& weight = *parts.weight;
  for (const StoredTensor* leftover :
       {parts.packed, parts.scale, parts.scale_2, parts.global_scale})
    refuse_leftover(leftover, weight);
  check_is_matrix(weight);
  check_aligned(weight);
  MatrixView view;
  view.format = weight.dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16;
  view.rows = weight.shape[0];
  view.cols = weight.shape[1];
  view.values = weight.bytes.data();
  view.name = weight.name;
  return view;
}

// weight F8_E4M3 with fp32 scales of 128 x 128 tiles.
MatrixView read_fp8(const Parts& parts) {
  const StoredTensor& weight = *parts.weight;
  for (const StoredTensor* leftover : {parts.packed, parts.scale_2, parts.global_scale})
    refuse_leftover(leftover, weight);
  check_is_matrix(weight);
  if (parts.scale == nullptr) fail(weight, "is F8_E4M3, but has no weight_scale");
  const StoredTensor& scale = *parts.scale;
  const int64_t rows = fp8_tiles(weight.shape[0]), cols = fp8_tiles(weight.shape[1]);
  const std::vector<int64_t> flat = {rows, cols}, spread = {rows, 1, cols, 1};
  if (scale.dtype != DType::kF32 || (scale.shape != flat && scale.shape != spread))
    fail(scale, fmt::format("is {} {}, expected F32 [{}, 1, {}, 1]: one per 128 x 128 tile of {}",
                            name_of(scale.dtype), shape_of(scale), rows, cols, shape_of(weight)));
  check_aligned(scale);
  MatrixView view;
  view.format = WeightFormat::kFp8Block;
  view.rows = weight.shape[0];
  view.cols = weight.shape[1];
  view.values = weight.bytes.data();
  view.scales = scale.bytes.data();
  view.name = weight.name;
  return view;
}

// Packed E2M1 codes with a scale byte per 16 (NVFP4) or per 32 (MXFP4).
MatrixView read_fp4(const Parts& parts) {
  const StoredTensor& codes = parts.packed != nullptr ? *parts.packed : *parts.weight;
  if (parts.packed != nullptr) refuse_leftover(parts.weight, codes);
  if (codes.dtype != DType::kU8 && codes.dtype != DType::kI8)
    fail(codes, fmt::format("is {}, expected U8: two codes a byte", name_of(codes.dtype)));
  check_is_matrix(codes);
  if (parts.scale == nullptr) fail(codes, "has packed codes, but no weight_scale");
  const StoredTensor& scale = *parts.scale;

  const int64_t rows = codes.shape[0], cols = 2 * codes.shape[1];
  std::vector<int64_t> scale_shape = scale.shape;
  if (scale_shape.size() == 3 && scale_shape[0] == 1) scale_shape.erase(scale_shape.begin());
  if (scale_shape.size() != 2 || scale_shape[0] != rows)
    fail(scale, fmt::format("has shape {}, expected {} rows as {}", shape_of(scale), rows,
                            shape_of(codes)));
  const int64_t groups = scale_shape[1];
  const bool per_16 = cols % 16 == 0 && groups == cols / 16;
  const bool per_32 = cols % 32 == 0 && groups == cols / 32;
  if (!per_16 && !per_32)
    fail(scale,
         fmt::format("has {} scales a row for {} columns, expected one per 16 (NVFP4: {}) or "
                     "per 32 (MXFP4: {}) and columns that this divides",
                     groups, cols, cols / 16.0, cols / 32.0));
  const DType wanted = per_16 ? DType::kF8E4M3 : DType::kF8E8M0;
  if (scale.dtype != wanted && scale.dtype != DType::kU8)
    fail(scale, fmt::format("is {}, but one scale per {} is {} or U8", name_of(scale.dtype),
                            per_16 ? 16 : 32, name_of(wanted)));

  MatrixView view;
  view.format = per_16 ? WeightFormat::kNvfp4 : WeightFormat::kMxfp4;
  view.rows = rows;
  view.cols = cols;
  view.values = codes.bytes.data();
  view.scales = scale.bytes.data();
  view.name = codes.name;
  if (per_32) {
    refuse_leftover(parts.scale_2, scale);
    refuse_leftover(parts.global_scale, scale);
  } else {
    if (parts.scale_2 != nullptr) refuse_leftover(parts.global_scale, *parts.scale_2);
    if (parts.scale_2 == nullptr && parts.global_scale == nullptr)
      fail(codes, "is NVFP4, but has neither weight_scale_2 nor weight_global_scale");
    view.global_scale = parts.scale_2 != nullptr ? read_global_scale(*parts.scale_2, false)
                                                 : read_global_scale(*parts.global_scale, true);
  }
  return view;
}

// Sixteen bytes at a time, in the compiler's vectors (any processor). A comparison gives -1 where
// it holds, so counters go down; a lane is emptied after 255 rounds, before it can wrap.
using Bytes = uint8_t __attribute__((vector_size(16)));
constexpr int64_t kLanes = sizeof(Bytes);
constexpr int64_t kRounds = 255;
constexpr uint8_t kNeutral = 0x38;  // an ordinary scale, as E4M3 and as E8M0

// Adds to the four lane counters what one vector of scales holds.
struct E4m3Predicates {
  static void add(Bytes codes, Bytes& nan, Bytes& negative, Bytes& zero, Bytes& subnormal) {
    const Bytes magnitude = codes & 0x7F;
    const Bytes is_nan = Bytes(magnitude == 0x7F), is_zero = Bytes(magnitude == 0);
    nan += is_nan;
    negative += Bytes(codes != magnitude) & ~is_nan;
    zero += is_zero;
    subnormal += Bytes(magnitude < 0x08) & ~is_zero;
  }
};
struct E8m0Predicates {
  static void add(Bytes codes, Bytes& nan, Bytes&, Bytes&, Bytes& subnormal) {
    nan += Bytes(codes == kE8m0Nan);
    subnormal += Bytes(codes == 0);
  }
};

template <class Predicates>
ScaleCounts count_bytes(const uint8_t* bytes, int64_t count) {
  ScaleCounts sums;
  sums.total = count;
  for (int64_t begin = 0; begin < count;) {
    Bytes nan{}, negative{}, zero{}, subnormal{};
    const int64_t end = std::min(begin + kRounds * kLanes, count);
    for (; begin < end; begin += kLanes) {
      Bytes codes;
      if (begin + kLanes > count) {
        codes = Bytes{} + kNeutral;
        std::memcpy(&codes, bytes + begin, static_cast<size_t>(count - begin));
      } else {
        std::memcpy(&codes, bytes + begin, sizeof codes);
      }
      Predicates::add(codes, nan, negative, zero, subnormal);
    }
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sums.nan += static_cast<uint8_t>(-nan[lane]);
      sums.negative += static_cast<uint8_t>(-negative[lane]);
      sums.zero += static_cast<uint8_t>(-zero[lane]);
      sums.subnormal += static_cast<uint8_t>(-subnormal[lane]);
    }
  }
  return sums;
}

ScaleCounts count_floats(const float* values, int64_t count) {
  ScaleCounts sums;
  sums.total = count;
  for (int64_t i = 0; i < count; ++i) {
    const float value = values[i];
    sums.nan += !std::isfinite(value);
    sums.negative += std::signbit(value) && !std::isnan(value);
    sums.zero += value == 0;
    sums.subnormal += std::fpclassify(value) == FP_SUBNORMAL;
  }
  return sums;
}

// Says which scale is NaN, Inf or negative, if one is.
std::optional<std::string> find_bad_scale(const MatrixView& weight) {
  const ScaleCounts counts = count_scales(weight);
  if (counts.nan == 0 && counts.negative == 0) return std::nullopt;
  const bool is_float = weight.format == WeightFormat::kFp8Block;
  const auto* bytes = static_cast<const uint8_t*>(weight.scales);
  const auto value = [&](int64_t i) {
    if (is_float) return static_cast<const float*>(weight.scales)[i];
    return weight.format == WeightFormat::kNvfp4 ? e4m3_to_float(bytes[i])
                                                 : e8m0_to_float(bytes[i]);
  };
  int64_t index = 0;
  while (std::isfinite(value(index)) && !std::signbit(value(index))) ++index;
  const int64_t columns = is_float ? fp8_tiles(weight.cols) : counts.total / weight.rows;
  return fmt::format(
      "scale [{}, {}] is {}, expected a finite number that is not negative ({} of {} "
      "scales are wrong)",
      index / columns, index % columns,
      is_float ? fmt::format("{}", value(index)) : fmt::format("byte 0x{:02X}", bytes[index]),
      counts.nan + counts.negative, counts.total);
}
}  // namespace

std::optional<MatrixView> find_matrix(const Checkpoint& checkpoint, std::string_view module) {
  const Parts parts(checkpoint, module);
  if (parts.none()) return std::nullopt;
  if (parts.packed != nullptr) return read_fp4(parts);
  if (parts.weight == nullptr) {
    for (const StoredTensor* tensor : {parts.scale, parts.scale_2, parts.global_scale})
      if (tensor != nullptr) fail(*tensor, "is a scale without a weight");
  }
  switch (parts.weight->dtype) {
    case DType::kBf16:
    case DType::kF32:
      return read_plain(parts);
    case DType::kF8E4M3:
      return read_fp8(parts);
    case DType::kU8:
    case DType::kI8:
      return read_fp4(parts);
    default:
      fail(*parts.weight,
           fmt::format("is {}; halfbyte runs weights in BF16, F32, F8_E4M3 and packed FP4 (U8)",
                       name_of(parts.weight->dtype)),
           ErrorKind::kUnsupported);
  }
}

MatrixView get_matrix(const Checkpoint& checkpoint, std::string_view module) {
  const auto view = find_matrix(checkpoint, module);
  if (!view)
    throw Error(ErrorKind::kInput, checkpoint.directory().string(),
                fmt::format("matrix {} is missing: neither {}.weight nor {}.weight_packed", module,
                            module, module));
  if (const auto bad = find_bad_scale(*view))
    fail(checkpoint.get(std::string(module) + ".weight_scale"), *bad);
  return *view;
}

MatrixView get_matrix(const Checkpoint& checkpoint, std::string_view module, int64_t rows,
                      int64_t cols) {
  const MatrixView view = get_matrix(checkpoint, module);
  if (view.rows != rows || view.cols != cols)
    fail(checkpoint.get(view.name), fmt::format("is a matrix of [{}, {}], expected [{}, {}]",
                                                view.rows, view.cols, rows, cols));
  return view;
}

ScaleCounts& ScaleCounts::operator+=(const ScaleCounts& other) {
  total += other.total;
  nan += other.nan;
  negative += other.negative;
  zero += other.zero;
  subnormal += other.subnormal;
  return *this;
}

ScaleCounts count_scales(const MatrixView& weight) {
  const auto count = static_cast<int64_t>(scale_bytes(weight));
  const auto* bytes = static_cast<const uint8_t*>(weight.scales);
  switch (weight.format) {
    case WeightFormat::kF32:
    case WeightFormat::kBf16:
      return {};
    case WeightFormat::kFp8Block:
      return count_floats(static_cast<const float*>(weight.scales),
                          count / static_cast<int64_t>(sizeof(float)));
    case WeightFormat::kNvfp4:
      return count_bytes<E4m3Predicates>(bytes, count);
    case WeightFormat::kMxfp4:
      return count_bytes<E8m0Predicates>(bytes, count);
  }
  return {};
}

void check_scales(const MatrixView& weight) {
  if (const auto bad = find_bad_scale(weight))
    throw Error(ErrorKind::kInput, std::string(weight.name), *bad);
}

}  // namespace halfbyte

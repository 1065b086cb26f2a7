// The table of backends: which activation with which weight format on which device, and what to say
// when the answer is no.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "formats/check_matrix.h"
#include "halfbyte/error.h"
#include "moe/backend.h"

namespace halfbyte {

namespace {

struct Backend {
  const char* name;
  const char* device_prefix;  // runs on devices whose name starts so
  std::vector<ActivationKind> activations;
  std::vector<WeightFormat> formats;
  std::unique_ptr<MoePlan> (*plan)(const MoeShape&, const MoeLimits&, Device&);
};

const std::vector<ActivationKind> kEveryActivation = {
    ActivationKind::kSwiglu, ActivationKind::kSwigluClamped, ActivationKind::kGegluTanh,
    ActivationKind::kRelu2, ActivationKind::kSitu};
const std::vector<WeightFormat> kEveryExpertFormat = {WeightFormat::kBf16, WeightFormat::kNvfp4,
                                                      WeightFormat::kMxfp4};
const std::vector<WeightFormat> kFourBits = {WeightFormat::kNvfp4, WeightFormat::kMxfp4};

// NOTE: without CUDA no device is named cuda: the rows that need one refuse before they would plan.
#ifdef HALFBYTE_CUDA
#define HB_WITH_CUDA(plan) plan
#else
#define HB_WITH_CUDA(plan) nullptr
#endif

// The activation guard. "auto" takes the first row that fits, so faster ones come first.
const std::vector<Backend>& backends() {
  static const std::vector<Backend> table = {
      {"cpu", "cpu", kEveryActivation, kEveryExpertFormat, plan_moe_cpu},
      {"hopper", "cuda", kEveryActivation, kFourBits, HB_WITH_CUDA(plan_moe_hopper)},
      {"dequant", "cuda", kEveryActivation, kEveryExpertFormat, HB_WITH_CUDA(plan_moe_dequant)},
      // NOTE: the definition reads host memory, so it also runs on any CPU device, when asked for.
      {"reference", "ref", kEveryActivation, kEveryExpertFormat, plan_moe_ref},
  };
  return table;
}

// What SGLang calls the kernels that "hopper" stands in for.
std::string_view resolve_alias(std::string_view backend) {
  if (backend != "flashinfer_cutedsl" && backend != "marlin") return backend;
  spdlog::info("moe backend {} means hopper here", backend);
  return "hopper";
}

template <class T>
bool contains(const std::vector<T>& list, T wanted) {
  for (const T& item : list)
    if (item == wanted) return true;
  return false;
}

bool runs_on(const Backend& backend, const std::string& device) {
  return device.starts_with(backend.device_prefix) ||
         (backend.plan == plan_moe_ref && device.starts_with("cpu"));
}

// Why `backend` cannot do it; empty if it can.
std::string why_not(const Backend& backend, const MoeShape& shape, const std::string& device) {
  if (!runs_on(backend, device)) return fmt::format("does not run on device {}", device);
  if (!contains(backend.activations, shape.activation.kind))
    return fmt::format("has no activation {}", name_of(shape.activation.kind));
  if (!contains(backend.formats, shape.weights))
    return fmt::format("has no weight format {}", name_of(shape.weights));
  return "";
}

[[noreturn]] void refuse(const MoeShape& shape, const std::string& device,
                         std::string_view wanted) {
  std::vector<std::string> reasons, working, formats;
  for (const Backend& backend : backends()) {
    const std::string reason = why_not(backend, shape, device);
    if (reason.empty())
      working.emplace_back(backend.name);
    else if (wanted == "auto" || wanted == backend.name)
      reasons.push_back(fmt::format("{} {}", backend.name, reason));
    if (runs_on(backend, device) && formats.empty())
      for (WeightFormat format : backend.formats) formats.emplace_back(name_of(format));
  }
  std::string remedy = "device cpu";
  if (!working.empty())
    remedy = fmt::format("backend {}", fmt::join(working, " or "));
  else if (!formats.empty())
    remedy = fmt::format("weights in one of {}", fmt::join(formats, ", "));
  throw Error(ErrorKind::kUnsupported, "moe backend",
              fmt::format("{}; what would work: {}", fmt::join(reasons, ", "), remedy));
}

void check_shape(const MoeShape& shape, const MoeLimits& limits) {
  const auto positive = [](const char* field, int value) {
    if (value <= 0)
      throw Error(ErrorKind::kInput, fmt::format("moe shape {}", field),
                  fmt::format("{}: expected at least 1", value));
  };
  positive("num_experts", shape.num_experts);
  positive("top_k", shape.top_k);
  positive("hidden", shape.hidden);
  positive("intermediate", shape.intermediate);
  positive("max_tokens", limits.max_tokens);
  if (limits.num_global_experts != 0 && limits.num_global_experts < shape.num_experts)
    throw Error(ErrorKind::kInput, "moe limits num_global_experts",
                fmt::format("{}: expected 0 (all are here) or at least the {} that are here",
                            limits.num_global_experts, shape.num_experts));
  const auto whole_groups = [&](const char* field, int value) {
    const int64_t group = scale_group(shape.weights);
    if (value % group != 0)
      throw Error(
          ErrorKind::kInput, fmt::format("moe shape {}", field),
          fmt::format("{}: {} needs a multiple of {}", value, name_of(shape.weights), group));
  };
  whole_groups("hidden", shape.hidden);
  whole_groups("intermediate", shape.intermediate);
  check_activation(shape.activation);
}

void check_part(const MatrixView& matrix, const char* part, WeightFormat format, int rows,
                int cols) {
  const std::string where = matrix.name.empty() ? part : std::string(matrix.name);
  if (matrix.empty()) throw Error(ErrorKind::kInput, where, "no weight data");
  if (matrix.format != format)
    throw Error(ErrorKind::kInput, where,
                fmt::format("{} weights in a layer of {}: all experts of a layer share one format",
                            name_of(matrix.format), name_of(format)));
  if (matrix.rows != rows || matrix.cols != cols)
    throw Error(ErrorKind::kInput, where,
                fmt::format("shape ({}, {}): expected ({}, {}) for {}", matrix.rows, matrix.cols,
                            rows, cols, part));
  check_matrix(matrix);
}

}  // namespace

std::unique_ptr<MoePlan> plan_moe(const MoeShape& shape, const MoeLimits& limits, Device& device,
                                  std::string_view backend) {
  check_shape(shape, limits);
  backend = resolve_alias(backend);
  const std::string device_name = device.name();
  if (backend == "auto") {
    // On "ref" only the definition, elsewhere the first that can. A backend may find only when it
    // plans that a shape is too large for it.
    std::optional<Error> first_refusal;
    for (const Backend& candidate : backends()) {
      if (!why_not(candidate, shape, device_name).empty()) continue;
      try {
        return candidate.plan(shape, limits, device);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kUnsupported) throw;
        if (!first_refusal) first_refusal = error;
      }
    }
    if (first_refusal) throw *first_refusal;
    refuse(shape, device_name, backend);
  }
  std::vector<std::string> known;
  for (const Backend& candidate : backends()) {
    if (candidate.name == backend) {
      if (!why_not(candidate, shape, device_name).empty()) refuse(shape, device_name, backend);
      return candidate.plan(shape, limits, device);
    }
    known.emplace_back(candidate.name);
  }
  throw Error(
      ErrorKind::kInput, "moe backend",
      fmt::format("unknown name \"{}\": expected auto, {}", backend, fmt::join(known, ", ")));
}

void pack_experts(const ExpertSource& source, const MoePlan& plan, std::span<std::byte> packed) {
  check_packed(packed.data(), packed.size(), plan.layout());
  const size_t expert_bytes = plan.layout().expert_bytes;
  for (int e = 0; e < plan.shape().num_experts; ++e)
    plan.pack_expert(source(e),
                     packed.subspan(static_cast<size_t>(e) * expert_bytes, expert_bytes));
}

void check_expert(const ExpertWeights& expert, const MoeShape& shape, const MoeLayout& layout,
                  size_t packed_bytes) {
  if (packed_bytes != layout.expert_bytes)
    throw Error(ErrorKind::kInput, "packed expert",
                fmt::format("{} bytes: layout {} needs {}", packed_bytes, layout.name,
                            layout.expert_bytes));
  if (shape.activation.gated())
    check_part(expert.gate, "gate", shape.weights, shape.intermediate, shape.hidden);
  else if (!expert.gate.empty())
    throw Error(
        ErrorKind::kInput, std::string(expert.gate.name),
        fmt::format("a gate matrix, but activation {} has none", name_of(shape.activation.kind)));
  check_part(expert.up, "up", shape.weights, shape.intermediate, shape.hidden);
  check_part(expert.down, "down", shape.weights, shape.hidden, shape.intermediate);
}

void check_packed(const void* packed, size_t packed_bytes, const MoeLayout& layout) {
  if (packed == nullptr || packed_bytes != layout.packed_bytes)
    throw Error(ErrorKind::kInput, "packed experts",
                fmt::format("{} bytes: layout {} needs {}", packed == nullptr ? 0 : packed_bytes,
                            layout.name, layout.packed_bytes));
}

void check_call(const Routing& routing, const TensorView& x, const TensorView& y,
                const MoeShape& shape, const MoeLimits& limits) {
  const auto expect = [](bool right, const char* where, const std::string& came) {
    if (!right) throw Error(ErrorKind::kInput, where, came);
  };
  const int tokens = routing.num_tokens;
  expect(tokens >= 0 && tokens <= limits.max_tokens, "num_tokens",
         fmt::format("{}: expected 0 to {}", tokens, limits.max_tokens));
  const auto check_rows = [&](const TensorView& rows, const char* name) {
    expect(rows.rows == tokens && rows.cols == shape.hidden, name,
           fmt::format("shape ({}, {}): expected ({}, {})", rows.rows, rows.cols, tokens,
                       shape.hidden));
    expect(rows.dtype == DType::kBf16 || rows.dtype == DType::kF32, name,
           fmt::format("{}: expected BF16 or F32", name_of(rows.dtype)));
    expect(tokens == 0 || (rows.data != nullptr && rows.stride >= rows.cols), name,
           fmt::format("no data, or rows {} elements apart: expected {} at least", rows.stride,
                       rows.cols));
  };
  check_rows(x, "x");
  check_rows(y, "y");
  expect(tokens == 0 || (routing.topk_ids != nullptr && routing.topk_weights != nullptr), "routing",
         "no ids or no weights");
}

}  // namespace halfbyte

#include "moe/case_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>

#include "base/json.h"
#include "halfbyte/error.h"

namespace halfbyte {

namespace {

[[noreturn]] void refuse(const SafetensorsFile& file, const std::string& tensor,
                         const std::string& message) {
  throw Error(ErrorKind::kInput, fmt::format("{}: {}", file.file().path().string(), tensor),
              message);
}

const StoredTensor& get_tensor(const SafetensorsFile& file, const std::string& name,
                               std::initializer_list<DType> dtypes, size_t rank) {
  const StoredTensor& tensor = file.get(name);
  bool known = false;
  for (DType dtype : dtypes) known = known || tensor.dtype == dtype;
  if (!known)
    refuse(file, name, fmt::format("dtype {} is not expected here", name_of(tensor.dtype)));
  if (tensor.shape.size() != rank)
    refuse(file, name, fmt::format("{} dimensions: expected {}", tensor.shape.size(), rank));
  check_aligned(tensor);
  return tensor;
}

float get_scalar(const SafetensorsFile& file, const std::string& name) {
  const StoredTensor& tensor = file.get(name);
  if (tensor.dtype != DType::kF32 || tensor.elements() != 1)
    refuse(file, name, "expected one F32 number");
  check_aligned(tensor);
  return *tensor.as<float>();
}

MatrixView read_matrix(const SafetensorsFile& file, const std::string& name) {
  const StoredTensor& weight = get_tensor(file, name + ".weight", {DType::kBf16, DType::kU8}, 2);
  MatrixView view;
  view.name = weight.name;
  view.values = weight.bytes.data();
  view.rows = weight.shape[0];
  view.cols = weight.shape[1];
  if (weight.dtype == DType::kBf16) {
    view.format = WeightFormat::kBf16;
    return view;
  }
  view.cols *= 2;  // two codes a byte
  const StoredTensor& scales =
      get_tensor(file, name + ".weight_scale", {DType::kF8E4M3, DType::kF8E8M0}, 2);
  view.format = scales.dtype == DType::kF8E4M3 ? WeightFormat::kNvfp4 : WeightFormat::kMxfp4;
  view.scales = scales.bytes.data();
  const int64_t group = view.format == WeightFormat::kNvfp4 ? 16 : 32;
  if (scales.shape[0] != view.rows || scales.shape[1] * group != view.cols)
    refuse(file, name + ".weight_scale",
           fmt::format("shape ({}, {}): expected ({}, {})", scales.shape[0], scales.shape[1],
                       view.rows, view.cols / group));
  if (view.format == WeightFormat::kNvfp4)
    view.global_scale = get_scalar(file, name + ".weight_scale_2");
  return view;
}

constexpr std::array<std::string_view, 5> kParameters = {"beta", "linear_beta", "alpha", "limit",
                                                         "up_bias"};

Activation read_activation(const SafetensorsFile& file) {
  const auto found = file.metadata().find("case");
  if (found == file.metadata().end()) refuse(file, "metadata", "no entry \"case\"");
  const JsonDocument document =
      JsonDocument::from_text(found->second, file.file().path().string() + ": metadata case");
  const Json root = document.root();
  Activation activation = parse_activation(root.get("activation").string());
  const auto params = root.find_value("params");
  if (!params) return activation;
  params->for_each_member([](std::string_view key, const Json& value) {
    if (std::find(kParameters.begin(), kParameters.end(), key) == kParameters.end())
      value.fail(fmt::format("is not known, expected {}", fmt::join(kParameters, ", ")));
    if (value.is_null() && key != "linear_beta")
      value.fail("is null, expected a number; without the key the default counts");
  });
  // A key that is there and null means "none" for linear_beta.
  if (const auto value = params->find("linear_beta"); value && value->is_null())
    activation.linear_beta.reset();
  const auto set = [&](const char* key, auto&& assign) {
    if (const auto value = params->find_value(key)) assign(static_cast<float>(value->number()));
  };
  set("beta", [&](float v) { activation.beta = v; });
  set("linear_beta", [&](float v) { activation.linear_beta = v; });
  set("alpha", [&](float v) { activation.alpha = v; });
  set("limit", [&](float v) { activation.limit = v; });
  set("up_bias", [&](float v) { activation.up_bias = v; });
  return activation;
}

// The name of an expert's matrix under either convention.
std::string find_matrix(const SafetensorsFile& file, const std::string& expert, const char* native,
                        const char* usual) {
  for (const char* name : {native, usual})
    if (file.find(expert + name + ".weight") != nullptr) return expert + name;
  return "";
}

// A hole in the numbering would otherwise end the layer early, and ids behind it would be skipped
// without a word.
void check_all_read(const SafetensorsFile& file, const std::vector<ExpertWeights>& experts) {
  std::set<std::string_view> read;  // "experts.0.w1.weight"
  for (const ExpertWeights& expert : experts)
    for (const MatrixView& matrix : {expert.gate, expert.up, expert.down}) read.insert(matrix.name);
  for (const StoredTensor& tensor : file.tensors()) {
    if (!tensor.name.starts_with("experts.")) continue;
    const std::string_view module = tensor.name.substr(0, tensor.name.rfind('.'));
    if (!read.contains(fmt::format("{}.weight", module)))
      refuse(file, std::string(tensor.name),
             fmt::format("belongs to none of the experts 0 to {}, which are numbered without a "
                         "hole and have w1 or gate_proj, w3 or up_proj, w2 or down_proj",
                         experts.size() - 1));
  }
}

}  // namespace

MoeCase::MoeCase(const std::filesystem::path& path) : file(path) {
  shape.activation = read_activation(file);

  const StoredTensor& hidden = get_tensor(file, "hidden", {DType::kBf16, DType::kF32}, 2);
  const int64_t num_tokens = hidden.shape[0];
  // NOTE: TensorView has no read-only twin; `run` does not write through x.
  x = TensorView::of(const_cast<std::byte*>(hidden.bytes.data()), hidden.dtype, num_tokens,
                     hidden.shape[1]);
  const StoredTensor& ids = get_tensor(file, "topk_ids", {DType::kI32}, 2);
  const StoredTensor& weights = get_tensor(file, "topk_weights", {DType::kF32}, 2);
  if (ids.shape[0] != num_tokens || ids.shape != weights.shape)
    refuse(file, "topk_ids", "expected (T, K) with the T of hidden and the shape of topk_weights");
  routing = {ids.as<int32_t>(), weights.as<float>(), static_cast<int>(num_tokens)};

  for (int e = 0;; ++e) {
    const std::string prefix = fmt::format("experts.{}.", e);
    const std::string gate = find_matrix(file, prefix, "w1", "gate_proj");
    const std::string up = find_matrix(file, prefix, "w3", "up_proj");
    const std::string down = find_matrix(file, prefix, "w2", "down_proj");
    if (up.empty() && down.empty()) break;
    if (up.empty() || down.empty()) refuse(file, prefix, "needs both an up and a down matrix");
    ExpertWeights expert;
    if (!gate.empty()) expert.gate = read_matrix(file, gate);
    expert.up = read_matrix(file, up);
    expert.down = read_matrix(file, down);
    experts.push_back(expert);
  }
  if (experts.empty()) refuse(file, "experts.0", "no experts");
  check_all_read(file, experts);

  shape.num_experts = static_cast<int>(experts.size());
  shape.top_k = static_cast<int>(ids.shape[1]);
  shape.hidden = static_cast<int>(hidden.shape[1]);
  shape.intermediate = static_cast<int>(experts[0].up.rows);
  shape.weights = experts[0].up.format;
}

}  // namespace halfbyte

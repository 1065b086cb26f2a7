#include "model/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "base/threads.h"
#include "formats/decode.h"
#include "halfbyte/moe.h"
#include "model/roster.h"

namespace halfbyte {
namespace fs = std::filesystem;

namespace {

// What one entry of the roster turned out to be.
struct Finding {
  const char* stored = nullptr;  // nothing: missing or broken
  std::optional<WeightFormat> format;
  float global_scale = 1;
  int64_t bytes = 0;
  ScaleCounts scales;
  std::unique_ptr<Error> problem;
};

Finding look_at(const Checkpoint& checkpoint, const ModelConfig& config, const RosterEntry& entry,
                bool read_all_values) {
  Finding finding;
  try {
    check_entry(checkpoint, entry);
    if (entry.role == TensorRole::kMatrix || entry.role == TensorRole::kExpert) {
      const MatrixView matrix = *find_matrix(checkpoint, entry.name);
      finding.format = matrix.format;
      finding.stored = name_of(matrix.format);
      finding.global_scale = matrix.global_scale;
      finding.bytes = static_cast<int64_t>(value_bytes(matrix) + scale_bytes(matrix));
      if (matrix.format == WeightFormat::kNvfp4)
        finding.bytes += static_cast<int64_t>(sizeof(float));
      if (read_all_values) {
        finding.scales = count_scales(matrix);
        if (finding.scales.nan + finding.scales.negative > 0) get_matrix(checkpoint, entry.name);
      }
      return finding;
    }
    const StoredTensor& tensor = checkpoint.get(entry.name);
    finding.stored = tensor.dtype == DType::kF32 ? "f32" : "bf16";
    finding.bytes = static_cast<int64_t>(tensor.bytes.size());
    if (!read_all_values) return finding;
    if (entry.role == TensorRole::kLogDecay)
      read_log_decay(tensor, config.kda.heads);
    else if (entry.role == TensorRole::kVector)
      read_values(tensor);
  } catch (const Error& error) {
    finding.problem = std::make_unique<Error>(error);
  }
  return finding;
}

struct Place {
  int layer = -1;  // of "model.layers.12.": 12
  std::string_view rest;
};

Place place_of(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  const size_t at = name.find(kLayers);
  if (at == std::string_view::npos) return {-1, name};
  Place place;
  place.layer = 0;
  size_t i = at + kLayers.size();
  for (; i < name.size() && name[i] != '.'; ++i) place.layer = place.layer * 10 + (name[i] - '0');
  place.rest = name.substr(std::min(i + 1, name.size()));
  return place;
}

// In the order of a report.
constexpr std::string_view kGroups[] = {
    "embedding",          "KDA attention",  "MLA attention",  "dense MLP", "router",
    "latent projections", "shared experts", "routed experts", "lm_head",   "vectors"};

const char* group_of(const RosterEntry& entry, const Place& place, const ModelConfig& config) {
  switch (entry.role) {
    case TensorRole::kEmbedding:
      return "embedding";
    case TensorRole::kVector:
    case TensorRole::kLogDecay:
      return "vectors";
    case TensorRole::kExpert:
      return "routed experts";
    case TensorRole::kMatrix:
      break;
  }
  if (place.layer < 0) return "lm_head";
  if (place.rest.starts_with("self_attn."))
    return config.attention[static_cast<size_t>(place.layer)] == AttentionKind::kKda
               ? "KDA attention"
               : "MLA attention";
  if (place.rest.starts_with("mlp.")) return "dense MLP";
  if (place.rest.find("shared_experts.") != std::string_view::npos) return "shared experts";
  if (place.rest.ends_with(".gate")) return "router";
  return "latent projections";
}

const char* group_of(UnreadKind kind) {
  switch (kind) {
    case UnreadKind::kVision:
      return "vision";
    case UnreadKind::kOtherLayer:
      return "layers that the config does not count";
    case UnreadKind::kHarmless:
      return "other";
    case UnreadKind::kUnknown:
      return "unknown";
  }
  return "?";
}

class Inspector {
 public:
  Inspector(const fs::path& directory, const InspectOptions& options)
      : options_(options), checkpoint_(directory, &result_.problems) {
    result_.directory = directory;
    result_.values_read = options.read_values;
  }

  Inspection inspect() && {
    result_.num_files = static_cast<int64_t>(checkpoint_.files().size());
    for (const StoredTensor* tensor : checkpoint_.tensors())
      result_.bytes += static_cast<int64_t>(tensor->bytes.size());
    result_.num_tensors = static_cast<int64_t>(checkpoint_.tensors().size());
    read_configs();
    if (result_.config) {
      look_at_all();
      add_up();
      check_experts_can_run();
      list_unread();
    } else {
      for (const StoredTensor* tensor : checkpoint_.tensors())
        add(result_.unread, "all", name_of(tensor->dtype), tensor->elements(),
            static_cast<int64_t>(tensor->bytes.size()));
    }
    add_notes();
    return std::move(result_);
  }

 private:
  template <class F>
  void collect(F&& action) {
    try {
      action();
    } catch (const Error& error) {
      result_.problems.push_back(error);
    }
  }

  static TensorGroup& add(std::vector<TensorGroup>& groups, std::string_view name,
                          std::string_view stored, int64_t values, int64_t bytes) {
    auto group = std::find_if(groups.begin(), groups.end(), [&](const TensorGroup& g) {
      return g.name == name && g.stored == stored;
    });
    if (group == groups.end()) {
      groups.emplace_back();
      group = groups.end() - 1;
      group->name = name;
      group->stored = stored;
    }
    ++group->count;
    group->values += values;
    group->bytes += bytes;
    return *group;
  }

  void read_configs() {
    collect([&] { result_.config = read_model_config(result_.directory); });
    collect([&] { quant_ = QuantConfig::from_directory(result_.directory); });
    result_.quant_method = quant_.method();
    result_.quant_algorithm = quant_.algorithm();
    result_.quant_kv_cache = quant_.kv_cache();
    if (!result_.config) return;
    const ModelConfig& config = *result_.config;
    for (int i = 0; i < config.num_layers; ++i) {
      const bool is_kda = config.attention[static_cast<size_t>(i)] == AttentionKind::kKda;
      ++(is_kda ? result_.num_kda : result_.num_mla);
      ++(config.is_moe(i) ? result_.num_moe : result_.num_dense);
    }
  }

  void look_at_all() {
    roster_ = make_roster(*result_.config, name_prefix(checkpoint_));
    findings_.resize(roster_.size());
    ThreadPool(0).parallel_for(static_cast<int64_t>(roster_.size()), [&](int64_t i) {
      const auto at = static_cast<size_t>(i);
      findings_[at] = look_at(checkpoint_, *result_.config, roster_[at], options_.read_values);
    });
  }

  void add_up() {
    for (size_t i = 0; i < roster_.size(); ++i) {
      const RosterEntry& entry = roster_[i];
      const Finding& finding = findings_[i];
      const Place place = place_of(entry.name);
      if (finding.problem) result_.problems.push_back(*finding.problem);
      if (finding.stored == nullptr) continue;
      TensorGroup& group = add(result_.groups, group_of(entry, place, *result_.config),
                               finding.stored, entry.rows * entry.cols, finding.bytes);
      group.scales += finding.scales;
      if (!finding.format) continue;
      if (entry.role == TensorRole::kExpert) add_expert(i, place);
      compare_with_claim(entry, finding, group);
    }
    const auto order = [](const TensorGroup& group) {
      return std::find(std::begin(kGroups), std::end(kGroups), group.name);
    };
    std::stable_sort(
        result_.groups.begin(), result_.groups.end(),
        [&](const TensorGroup& a, const TensorGroup& b) { return order(a) < order(b); });
  }

  // Experts of a layer must be stored alike; gate and up are compared.
  void add_expert(size_t i, const Place& place) {
    const Finding& finding = findings_[i];
    if (place.layer != expert_layer_) {
      expert_layer_ = place.layer;
      expert_format_ = *finding.format;
      if (std::find(expert_formats_.begin(), expert_formats_.end(), expert_format_) ==
          expert_formats_.end())
        expert_formats_.push_back(expert_format_);
    }
    if (*finding.format != expert_format_)
      result_.problems.push_back(
          Error(ErrorKind::kInput, roster_[i].name,
                fmt::format("is stored as {}, expected {} as the first expert of the layer",
                            finding.stored, name_of(expert_format_))));
    // NOTE: the roster lists gate, up, down.
    if (!place.rest.ends_with(".w1") || i + 1 >= findings_.size()) return;
    const Finding& up = findings_[i + 1];
    if (finding.format != WeightFormat::kNvfp4 || up.format != WeightFormat::kNvfp4) return;
    ++result_.gate_up_pairs;
    if (up.global_scale == finding.global_scale) return;
    ++result_.gate_up_differing;
    const double ratio = double{up.global_scale} / double{finding.global_scale};
    result_.gate_up_largest_ratio =
        std::max(result_.gate_up_largest_ratio, std::max(ratio, 1 / ratio));
  }

  void compare_with_claim(const RosterEntry& entry, const Finding& finding, TensorGroup& group) {
    if (!quant_.present() || !is_compared(entry)) return;
    collect([&] {
      const QuantClaim claim = check_claim(quant_, entry, *finding.format);
      std::string claimed = claim.format ? name_of(*claim.format) : "none";
      if (group.claimed != "-" && group.claimed != claimed) claimed = "mixed";
      group.claimed = std::move(claimed);
    });
  }

  // Asks the plan that loading would make.
  void check_experts_can_run() {
    const ModelConfig& config = *result_.config;
    if (expert_formats_.empty()) return;
    collect([&] {
      const auto device = open_device("auto", {.threads = 1});
      for (const WeightFormat format : expert_formats_)
        collect([&] {
          plan_moe({.num_experts = config.moe.num_experts,
                    .top_k = config.moe.top_k,
                    .hidden = config.expert_width(),
                    .intermediate = config.moe.intermediate,
                    .activation = config.activation,
                    .weights = format},
                   {.max_tokens = 1}, *device);
        });
    });
  }

  void list_unread() {
    int64_t listed = 0, others = 0;
    for (const UnreadTensor& unread : unread_tensors(checkpoint_, *result_.config, roster_)) {
      const StoredTensor& tensor = *unread.tensor;
      add(result_.unread, group_of(unread.kind), name_of(tensor.dtype), tensor.elements(),
          static_cast<int64_t>(tensor.bytes.size()));
      if (unread.kind == UnreadKind::kUnknown)
        result_.problems.push_back(unknown_tensor_error(tensor));
      if (unread.kind != UnreadKind::kHarmless) continue;
      ++others;
      if (listed++ < kListedExtras)
        result_.notes.push_back(fmt::format("{}: is not read", tensor.where()));
    }
    if (others > kListedExtras)
      result_.notes.push_back(fmt::format("{} more tensors are not read", others - kListedExtras));
  }

  void add_notes() {
    if (result_.config)
      for (const std::string& key : result_.config->unknown_keys)
        result_.notes.push_back(fmt::format("config.json: {}: unknown key, ignored", key));
    for (const TensorGroup& group : result_.groups)
      if (group.claimed != "-" && group.claimed != group.stored &&
          !(group.claimed == "none" && group.stored == "bf16"))
        result_.notes.push_back(
            fmt::format("{}: the configs claim {}, stored is {}; what is stored counts", group.name,
                        group.claimed, group.stored));
    if (!result_.quant_kv_cache.empty())
      result_.notes.push_back(
          fmt::format("the configs claim a KV cache in {}; halfbyte keeps it in "
                      "the activations' dtype",
                      result_.quant_kv_cache));
    if (result_.gate_up_differing > 0)
      result_.notes.push_back(fmt::format(
          "{} of {} gate/up pairs have different global scales (largest ratio {:.4g}): "
          "halfbyte applies both; engines that assume one are wrong here",
          result_.gate_up_differing, result_.gate_up_pairs, result_.gate_up_largest_ratio));
    if (!fs::exists(result_.directory / "tiktoken.model"))
      result_.notes.push_back("no tiktoken.model: prompts must be token ids");
  }

  static constexpr int64_t kListedExtras = 10;

  Inspection result_;
  const InspectOptions& options_;
  Checkpoint checkpoint_;
  QuantConfig quant_;
  std::vector<RosterEntry> roster_;
  std::vector<Finding> findings_;  // one an entry
  int expert_layer_ = -1;
  WeightFormat expert_format_ = WeightFormat::kBf16;
  std::vector<WeightFormat> expert_formats_;
};
}  // namespace

Inspection inspect_checkpoint(const fs::path& directory, const InspectOptions& options) {
  return Inspector(directory, options).inspect();
}

}  // namespace halfbyte

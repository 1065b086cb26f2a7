#include "formats/quant_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "halfbyte/error.h"

namespace halfbyte {
namespace fs = std::filesystem;

namespace {

constexpr const char* kRunnable = "NVFP4, W4A16_NVFP4, MXFP4, FP8_PB_WO";

// quant_algo of ModelOpt. NVFP4 and W4A16_NVFP4 differ in their activations, which stay BF16 here.
WeightFormat format_of_algorithm(const Json& algorithm) {
  struct Known {
    std::string_view name;
    WeightFormat format;
  };
  constexpr Known kFormats[] = {{"NVFP4", WeightFormat::kNvfp4},
                                {"W4A16_NVFP4", WeightFormat::kNvfp4},
                                {"MXFP4", WeightFormat::kMxfp4},
                                {"FP8_PB_WO", WeightFormat::kFp8Block}};
  constexpr std::string_view kNotRunnable[] = {
      "FP8",       "FP8_PER_CHANNEL_PER_TOKEN", "W4A16_AWQ", "W4A8_AWQ",       "W8A16",
      "NVFP4_AWQ", "W8A8_SQ_PER_CHANNEL",       "NVFP4_SVD", "W4A8_NVFP4_FP8", "W4A8_MXFP4_FP8",
      "MXFP8"};
  const std::string_view name = algorithm.string();
  for (const Known& known : kFormats)
    if (known.name == name) return known.format;
  for (const std::string_view known : kNotRunnable)
    if (known == name)
      throw Error(ErrorKind::kUnsupported, algorithm.where(),
                  fmt::format("{} is not supported; halfbyte runs {}", name, kRunnable));
  algorithm.fail(fmt::format("\"{}\" is not known; halfbyte runs {}", name, kRunnable));
}

// How many values share a scale: fixed by the format.
void check_group_size(const Json& object, WeightFormat format) {
  const auto group = object.find_value("group_size");
  if (!group) return;
  const int64_t expected = format == WeightFormat::kNvfp4   ? 16
                           : format == WeightFormat::kMxfp4 ? 32
                                                            : 128;
  if (group->integer() != expected)
    group->fail(fmt::format("is {}, but {} has {}", group->integer(), name_of(format), expected));
}

// `weights` of a config group: 4-bit floats.
WeightFormat format_of_weights(const Json& weights) {
  const Json bits = weights.get("num_bits"), type = weights.get("type");
  if (bits.integer() != 4 || type.string() != "float")
    throw Error(ErrorKind::kUnsupported, weights.where(),
                fmt::format("{}-bit {} is not supported; halfbyte runs 4-bit float", bits.integer(),
                            type.string()));
  const Json group = weights.get("group_size");
  if (group.integer() == 16) return WeightFormat::kNvfp4;
  if (group.integer() == 32) return WeightFormat::kMxfp4;
  group.fail(fmt::format("is {}, expected 16 (NVFP4) or 32 (MXFP4)", group.integer()));
}

std::string kv_cache_of(const Json& object) {
  if (const auto name = object.find_value("kv_cache_quant_algo"))
    return std::string(name->string());
  const auto scheme = object.find_value("kv_cache_scheme");
  if (!scheme) return "";
  if (scheme->type() == Json::Type::kString) return std::string(scheme->string());
  return fmt::format("{} {} bits", scheme->get("type").string(), scheme->get("num_bits").integer());
}

// Modules that a parent's entry does not speak of: older exporters left them in BF16 unlisted.
bool is_never_quantised(std::string_view module) {
  const std::string_view last = module.substr(module.rfind('.') + 1);
  return last == "gate" || last == "router" || last == "shared_expert_gate" ||
         last.find("norm") != std::string_view::npos ||
         last.find("embed") != std::string_view::npos;
}
}  // namespace

void QuantConfig::read_excluded(const Json& object, std::string_view key) {
  const auto list = object.find_value(key);
  if (!list) return;
  excluded_where_ = list->where();
  for (const Json& pattern : list->elements())
    excluded_.emplace_back(pattern.string(), pattern.where());
}

void QuantConfig::read_modelopt(const Json& object) {
  method_ = "modelopt";
  kv_cache_ = kv_cache_of(object);
  read_excluded(object, "exclude_modules");
  read_excluded(object, "ignore");
  if (const auto hybrid = object.find_value("moe_quant_algo"))
    throw Error(ErrorKind::kUnsupported, hybrid->where(), "is not supported");

  const auto algorithm = object.find_value("quant_algo");
  if (algorithm && algorithm->string() == "MIXED_PRECISION") {
    algorithm_ = algorithm->string();
    mixed_ = true;
    object.get("quantized_layers").for_each_member([&](std::string_view name, const Json& entry) {
      const WeightFormat format = format_of_algorithm(entry.get("quant_algo"));
      check_group_size(entry, format);
      layers_.emplace(name, Layer{format, entry.where()});
    });
    return;
  }
  if (algorithm) {
    algorithm_ = algorithm->string();
    format_ = format_of_algorithm(*algorithm);
    check_group_size(object, *format_);
    return;
  }
  // No algorithm by name: the one group of config_groups, or nothing is quantised.
  const auto groups = object.find_value("config_groups");
  if (!groups) {
    method_.clear();
    return;
  }
  groups->for_each_member([&](std::string_view, const Json& group) {
    const WeightFormat format = format_of_weights(group.get("weights"));
    if (format_ && *format_ != format)
      group.fail(fmt::format("is {} beside {}, but there is no quant_algo MIXED_PRECISION",
                             name_of(format), name_of(*format_)));
    format_ = format;
  });
  if (format_) algorithm_ = *format_ == WeightFormat::kNvfp4 ? "NVFP4" : "MXFP4";
}

void QuantConfig::read_compressed_tensors(const Json& object) {
  method_ = "compressed-tensors";
  kv_cache_ = kv_cache_of(object);
  read_excluded(object, "ignore");
  const Json layout = object.get("format");
  algorithm_ = layout.string();
  if (algorithm_ != "mxfp4-pack-quantized" && algorithm_ != "nvfp4-pack-quantized")
    throw Error(ErrorKind::kUnsupported, layout.where(),
                fmt::format("{} is not supported; halfbyte runs mxfp4-pack-quantized and "
                            "nvfp4-pack-quantized",
                            algorithm_));
  const WeightFormat expected = algorithm_[0] == 'm' ? WeightFormat::kMxfp4 : WeightFormat::kNvfp4;
  object.get("config_groups").for_each_member([&](std::string_view, const Json& group) {
    const WeightFormat format = format_of_weights(group.get("weights"));
    if (format != expected)
      group.fail(fmt::format("is {}, but the file's format is {}", name_of(format), algorithm_));
    Group own{{}, format};
    for (const Json& target : group.get("targets").elements()) {
      if (target.string() == "Linear")
        format_ = format;
      else
        own.targets.emplace_back(target.string(), target.where());
    }
    if (!own.targets.empty()) groups_.push_back(std::move(own));
  });
}

QuantConfig QuantConfig::from_hf_quant_config(const Json& root) {
  QuantConfig config;
  const Json object = root.get("quantization");
  config.where_ = object.where();
  config.read_modelopt(object);
  return config;
}

QuantConfig QuantConfig::from_model_config(const Json& root) {
  QuantConfig config;
  auto object = root.find_value("quantization_config");
  if (const auto text = root.find_value("text_config"))
    if (const auto nested = text->find_value("quantization_config")) {
      if (object) nested->fail(fmt::format("given twice; the other is {}", object->where()));
      object = nested;
    }
  if (!object) return config;
  config.where_ = object->where();
  const auto method = object->find_value("quant_method");
  if (!method && !object->find_value("quant_algo")) object->get("quant_method");
  const std::string_view name = method ? method->string() : "modelopt";
  if (name == "compressed-tensors")
    config.read_compressed_tensors(*object);
  else if (name == "modelopt" || name == "modelopt_fp4" || name == "modelopt_mixed")
    config.read_modelopt(*object);
  else
    throw Error(ErrorKind::kUnsupported, method->where(),
                fmt::format("{} is not supported; halfbyte runs modelopt, modelopt_mixed and "
                            "compressed-tensors",
                            name));
  return config;
}

QuantConfig QuantConfig::from_directory(const fs::path& directory) {
  QuantConfig first, second;
  if (const fs::path path = directory / "hf_quant_config.json"; fs::exists(path))
    first = from_hf_quant_config(JsonDocument::from_file(path).root());
  if (const fs::path path = directory / "config.json"; fs::exists(path))
    second = from_model_config(JsonDocument::from_file(path).root());
  if (!first.present()) return second;
  if (second.present()) first.check_agrees_with(second);
  return first;
}

void QuantConfig::check_agrees_with(const QuantConfig& other) const {
  const auto describe = [](const QuantConfig& config) {
    return config.mixed_    ? std::string("a mix of formats")
           : config.format_ ? std::string(name_of(*config.format_))
                            : std::string("groups of formats");
  };
  if (mixed_ != other.mixed_ || format_ != other.format_)
    throw Error(ErrorKind::kInput, where_,
                fmt::format("claims {} ({}), but {} claims {} ({})", describe(*this), algorithm_,
                            other.where_, describe(other), other.algorithm_));
  for (const auto& [a, b] : {std::pair(this, &other), std::pair(&other, this)})
    for (const auto& [name, layer] : a->layers_) {
      const auto found = b->layers_.find(name);
      if (found == b->layers_.end() || found->second.format != layer.format)
        throw Error(ErrorKind::kInput, layer.where,
                    fmt::format("claims {}, but {} claims {}", name_of(layer.format), b->where_,
                                found == b->layers_.end() ? "nothing for this name"
                                                          : name_of(found->second.format)));
    }
}

QuantClaim QuantConfig::claim_for(std::string_view module) const {
  const std::vector<std::string> spellings = module_spellings(module);
  const ModulePattern* excluding = nullptr;
  for (const ModulePattern& pattern : excluded_)
    if (pattern.matches_any(spellings)) {
      excluding = &pattern;
      break;
    }

  // The listed name nearest to the module: itself, or the lowest of its parents.
  const std::map<std::string, Layer, std::less<>>::value_type* listed = nullptr;
  size_t distance = std::string::npos;  // characters below the listed name
  for (const std::string& spelling : spellings) {
    std::string_view name = spelling;
    while (!layers_.empty() && !name.empty() && spelling.size() - name.size() < distance) {
      if (const auto found = layers_.find(name); found != layers_.end()) {
        listed = &*found;
        distance = spelling.size() - name.size();
      }
      const size_t dot = name.rfind('.');
      name = name.substr(0, dot == std::string_view::npos ? 0 : dot);
    }
  }
  const bool is_parent = distance != 0;

  if (listed != nullptr && excluding != nullptr && !is_parent)
    throw Error(
        ErrorKind::kInput, listed->second.where,
        fmt::format("is also excluded, by \"{}\" of {}", excluding->text(), excluded_where_));
  if (excluding != nullptr)
    return {std::nullopt, true, fmt::format("{}: {}", excluded_where_, excluding->text())};
  if (listed != nullptr)
    return {listed->second.format, !(is_parent && is_never_quantised(module)),
            listed->second.where};
  for (const Group& group : groups_)
    for (const ModulePattern& target : group.targets)
      if (target.matches_any(spellings)) return {group.format, false, where_};
  return {format_, false, where_};
}

std::optional<std::string> find_contradiction(const QuantClaim& claim, WeightFormat stored) {
  if (!claim.format || *claim.format == stored) return std::nullopt;
  const bool is_plain = stored == WeightFormat::kBf16 || stored == WeightFormat::kF32;
  if (is_plain && !claim.is_explicit) return std::nullopt;
  return fmt::format("is stored as {}, but {} claims {}", name_of(stored), claim.source,
                     name_of(*claim.format));
}

}  // namespace halfbyte

// An Inspection as a table for people and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/inspect.h"

namespace halfbyte {

namespace {

// 1234567 -> "1,234,567".
std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

// Three significant digits with a decimal unit: "1.56 TB", "512 B".
std::string with_unit(int64_t amount, const char* unit) {
  constexpr const char* kScales[] = {"", "k", "M", "G", "T", "P"};
  auto value = static_cast<double>(amount);
  size_t scale = 0;
  while (value >= 999.5 && scale + 1 < std::size(kScales)) {
    value /= 1000;
    ++scale;
  }
  const int decimals = scale == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}{}", value, decimals, kScales[scale], unit);
}

std::string plural(int64_t count, const char* one, const char* many) {
  return fmt::format("{} {}", grouped(count), count == 1 ? one : many);
}

void append_groups(std::string& out, const std::vector<TensorGroup>& groups, bool with_claims) {
  size_t width = 12;
  for (const TensorGroup& group : groups) width = std::max(width, group.name.size());
  const auto row = [&](std::string_view name, std::string_view stored, std::string_view claimed,
                       std::string_view count, std::string_view values, std::string_view bytes) {
    out += fmt::format("  {:<{}}  {:<9}  ", name, width, stored);
    if (with_claims) out += fmt::format("{:<9}  ", claimed);
    out += fmt::format("{:>9}  {:>9}  {:>9}\n", count, values, bytes);
  };
  row("group", "stored", "claimed", "tensors", "values", "bytes");
  for (const TensorGroup& group : groups)
    row(group.name, group.stored, group.claimed, grouped(group.count), with_unit(group.values, ""),
        with_unit(group.bytes, "B"));
}

void append_scales(std::string& out, const std::vector<TensorGroup>& groups) {
  bool first = true;
  for (const TensorGroup& group : groups) {
    const ScaleCounts& scales = group.scales;
    if (scales.total == 0) continue;
    if (first)
      out +=
          fmt::format("\n  {:<18}  {:<9}  {:>15}  {:>9}  {:>9}  {:>9}  {:>9}\n", "block scales of",
                      "stored", "scales", "zero", "subnormal", "NaN", "negative");
    first = false;
    out += fmt::format("  {:<18}  {:<9}  {:>15}  {:>9}  {:>9}  {:>9}  {:>9}\n", group.name,
                       group.stored, grouped(scales.total), grouped(scales.zero),
                       grouped(scales.subnormal), grouped(scales.nan), grouped(scales.negative));
  }
}

nlohmann::ordered_json groups_json(const std::vector<TensorGroup>& groups, bool with_scales) {
  auto list = nlohmann::ordered_json::array();
  for (const TensorGroup& group : groups) {
    nlohmann::ordered_json entry = {{"group", group.name},    {"stored", group.stored},
                                    {"claimed", nullptr},     {"tensors", group.count},
                                    {"values", group.values}, {"bytes", group.bytes}};
    if (group.claimed != "-") entry["claimed"] = group.claimed;
    if (with_scales && group.scales.total > 0)
      entry["scales"] = {{"total", group.scales.total},
                         {"zero", group.scales.zero},
                         {"subnormal", group.scales.subnormal},
                         {"nan", group.scales.nan},
                         {"negative", group.scales.negative}};
    list.push_back(std::move(entry));
  }
  return list;
}
}  // namespace

std::string inspection_table(const Inspection& inspection, int max_problems) {
  std::string out = fmt::format("{}\n", inspection.directory.string());
  if (inspection.config) {
    const ModelConfig& config = *inspection.config;
    out += fmt::format("  {}, hidden {}, vocabulary {}\n", config.architecture,
                       grouped(config.hidden), grouped(config.vocab_size));
    out += fmt::format("  {}: {} KDA + {} MLA attention, {} dense + {} MoE\n",
                       plural(config.num_layers, "layer", "layers"), inspection.num_kda,
                       inspection.num_mla, inspection.num_dense, inspection.num_moe);
    if (inspection.num_moe > 0)
      out += fmt::format("  {} a MoE layer, {} a token, {} shared; width {} -> {}, {}\n",
                         plural(config.moe.num_experts, "expert", "experts"), config.moe.top_k,
                         config.moe.num_shared_experts, grouped(config.expert_width()),
                         grouped(config.moe.intermediate), name_of(config.activation.kind));
  }
  out +=
      fmt::format("  {} in {}, {}\n", plural(inspection.num_tensors, "tensor", "tensors"),
                  plural(inspection.num_files, "file", "files"), with_unit(inspection.bytes, "B"));
  out += inspection.quant_method.empty()
             ? "  the configs claim no quantisation\n"
             : fmt::format("  the configs claim {} {}\n", inspection.quant_method,
                           inspection.quant_algorithm);

  if (!inspection.groups.empty()) {
    out += '\n';
    append_groups(out, inspection.groups, !inspection.quant_method.empty());
    append_scales(out, inspection.groups);
  }
  if (inspection.gate_up_pairs > 0)
    out +=
        fmt::format("\n  {}, {} with different global scales{}\n",
                    plural(inspection.gate_up_pairs, "gate/up pair", "gate/up pairs"),
                    grouped(inspection.gate_up_differing),
                    inspection.gate_up_differing == 0
                        ? ""
                        : fmt::format(", largest ratio {:.4g}", inspection.gate_up_largest_ratio));
  if (!inspection.unread.empty()) {
    out += "\n  not read:\n";
    append_groups(out, inspection.unread, false);
  }
  if (!inspection.notes.empty()) out += '\n';
  for (const std::string& note : inspection.notes) out += fmt::format("  note: {}\n", note);

  if (inspection.problems.empty()) {
    out += fmt::format("\nhalfbyte can run this checkpoint{}.\n",
                       inspection.values_read ? "" : " (scales and vectors were not read)");
    return out;
  }
  out += fmt::format("\nhalfbyte cannot run this checkpoint: {}\n",
                     plural(static_cast<int64_t>(inspection.problems.size()), "reason", "reasons"));
  int64_t left = static_cast<int64_t>(inspection.problems.size());
  for (const Error& problem : inspection.problems) {
    if (max_problems-- <= 0) {
      out += fmt::format("  ... and {} more\n", grouped(left));
      break;
    }
    out += fmt::format("  {}\n", problem.what());
    --left;
  }
  return out;
}

std::string inspection_json(const Inspection& inspection) {
  nlohmann::ordered_json out = {{"directory", inspection.directory.string()},
                                {"can_run", inspection.problems.empty()}};
  out["reasons"] = nlohmann::ordered_json::array();
  for (const Error& problem : inspection.problems)
    out["reasons"].push_back({{"where", problem.where()}, {"message", problem.message()}});
  out["notes"] = inspection.notes;
  out["files"] = inspection.num_files;
  out["tensors"] = inspection.num_tensors;
  out["bytes"] = inspection.bytes;
  if (inspection.config) {
    const ModelConfig& config = *inspection.config;
    out["architecture"] = config.architecture;
    out["hidden"] = config.hidden;
    out["vocabulary"] = config.vocab_size;
    out["layers"] = {{"all", config.num_layers},
                     {"kda", inspection.num_kda},
                     {"mla", inspection.num_mla},
                     {"dense", inspection.num_dense},
                     {"moe", inspection.num_moe}};
    out["experts"] = {
        {"routed", config.moe.num_experts},        {"per_token", config.moe.top_k},
        {"shared", config.moe.num_shared_experts}, {"width", config.expert_width()},
        {"inner_width", config.moe.intermediate},  {"activation", name_of(config.activation.kind)}};
  }
  out["claims"] = nullptr;
  if (!inspection.quant_method.empty())
    out["claims"] = {{"method", inspection.quant_method},
                     {"algorithm", inspection.quant_algorithm},
                     {"kv_cache", inspection.quant_kv_cache}};
  out["groups"] = groups_json(inspection.groups, inspection.values_read);
  out["not_read"] = groups_json(inspection.unread, false);
  out["gate_up"] = {{"pairs", inspection.gate_up_pairs},
                    {"differing", inspection.gate_up_differing},
                    {"largest_ratio", inspection.gate_up_largest_ratio}};
  out["values_read"] = inspection.values_read;
  // NOTE: names come from files and need not be UTF-8 everywhere they are cut.
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace halfbyte

#include "convert/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "formats/fp8_block.h"
#include "formats/nvfp4.h"
#include "formats/stored_matrix.h"
#include "halfbyte/error.h"

namespace halfbyte {
namespace {

constexpr std::string_view kAttentionProjections[] = {"q_proj",
                                                      "k_proj",
                                                      "v_proj",
                                                      "g_proj",
                                                      "o_proj",
                                                      "b_proj",
                                                      "f_a_proj",
                                                      "f_b_proj",
                                                      "q_a_proj",
                                                      "q_b_proj",
                                                      "kv_a_proj_with_mqa",
                                                      "kv_b_proj"};

// Names of gate, up and down in the two dialects.
constexpr std::array<std::string_view, 3> kProjectionNames[] = {
    {"w1", "w3", "w2"}, {"gate_proj", "up_proj", "down_proj"}};

[[noreturn]] void fail(const StoredTensor& tensor, const std::string& message,
                       ErrorKind kind = ErrorKind::kInput) {
  throw Error(kind, tensor.where(), message);
}

// The number that `text` begins with; advances past it.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

// "language_model.model.layers.3...." -> 3, and the same without the first or first two parts.
std::optional<int> layer_of(std::string_view name) {
  for (const std::string_view prefix : {"language_model.model.layers.", "model.layers.", "layers."})
    if (name.starts_with(prefix)) {
      name.remove_prefix(prefix.size());
      return take_number(name);
    }
  return std::nullopt;
}

// "BANK.EXPERT.PROJECTION.PART", where BANK ends with ".experts".
struct ExpertName {
  std::string_view bank;
  int expert = 0;
  std::string_view module;  // BANK.EXPERT
  std::string_view projection, part;
};
std::optional<ExpertName> parse_expert(std::string_view name) {
  constexpr std::string_view kMark = ".experts.";
  const size_t mark = name.rfind(kMark);
  if (mark == std::string_view::npos) return std::nullopt;
  std::string_view rest = name.substr(mark + kMark.size());
  const auto expert = take_number(rest);
  if (!expert || !rest.starts_with('.')) return std::nullopt;
  ExpertName parsed;
  parsed.bank = name.substr(0, mark + kMark.size() - 1);
  parsed.expert = *expert;
  parsed.module = name.substr(0, name.size() - rest.size());
  rest.remove_prefix(1);
  const size_t dot = rest.find('.');
  parsed.projection = rest.substr(0, dot);
  parsed.part = dot == std::string_view::npos ? "" : rest.substr(dot + 1);
  return parsed;
}

bool is_attention_projection(std::string_view name) {
  constexpr std::string_view kMark = ".self_attn.", kWeight = ".weight";
  const size_t mark = name.rfind(kMark);
  if (mark == std::string_view::npos || !name.ends_with(kWeight) || !layer_of(name)) return false;
  const size_t begin = mark + kMark.size();
  return std::ranges::find(kAttentionProjections,
                           name.substr(begin, name.size() - kWeight.size() - begin)) !=
         std::end(kAttentionProjections);
}

// "layers.2" before "layers.10".
bool natural_less(std::string_view a, std::string_view b) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  while (!a.empty() && !b.empty()) {
    if (is_digit(a[0]) && is_digit(b[0])) {
      const auto digits = [&](std::string_view text) {
        return std::min(text.find_first_not_of("0123456789"), text.size());
      };
      const size_t in_a = digits(a), in_b = digits(b);
      if (in_a != in_b) return in_a < in_b;
      if (const int order = a.substr(0, in_a).compare(b.substr(0, in_b)); order != 0)
        return order < 0;
      a.remove_prefix(in_a);
      b.remove_prefix(in_b);
    } else {
      if (a[0] != b[0]) return a[0] < b[0];
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

Unit::Projection find_projection(const Checkpoint& checkpoint, const std::string& module,
                                 std::string_view name) {
  const std::string path = fmt::format("{}.{}", module, name);
  const auto matrix = find_matrix(checkpoint, path);
  if (!matrix)
    throw Error(ErrorKind::kInput, checkpoint.directory().string(),
                fmt::format("{} has no {}: neither {}.weight nor {}.weight_packed", module, name,
                            path, path));
  Unit::Projection projection{name, *matrix, checkpoint.find(matrix->name), nullptr};
  switch (matrix->format) {
    case WeightFormat::kMxfp4:
      projection.scales = checkpoint.find(path + ".weight_scale");
      break;
    case WeightFormat::kBf16:
    case WeightFormat::kF32:
      break;
    default:
      fail(*projection.values,
           fmt::format("is {} already; experts to convert are BF16, F32 or MXFP4",
                       name_of(matrix->format)),
           ErrorKind::kUnsupported);
  }
  if (matrix->cols % kNvfp4Group != 0)
    fail(*projection.values,
         fmt::format("has {} columns, expected a multiple of {}", matrix->cols, kNvfp4Group));
  return projection;
}

Unit plan_expert(const Checkpoint& checkpoint, const std::string& module,
                 std::string_view projection) {
  Unit unit;
  unit.kind = Unit::Kind::kExpert;
  unit.name = module;
  const bool dialect =
      std::ranges::find(kProjectionNames[1], projection) != kProjectionNames[1].end();
  for (size_t p = 0; p < 3; ++p)
    unit.projections[p] = find_projection(checkpoint, module, kProjectionNames[dialect][p]);
  const auto& [gate, up, down] = unit.projections;
  if (gate.matrix.format != up.matrix.format)
    fail(*up.values, fmt::format("is {}, but {} is {}", name_of(up.matrix.format),
                                 gate.values->name, name_of(gate.matrix.format)));
  const auto expect = [](const Unit::Projection& one, int64_t rows, int64_t cols) {
    if (one.matrix.rows != rows || one.matrix.cols != cols)
      fail(*one.values, fmt::format("is a matrix of [{}, {}], expected [{}, {}]", one.matrix.rows,
                                    one.matrix.cols, rows, cols));
  };
  expect(up, gate.matrix.rows, gate.matrix.cols);
  expect(down, gate.matrix.cols, gate.matrix.rows);
  return unit;
}

Unit plan_fp8(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  Unit unit;
  unit.kind = Unit::Kind::kFp8;
  unit.name = tensor.name.substr(0, tensor.name.size() - std::string_view(".weight").size());
  unit.tensor = &tensor;
  find_matrix(checkpoint, unit.name);  // checks that it is a matrix
  unit.rows = tensor.shape[0];
  return unit;
}

Unit plan_copy(const StoredTensor& tensor) {
  switch (tensor.dtype) {
    case DType::kU8:
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF8E8M0:
      fail(tensor,
           fmt::format("is {}, quantised already and no routed expert: convert reads BF16 or F32 "
                       "checkpoints, and such with MXFP4 experts",
                       name_of(tensor.dtype)),
           ErrorKind::kUnsupported);
    default:
      break;
  }
  Unit unit;
  unit.name = tensor.name;
  unit.tensor = &tensor;
  unit.rows = tensor.shape.empty() ? 1 : tensor.shape[0];
  return unit;
}

int checked_limit(const char* option, int asked, int there, const char* what) {
  if (asked < 1 || asked > there)
    throw Error(ErrorKind::kInput, option,
                fmt::format("is {}; the checkpoint has {} {}", asked, there, what));
  return asked;
}

int check_kept_experts(int kept, const ModelFacts& facts) {
  checked_limit("--keep-experts", kept, facts.num_experts, "experts");
  if (kept < facts.top_k)
    throw Error(ErrorKind::kInput, "--keep-experts",
                fmt::format("is {}, but a token is sent to {} experts", kept, facts.top_k));
  if (facts.expert_groups > 1 && kept % facts.expert_groups != 0)
    throw Error(
        ErrorKind::kInput, "--keep-experts",
        fmt::format("is {}, not a multiple of the {} expert groups", kept, facts.expert_groups));
  return kept;
}

}  // namespace

int64_t bytes_of(const TensorSpec& tensor) {
  int64_t bytes = dtype_bytes(tensor.dtype);
  for (const int64_t extent : tensor.shape) bytes *= extent;
  return bytes;
}

int64_t Unit::bytes_in() const {
  int64_t bytes = 0;
  if (kind == Kind::kExpert) {
    for (const auto& one : projections)
      bytes += static_cast<int64_t>(one.values->bytes.size() +
                                    (one.scales != nullptr ? one.scales->bytes.size() : 0));
  } else {
    bytes = static_cast<int64_t>(tensor->bytes.size());
    if (!tensor->shape.empty() && tensor->shape[0] > 0) bytes = bytes / tensor->shape[0] * rows;
  }
  return bytes;
}

std::vector<TensorSpec> outputs_of(const Unit& unit) {
  switch (unit.kind) {
    case Unit::Kind::kCopy: {
      TensorSpec copy{unit.name, unit.tensor->dtype, unit.tensor->shape};
      if (!copy.shape.empty()) copy.shape[0] = unit.rows;
      return {copy};
    }
    case Unit::Kind::kFp8: {
      const int64_t rows = unit.tensor->shape[0], cols = unit.tensor->shape[1];
      return {{unit.name + ".weight", DType::kF8E4M3, {rows, cols}},
              {unit.name + ".weight_scale", DType::kF32, {fp8_tiles(rows), 1, fp8_tiles(cols), 1}}};
    }
    case Unit::Kind::kExpert:
      break;
  }
  std::vector<TensorSpec> outputs;
  for (const auto& [name, matrix, values, scales] : unit.projections) {
    const std::string module = fmt::format("{}.{}", unit.name, name);
    outputs.push_back({module + ".weight", DType::kU8, {matrix.rows, matrix.cols / 2}});
    outputs.push_back(
        {module + ".weight_scale", DType::kF8E4M3, {matrix.rows, matrix.cols / kNvfp4Group}});
    outputs.push_back({module + ".weight_scale_2", DType::kF32, {}});
    outputs.push_back({module + ".input_scale", DType::kF32, {}});
  }
  return outputs;
}

Recipe plan_recipe(const Checkpoint& checkpoint, const ModelFacts& facts,
                   const RecipeOptions& options) {
  const int num_layers = options.num_layers ? checked_limit("--num-layers", *options.num_layers,
                                                            facts.num_layers, "layers")
                                            : facts.num_layers;
  const int num_experts =
      options.keep_experts ? check_kept_experts(*options.keep_experts, facts) : facts.num_experts;

  Recipe recipe;
  std::map<std::string, int, std::less<>> experts_of_bank;
  std::string_view last_module;
  const auto leave_out = [](const StoredTensor& tensor, LeftOut& left_out) {
    ++left_out.tensors;
    left_out.bytes += static_cast<int64_t>(tensor.bytes.size());
  };
  for (const StoredTensor* tensor : checkpoint.tensors()) {
    if (layer_of(tensor->name).value_or(0) >= num_layers) {
      leave_out(*tensor, recipe.layers);
      continue;
    }
    if (const auto expert = parse_expert(tensor->name)) {
      if (const auto number = expert->module.substr(expert->bank.size() + 1);
          number != std::to_string(expert->expert))
        fail(*tensor,
             fmt::format("is of expert \"{}\", expected a number without leading zeros", number));
      if (expert->expert >= facts.num_experts)
        fail(*tensor, fmt::format("is of expert {}, but num_experts is {}", expert->expert,
                                  facts.num_experts));
      if (expert->expert >= num_experts) {
        leave_out(*tensor, recipe.experts);
        continue;
      }
      // `weight_shape` repeats what the packed tensor's shape says.
      if (expert->part != "weight" && expert->part != "weight_packed" &&
          expert->part != "weight_scale" && expert->part != "weight_shape")
        fail(*tensor, "is no part of an expert in BF16, F32 or MXFP4");
      const bool known = std::ranges::any_of(kProjectionNames, [&](const auto& names) {
        return std::ranges::find(names, expert->projection) != names.end();
      });
      if (!known)
        fail(*tensor,
             "is of an unknown projection, expected w1, w2, w3 or gate_proj, "
             "down_proj, up_proj");
      if (expert->module == last_module) continue;  // names are sorted
      last_module = expert->module;
      ++experts_of_bank[std::string(expert->bank)];
      recipe.units.push_back(
          plan_expert(checkpoint, std::string(expert->module), expert->projection));
    } else if (!options.experts_only && is_attention_projection(tensor->name) &&
               (tensor->dtype == DType::kBf16 || tensor->dtype == DType::kF32)) {
      recipe.units.push_back(plan_fp8(checkpoint, *tensor));
    } else {
      recipe.units.push_back(plan_copy(*tensor));
    }
  }
  std::ranges::sort(recipe.units,
                    [](const Unit& a, const Unit& b) { return natural_less(a.name, b.name); });

  for (const auto& [bank, count] : experts_of_bank) {
    if (count != num_experts)
      throw Error(ErrorKind::kInput, checkpoint.directory().string(),
                  fmt::format("{} has {} of the experts 0..{}", bank, count, num_experts - 1));
    recipe.changes.nvfp4_banks.push_back(bank);
  }
  std::ranges::sort(recipe.changes.nvfp4_banks, natural_less);
  if (recipe.changes.nvfp4_banks.empty())
    throw Error(ErrorKind::kInput, checkpoint.directory().string(),
                "has no routed experts (\"...experts.0.w1.weight\") in the layers to convert");

  // A router has one row, and one bias, for each expert.
  if (num_experts != facts.num_experts)
    for (Unit& unit : recipe.units) {
      if (unit.kind != Unit::Kind::kCopy) continue;
      for (const std::string_view part : {".gate.weight", ".gate.e_score_correction_bias"}) {
        if (!unit.name.ends_with(part)) continue;
        const std::string bank = unit.name.substr(0, unit.name.size() - part.size()) + ".experts";
        if (!experts_of_bank.contains(bank)) continue;
        if (unit.rows != facts.num_experts)
          fail(*unit.tensor, fmt::format("has {} rows, expected one for each of {} experts",
                                         unit.rows, facts.num_experts));
        unit.rows = num_experts;
      }
    }

  for (const Unit& unit : recipe.units)
    if (unit.kind == Unit::Kind::kFp8) recipe.changes.fp8_modules.push_back(unit.name);
  if (options.num_layers) recipe.changes.num_layers = num_layers;
  if (options.keep_experts) recipe.changes.num_experts = num_experts;
  recipe.changes.first_moe_layer = std::min(facts.first_moe_layer, num_layers);
  const bool nested = recipe.changes.nvfp4_banks[0].starts_with("language_model.");
  recipe.changes.root = nested ? "language_model." : "";
  return recipe;
}

}  // namespace halfbyte

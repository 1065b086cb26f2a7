#include "formats/module_pattern.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>

#include "halfbyte/error.h"

namespace halfbyte {

namespace {
constexpr std::string_view kRegexPrefix = "re:";

// One retry point is enough: an earlier star can take over nothing that a later one cannot.
bool glob_matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, retry = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  return std::all_of(pattern.begin() + static_cast<long>(p), pattern.end(),
                     [](char c) { return c == '*'; });
}

bool take_prefix(std::string_view& name, std::string_view prefix) {
  if (name.substr(0, prefix.size()) != prefix) return false;
  name.remove_prefix(prefix.size());
  return true;
}
}  // namespace

ModulePattern::ModulePattern(std::string_view text, const std::string& where) : text_(text) {
  if (!take_prefix(text, kRegexPrefix)) return;
  RE2::Options options;
  options.set_log_errors(false);
  regex_ = std::make_unique<RE2>(re2::StringPiece(text.data(), text.size()), options);
  if (!regex_->ok())
    throw Error(ErrorKind::kInput, where,
                fmt::format("\"{}\" is not a regular expression that can be read: {}", text_,
                            regex_->error()));
}

ModulePattern::ModulePattern(ModulePattern&&) noexcept = default;
ModulePattern::~ModulePattern() = default;

bool ModulePattern::matches(std::string_view spelling) const {
  if (!regex_) return glob_matches(text_, spelling);
  return regex_->Match(re2::StringPiece(spelling.data(), spelling.size()), 0, spelling.size(),
                       RE2::ANCHOR_START, nullptr, 0);
}

bool ModulePattern::matches_any(const std::vector<std::string>& spellings) const {
  return std::any_of(spellings.begin(), spellings.end(),
                     [&](const std::string& spelling) { return matches(spelling); });
}

std::vector<std::string> module_spellings(std::string_view module) {
  std::vector<std::string> result = {std::string(module)};
  const auto add = [&](std::string spelling) {
    if (std::find(result.begin(), result.end(), spelling) == result.end())
      result.push_back(std::move(spelling));
  };
  std::string_view core = module;
  while (take_prefix(core, "language_model.") || take_prefix(core, "model.")) {
  }
  for (const char* prefix :
       {"", "model.", "language_model.", "language_model.model.", "model.language_model."})
    add(prefix + std::string(core));

  // The same with the other name of an expert bank.
  constexpr std::string_view kBanks[] = {".mlp.experts", ".block_sparse_moe.experts"};
  for (int own = 0; own < 2; ++own) {
    const std::string_view from = kBanks[own], to = kBanks[1 - own];
    const size_t at = module.find(from);
    if (at == std::string_view::npos) continue;
    const size_t end = at + from.size();
    if (end < module.size() && module[end] != '.') continue;
    for (size_t i = 0, count = result.size(); i < count; ++i) {
      std::string renamed = result[i];
      renamed.replace(renamed.find(from), from.size(), to);
      add(std::move(renamed));
    }
  }
  return result;
}

}  // namespace halfbyte

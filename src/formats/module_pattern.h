// Which modules a quantisation config means: patterns, and the spellings of a module's name.
//
// A pattern is a whole-string glob in which `*` crosses dots and `?` is one character, or
// `re:REGEX`, which must match from the start of the name (RE2 syntax). A part of a name never
// matches: `mlp.gate` is not `mlp.gate_proj`, `kv_proj` is not `qkv_proj`. Since `*` may be empty,
// `model.layers.1*` means layer 1 itself, all below it, and layers 10 to 19 as well;
// `model.layers.1.*` means what is below layer 1.
//
// Configs and checkpoints spell one module differently: with or without `model.` and
// `language_model.`, in either order; `mlp.experts` for `block_sparse_moe.experts`. A pattern is
// tried on every spelling, so that wildcards follow the same renaming as names.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace re2 {
class RE2;
}

namespace halfbyte {

class ModulePattern {
 public:
  // Throws Error{kInput} at `where` for a regex that cannot be read.
  ModulePattern(std::string_view text, const std::string& where);
  ModulePattern(ModulePattern&&) noexcept;
  ~ModulePattern();

  bool matches(std::string_view spelling) const;
  bool matches_any(const std::vector<std::string>& spellings) const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::unique_ptr<re2::RE2> regex_;  // none: a glob
};

// Every name that a config may use for `module`, itself first.
std::vector<std::string> module_spellings(std::string_view module);

}  // namespace halfbyte

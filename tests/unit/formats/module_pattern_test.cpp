// Names and patterns: specs of ModelOpt and compressed-tensors, and what other engines got wrong.
#include "formats/module_pattern.h"

#include <gtest/gtest.h>

#include <chrono>

#include "support/craft.h"

namespace halfbyte {
namespace {

bool covers(const std::string& pattern, const std::string& module) {
  return ModulePattern(pattern, "test").matches_any(module_spellings(module));
}

struct Row {
  const char* pattern;
  const char* module;
  bool covered;
};

TEST(ModulePattern, Table) {
  const Row rows[] = {
      // 1: spellings of one module.
      {"lm_head", "language_model.lm_head", true},
      {"language_model.lm_head", "lm_head", true},
      {"model.layers.1.self_attn*", "language_model.model.layers.1.self_attn.q_proj", true},
      {"model.language_model.layers.1.*", "language_model.model.layers.1.x", true},
      {"language_model.model.layers.1.*", "model.language_model.layers.1.x", true},
      {"layers.1.*", "language_model.model.layers.1.x", true},
      {"language_model.model.layers.2.x", "model.layers.2.x", true},
      {"layers.1.*", "vision_tower.layers.1.x", false},
      // 2: whole names, never parts of them.
      {"*.mlp.gate", "model.layers.3.mlp.gate", true},
      {"*.mlp.gate", "model.layers.3.mlp.gate_proj", false},
      {"*.mlp.gate", "model.layers.3.mlp.gate_up_proj", false},
      {"model.layers.3.mlp.gate", "model.layers.3.mlp.gate", true},
      {"model.layers.3.mlp.gate", "model.layers.3.mlp.gate_proj", false},
      {"kv_proj", "model.layers.0.self_attn.qkv_proj", false},
      {"*.kv_proj", "model.layers.0.self_attn.qkv_proj", false},
      {"layers.1", "model.layers.10", false},
      {"model.layers.1", "model.layers.1", true},
      // A glob crosses dots, and 1* means 10 too.
      {"model.layers.1*", "model.layers.1.mlp.gate_proj", true},
      {"model.layers.1*", "model.layers.10.mlp.gate_proj", true},
      {"model.layers.1.*", "model.layers.1.mlp.gate_proj", true},
      {"model.layers.1.*", "model.layers.10.mlp.gate_proj", false},
      {"*.self_attn.q_proj", "model.layers.7.self_attn.q_proj", true},
      {"*.mixer.gate*", "backbone.layers.2.mixer.gate", true},
      {"a?c", "abc", true},
      {"a?c", "ac", false},
      {"*a*b", "xaxxbxab", true},
      {"*a*b", "xaxxbxa", false},
      {"", "", true},
      {"**", "x", true},
      // 4: a star directly after a name covers the name itself; after a dot it does not.
      {"vision_tower*", "vision_tower", true},
      {"vision_tower*", "vision_tower.blocks.0", true},
      {"vision_tower.*", "vision_tower", false},
      // 5: names are remapped for wildcards as for whole names.
      {"*.mlp.experts*", "language_model.model.layers.1.block_sparse_moe.experts.3.w1", true},
      {"model.layers.1.mlp.experts", "language_model.model.layers.1.block_sparse_moe.experts",
       true},
      {"re:.*\\.mlp\\.experts\\..*", "model.layers.1.block_sparse_moe.experts.3.w1", true},
      {"*.mlp.experts_x", "model.layers.1.block_sparse_moe.experts_x", false},
      {"*.mlp.gate", "model.layers.1.block_sparse_moe.gate", false},
      // Regular expressions match from the start, not to the end.
      {"re:.*self_attn.*", "language_model.model.layers.1.self_attn.q_proj", true},
      {"re:self_attn", "language_model.model.layers.1.self_attn.q_proj", false},
      {"re:model.layers.1", "language_model.model.layers.10.x", true},
      {"re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.0.mlp.gate_proj", true},
      {"re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.1.block_sparse_moe.gate", false},
      {"re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
       "model.layers.1.block_sparse_moe.shared_experts.gate_proj", false},
      // 7: SGLang also matches each dotted part alone; that over-matches, and we do not.
      {"q_proj", "model.layers.1.self_attn.q_proj", false},
      {"gate", "model.layers.1.mlp.gate", false},
  };
  for (const Row& row : rows)
    EXPECT_EQ(covers(row.pattern, row.module), row.covered) << row.pattern << " on " << row.module;
}

TEST(ModulePattern, SaysWhichRegexCannotBeRead) {
  EXPECT_EQ(message_of([] {
              ModulePattern("re:(", "c.json: ignore[3]");
            }).rfind("c.json: ignore[3]: \"re:(\" is not a regular expression that can be read", 0),
            0u);
  // What RE2 cannot do is refused, not guessed at.
  EXPECT_THROW(ModulePattern("re:(?!x)y", ""), Error);
  EXPECT_THROW(ModulePattern("re:((((a{999}){999}){999}){999})", ""), Error);
}

// Patterns that make backtracking matchers take exponential time.
TEST(ModulePattern, HostilePatternsAreHarmless) {
  const std::string name(5000, 'a');
  std::string stars;
  for (int i = 0; i < 200; ++i) stars += "a*";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(ModulePattern(stars + "b", "").matches(name));
  EXPECT_FALSE(ModulePattern("re:(a|aa)*$b", "").matches(name));
  EXPECT_FALSE(ModulePattern("re:(((a*)*)*)*b", "").matches(name));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
}

}  // namespace
}  // namespace halfbyte

// The fixed texts of K3's chat encoding: data of the checkpoint, not of this program.
//
// Found in a checkpoint directory, in this order:
//   chat_format.json  {"format": "xtml", "thinking": true, "effort": "max", "texts": {NAME:
//   TEXT...}}
//                     with the names of ChatText below (docs/formats.md); all keys may be missing
//   encoding_k3.py    the checkpoint's own encoder: its string literals are matched against the
//                     SHA-256 sums of the texts; nothing is run
// A text that is not there is an error only when a prompt needs it.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace halfbyte {

enum class ChatText {
  kToolDeclare,         // "tool_declare": heading up to the tools' JSON, its fence line included
  kToolDeclareLater,    // "tool_declare_later": the same, for tools that a system message adds
  kEffortLow,           // "thinking_effort_low"
  kEffortHigh,          // "thinking_effort_high"
  kEffortMax,           // "thinking_effort_max"
  kToolChoiceRequired,  // "tool_choice_required"
  kToolChoiceNone,      // "tool_choice_none"
  kJsonObject,          // "response_format_json_object"
  kJsonSchema,          // "response_format_json_schema": up to the schema, its fence line included
};
inline constexpr int kChatTexts = 9;

enum class ThinkingEffort { kLow, kHigh, kMax };
// "low", "high", "max"; throws Error{kInput} at `where` otherwise.
ThinkingEffort parse_thinking_effort(std::string_view name, const std::string& where);

// Length and SHA-256 of a text.
struct TextSum {
  size_t bytes = 0;
  std::string_view sha256;  // 64 hexadecimal digits
};
std::string sha256_hex(std::string_view bytes);

class ChatFormat {
 public:
  // Throws Error{kInput} for a file that is there and wrong; a directory without either is fine.
  static ChatFormat from_directory(const std::filesystem::path& directory);
  static ChatFormat from_json(std::string_view text, const std::string& name);
  // `sums`: those of K3's texts, in the order of ChatText, unless a test has others.
  static ChatFormat from_python(std::string_view source, const std::string& name,
                                std::span<const TextSum> sums = k3_sums());
  static std::span<const TextSum> k3_sums();

  // Throws Error{kInput} that says which text is missing and where it was looked for.
  const std::string& text(ChatText which) const;
  // What a conversation uses unless it says otherwise.
  bool thinking() const { return thinking_; }
  std::optional<ThinkingEffort> effort() const { return effort_; }

 private:
  std::string origin_ = "neither chat_format.json nor encoding_k3.py is there";
  std::array<std::optional<std::string>, kChatTexts> texts_;
  bool thinking_ = true;
  std::optional<ThinkingEffort> effort_ = ThinkingEffort::kMax;
};

}  // namespace halfbyte

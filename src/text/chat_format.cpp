#include "text/chat_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "halfbyte/error.h"
#include "text/python_literals.h"

namespace halfbyte {
namespace fs = std::filesystem;

namespace {

constexpr std::array<std::string_view, kChatTexts> kNames = {
    "tool_declare",         "tool_declare_later",          "thinking_effort_low",
    "thinking_effort_high", "thinking_effort_max",         "tool_choice_required",
    "tool_choice_none",     "response_format_json_object", "response_format_json_schema"};
constexpr std::array<std::string_view, 3> kEfforts = {"low", "high", "max"};

// Specs: the published encoder of Kimi-K3, measured; the texts themselves stay with the checkpoint.
constexpr TextSum kK3Sums[kChatTexts] = {
    {72, "bbd0773d27b2a814a023a7a142c098958b170dbad77e461b286844512b5b74e7"},
    {188, "b5f3063ffeff6dab49436f59a41291fbdc826cc76653f98f26c514cd7cf7b74a"},
    {223, "003035f6bf61ffe6180f4bd5e5a12df1a7cc0cf4550ef78f5591ce8a4537f5fe"},
    {224, "a8513c631231c09d25027f0e0439194e4290e755fb20932c9f49dd7fa9d6ffc0"},
    {223, "20389202b5a9e0b3b556c90431fb62dc2f1bdb13a6e23fb7b516a3c2da848580"},
    {91, "e2c3dc236d94164ab96601b3ff7891ad44cdc7d6b38583ab552be33a6bff5f53"},
    {95, "efabd595d24633a14929fd64b8c21542cb13e3e6637ced319c5bec433900a2bb"},
    {162, "a88696fd119e35cae2c9cb15ed5a8230bedb9f46e07231f9f85e893e0f993b84"},
    {218, "35c44c528f6c1e2254d8f2e06a68b56506c231c2f4f0ce19617255a8102ebabe"},
};

// What a literal with placeholders may stand for: itself, what comes before the first placeholder,
// and the text with an effort in every placeholder.
std::vector<std::string> readings(const std::string& literal) {
  std::vector<std::string> texts = {literal};
  const size_t first = literal.find(kPlaceholder);
  if (first == std::string::npos) return texts;
  texts.push_back(literal.substr(0, first));
  for (const std::string_view effort : kEfforts) {
    std::string filled;
    for (const char c : literal) c == kPlaceholder ? filled += effort : filled += c;
    texts.push_back(filled);
  }
  return texts;
}

}  // namespace

ThinkingEffort parse_thinking_effort(std::string_view name, const std::string& where) {
  const auto found = std::find(kEfforts.begin(), kEfforts.end(), name);
  if (found == kEfforts.end())
    throw Error(ErrorKind::kInput, where,
                fmt::format("thinking effort `{}` is unknown; known are {}", name,
                            fmt::join(kEfforts, ", ")));
  return static_cast<ThinkingEffort>(found - kEfforts.begin());
}

std::string sha256_hex(std::string_view bytes) {
  std::array<unsigned char, 32> digest{};
  unsigned int length = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr) != 1)
    throw Error(ErrorKind::kResource, "SHA-256", "the cryptographic library refuses it");
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

std::span<const TextSum> ChatFormat::k3_sums() { return kK3Sums; }

ChatFormat ChatFormat::from_directory(const fs::path& directory) {
  if (const fs::path path = directory / "chat_format.json"; fs::exists(path))
    return from_json(read_text(path), path.string());
  if (const fs::path path = directory / "encoding_k3.py"; fs::exists(path))
    return from_python(read_text(path), path.string());
  ChatFormat format;
  format.origin_ = directory.string() + " has neither chat_format.json nor encoding_k3.py";
  return format;
}

ChatFormat ChatFormat::from_json(std::string_view text, const std::string& name) {
  const JsonDocument document = JsonDocument::from_text(text, name);
  ChatFormat format;
  format.origin_ = name + " does not have it";
  document.root().for_each_member([&](std::string_view key, Json value) {
    if (key == "format") {
      if (value.string() != "xtml") value.fail("unknown format; known is xtml");
    } else if (key == "thinking") {
      format.thinking_ = value.boolean();
    } else if (key == "effort") {
      format.effort_ = value.is_null()
                           ? std::nullopt
                           : std::optional(parse_thinking_effort(value.string(), value.where()));
    } else if (key == "texts") {
      value.for_each_member([&](std::string_view text_name, Json content) {
        const auto found = std::find(kNames.begin(), kNames.end(), text_name);
        if (found == kNames.end())
          content.fail(fmt::format("unknown text; known are {}", fmt::join(kNames, ", ")));
        format.texts_[static_cast<size_t>(found - kNames.begin())] = content.string();
      });
    } else {
      value.fail("unknown key; known are format, thinking, effort, texts");
    }
  });
  return format;
}

ChatFormat ChatFormat::from_python(std::string_view source, const std::string& name,
                                   std::span<const TextSum> sums) {
  ChatFormat format;
  format.origin_ = name + " has no string literal with its SHA-256";
  for (const std::string& literal : python_literals(source))
    for (std::string& text : readings(literal))
      for (size_t i = 0; i < sums.size(); ++i)
        if (text.size() == sums[i].bytes && sha256_hex(text) == sums[i].sha256)
          format.texts_[i] = text;
  return format;
}

const std::string& ChatFormat::text(ChatText which) const {
  const size_t index = static_cast<size_t>(which);
  if (!texts_[index])
    throw Error(
        ErrorKind::kInput, "chat format",
        fmt::format("the text {} is needed: {}; chat_format.json may give it (docs/formats.md)",
                    kNames[index], origin_));
  return *texts_[index];
}

}  // namespace halfbyte

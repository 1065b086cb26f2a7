#include "text/chat_format.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "halfbyte/error.h"

namespace halfbyte {
namespace {

// An encoder that builds its texts in every way that K3's does.
const std::string kSource = R"python(
"""Module text."""
def declare(tools):
    return ("# Things\n"
            "Here they are.\n\n"
            "```json\n"
            f"{dumps(tools)}\n"
            "```")
def effort(level):
    say("kind", "Think, `{}`,\n"  # a comment
        f"this much: {level}.")
choice = 'You MUST.'
)python";
const std::string kHeading = "# Things\nHere they are.\n\n```json\n";

std::string effort(const std::string& level) { return "Think, `{}`,\nthis much: " + level + "."; }

TEST(ChatFormat, TextsAreFoundInPythonByTheirSums) {
  const std::vector<std::string> texts = {kHeading,       "absent",      effort("low"),
                                          effort("high"), effort("max"), "You MUST."};
  std::vector<std::string> digests;
  std::vector<TextSum> sums;
  for (const std::string& text : texts) digests.push_back(sha256_hex(text));
  for (size_t i = 0; i < texts.size(); ++i) sums.push_back({texts[i].size(), digests[i]});
  const ChatFormat format = ChatFormat::from_python(kSource, "encoding.py", sums);
  for (const ChatText which : {ChatText::kToolDeclare, ChatText::kEffortLow, ChatText::kEffortHigh,
                               ChatText::kEffortMax, ChatText::kToolChoiceRequired})
    EXPECT_EQ(format.text(which), texts[static_cast<size_t>(which)]);
  for (const ChatText missing : {ChatText::kToolDeclareLater, ChatText::kToolChoiceNone}) {
    try {
      format.text(missing);
      ADD_FAILURE() << "found a text that is not there";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("encoding.py"), std::string::npos);
    }
  }

  // One character of the source changed: that text, and no other, is not found any more.
  std::string changed = kSource;
  changed[changed.find("MUST")] = 'N';
  const ChatFormat other = ChatFormat::from_python(changed, "encoding.py", sums);
  EXPECT_THROW(other.text(ChatText::kToolChoiceRequired), Error);
  EXPECT_EQ(other.text(ChatText::kToolDeclare), kHeading);
}

TEST(ChatFormat, Sha256) {  // FIPS 180-2, appendix B
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(ChatFormat, JsonGivesTextsAndDefaults) {
  const ChatFormat format = ChatFormat::from_json(
      R"({"format": "xtml", "thinking": false, "effort": "low", "texts": {"tool_choice_none": "No."}})",
      "chat_format.json");
  EXPECT_EQ(format.text(ChatText::kToolChoiceNone), "No.");
  EXPECT_FALSE(format.thinking());
  EXPECT_EQ(format.effort(), ThinkingEffort::kLow);
  EXPECT_THROW(format.text(ChatText::kEffortMax), Error);
  EXPECT_EQ(ChatFormat::from_json(R"({"effort": null})", "x").effort(), std::nullopt);
  for (const std::string bad :
       {R"({"format": "chatml"})", R"({"texts": {"tools": "x"}})", R"({"effort": "medium"})",
        R"({"texts": {"tool_choice_none": 3}})", R"({"thinking": "yes"})", R"({"else": 1})", "[]"})
    EXPECT_THROW(ChatFormat::from_json(bad, "chat_format.json"), Error) << bad;
}

TEST(ChatFormat, ADirectoryWithoutEitherFileIsFineUntilATextIsNeeded) {
  const ChatFormat format = ChatFormat::from_directory(HALFBYTE_TEST_DATA "/tokenizer");
  EXPECT_TRUE(format.thinking());
  EXPECT_EQ(format.effort(), ThinkingEffort::kMax);
  EXPECT_THROW(format.text(ChatText::kEffortMax), Error);
}

TEST(ChatFormatK3, ThePublishedEncoderHasEveryText) {
  const char* directory = std::getenv("HALFBYTE_K3_TOKENIZER");
  if (directory == nullptr ||
      !std::filesystem::exists(std::filesystem::path(directory) / "encoding_k3.py"))
    GTEST_SKIP()
        << "set HALFBYTE_K3_TOKENIZER to a directory with Kimi-K3's encoding_k3.py to look "
           "for its fixed texts";
  const ChatFormat format = ChatFormat::from_directory(directory);
  for (int i = 0; i < kChatTexts; ++i)
    EXPECT_EQ(format.text(static_cast<ChatText>(i)).size(), ChatFormat::k3_sums()[i].bytes);
}

}  // namespace
}  // namespace halfbyte

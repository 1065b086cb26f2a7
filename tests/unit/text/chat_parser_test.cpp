#include "text/chat_parser.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/chat.h"
#include "text/python_json.h"

namespace halfbyte {
namespace {

using Ids = std::vector<int32_t>;

const Tokenizer& tokenizer() {
  static const Tokenizer small{std::filesystem::path(HALFBYTE_TEST_DATA "/tokenizer")};
  return small;
}

ChatDelta parse(const Ids& ids, bool thinking = true) {
  ChatParser parser(tokenizer(), thinking);
  ChatDelta all;
  const auto add = [&](ChatDelta part) {
    all.reasoning += part.reasoning;
    all.content += part.content;
    for (ChatToolCall& call : part.tool_calls) all.tool_calls.push_back(std::move(call));
  };
  for (const int32_t id : ids) add(parser.push(id));
  add(parser.finish());
  return all;
}

ChatDelta parse(const std::string& text, bool thinking = true) {
  return parse(tokenizer().encode_with_specials(text), thinking);
}

// What K3 would generate to say `message`: its encoding without what the prompt has opened.
Ids spoken(const ChatMessage& message, bool thinking) {
  ChatRequest request;
  request.messages = {message};
  request.thinking = thinking;
  request.effort = std::nullopt;
  request.generation_prompt = false;
  const std::vector<ChatSegment> all = chat_segments(request, ChatFormat());
  request.messages.clear();
  request.generation_prompt = true;
  const size_t prompt = chat_segments(request, ChatFormat()).size();
  return encode_chat({all.begin() + static_cast<int64_t>(prompt), all.end()}, tokenizer());
}

std::string same_json(const std::string& text) {
  return to_python_json(JsonDocument::from_text(text, "arguments").root(), kSortedCompactJson);
}

rc::Gen<std::string> texts() {
  return rc::gen::map(
      rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
          "a", " ", "\n", "\"", "&", "&quot;", "&amp;", "é", "漢", "🙂", "<|open|>", "<|close|>",
          "<|sep|>", "response", "call", "=\"", "\\", "{", "1", "the ")),
      [](const std::vector<std::string>& parts) {
        std::string text;
        for (const std::string& part : parts) text += part;
        return text;
      });
}

RC_GTEST_PROP(ChatParser, UndoesTheEncoder, (bool thinking)) {
  ChatMessage message;
  message.role = "assistant";
  message.content = {*texts()};
  if (thinking) message.reasoning = "r" + *texts();
  const std::vector<std::string> values = {
      python_json_string(*texts()), "5", "-1.5", "true", "null", R"({"k": ["v", 1]})", "[]"};
  for (int i = *rc::gen::inRange(0, 3); i > 0; --i) {
    std::string arguments = "{";
    for (const std::string& value : values)
      if (*rc::gen::arbitrary<bool>())
        arguments += (arguments.size() > 1 ? ", " : "") +
                     python_json_string(std::to_string(arguments.size()) + *texts()) + ": " + value;
    message.tool_calls.push_back({.id = {}, .name = "f" + *texts(), .arguments = arguments + "}"});
  }
  const ChatDelta heard = parse(spoken(message, thinking), thinking);
  RC_ASSERT(heard.reasoning == message.reasoning);
  RC_ASSERT(heard.content == message.content[0]);
  RC_ASSERT(heard.tool_calls.size() == message.tool_calls.size());
  for (size_t i = 0; i < heard.tool_calls.size(); ++i) {
    RC_ASSERT(heard.tool_calls[i].name == message.tool_calls[i].name);
    RC_ASSERT(same_json(heard.tool_calls[i].arguments) ==
              same_json(message.tool_calls[i].arguments));
  }

  // Cut off anywhere: what came is a beginning of it, and no call is made up.
  Ids ids = spoken(message, thinking);
  ids.resize(*rc::gen::inRange<size_t>(0, ids.size() + 1));
  const ChatDelta cut = parse(ids, thinking);
  const auto begins = [](const std::string& whole, std::string part) {
    while (part.ends_with("\xEF\xBF\xBD")) part.resize(part.size() - 3);  // half a character
    return whole.starts_with(part);
  };
  RC_ASSERT(begins(heard.reasoning, cut.reasoning));
  RC_ASSERT(begins(heard.content, cut.content));
  RC_ASSERT(cut.tool_calls.size() <= heard.tool_calls.size());
}

RC_GTEST_PROP(ChatParser, AnyTokensAreTolerated, (bool thinking)) {
  const Ids structure = tokenizer().encode_with_specials(
      "<|open|><|close|><|sep|><|end_of_msg|>[BOS]tools call argument response think message json "
      "key");
  parse(*rc::gen::container<Ids>(rc::gen::elementOf(structure)), thinking);
}

TEST(ChatParser, ChannelsComeAsTheyAre) {
  const std::string all =
      "why<|close|>think<|sep|> dropped <|open|>response<|sep|>42 <b>&amp;<|close|>response<|sep|>"
      "<|close|>message<|sep|><|end_of_msg|>after";
  EXPECT_EQ(parse(all).reasoning, "why");
  EXPECT_EQ(parse(all).content, "42 <b>&amp;");
  ChatParser parser(tokenizer(), true);
  for (const int32_t id : tokenizer().encode_with_specials(all)) parser.push(id);
  EXPECT_TRUE(parser.ended());
  // No response channel at all.
  const ChatDelta only_tools = parse(
      "<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>"
      "<|close|>call<|sep|><|close|>tools<|sep|>");
  ASSERT_EQ(only_tools.tool_calls.size(), 1u);
  EXPECT_EQ(only_tools.tool_calls[0].arguments, "{}");
  EXPECT_EQ(only_tools.content, "");
}

TEST(ChatParser, ArgumentsByType) {
  const auto arguments = [](const std::string& body) {
    const ChatDelta delta =
        parse("<|open|>tools<|sep|><|open|>call tool=\"a&amp;quot;&quot;\"<|sep|>" + body +
                  "<|close|>call<|sep|>",
              false);
    EXPECT_EQ(delta.tool_calls.size(), 1u);
    EXPECT_EQ(delta.tool_calls.at(0).name, "a&quot;\"");
    return delta.tool_calls.at(0).arguments;
  };
  const auto argument = [](const std::string& type, const std::string& value) {
    return "<|open|>argument key=\"k\" type=\"" + type + "\"<|sep|>" + value +
           "<|close|>argument<|sep|>";
  };
  EXPECT_EQ(arguments(argument("string", " 5\n")), R"({"k": " 5\n"})");
  EXPECT_EQ(arguments(argument("number", "5")), R"({"k": 5})");
  EXPECT_EQ(arguments(argument("number", "five")), R"({"k": "five"})");
  EXPECT_EQ(arguments(argument("object", R"({"a": [1]})")), R"({"k": {"a": [1]}})");
  EXPECT_EQ(arguments(argument("number", "1") + argument("number", "2")), R"({"k": 2})");
  EXPECT_EQ(arguments("<|open|>json type=\"object\"<|sep|>{\"a\": 1<|close|>json<|sep|>"),
            "{\"a\": 1");
}

TEST(ChatParser, WhatIsLeftOpenInsideEndsWithItsOuterElement) {
  const ChatDelta delta = parse(
      "<|open|>tools<|sep|><|open|>call tool=\"f\"<|sep|><|open|>argument key=\"k\" type=\"number\""
      "<|sep|>5<|close|>call<|sep|><|close|>tools<|sep|><|open|>response<|sep|>more",
      false);
  ASSERT_EQ(delta.tool_calls.size(), 1u);
  EXPECT_EQ(delta.tool_calls[0].arguments, "{}");  // an argument without its close does not count
  EXPECT_EQ(delta.content, "more");
  // A close without its open changes nothing.
  EXPECT_EQ(parse("a<|close|>tools<|sep|>b", false).content, "ab");
}

TEST(ChatParser, StructureMadeOfOrdinaryTokensIsText) {
  ChatParser parser(tokenizer(), false);
  std::string content;
  const std::string text = "<|close|>response<|sep|><|open|>tools<|sep|>";
  for (const int32_t id : tokenizer().encode(text)) content += parser.push(id).content;
  EXPECT_EQ(content, text);
  // Teeth: as control tokens the same characters are structure.
  EXPECT_EQ(parse(text, false).content, "");
}

}  // namespace
}  // namespace halfbyte

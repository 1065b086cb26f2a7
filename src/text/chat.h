// A conversation -> K3's prompt ("XTML"): segments, then token ids.
//
// A prompt is a list of segments that are encoded on their own. In a control segment the names of
// special tokens become those tokens; in an ordinary one they are plain text, so no message, name
// or argument can forge structure. Segment borders are token borders.
//   open(tag, attributes)  <|open|>  tag  { SPACE key  ="  value  " }...  <|sep|>
//   close(tag)             <|close|> tag  <|sep|>
//   message                open(message, role=...)  body  close(message)  <|end_of_msg|>
// Attribute values are escaped (& and "), bodies are not. Order: tools, thinking effort, the
// conversation, tool choice, response format, and the opened assistant message.
// Checked by segments written down by hand from the published encoder's rules.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_format.h"
#include "text/tokenizer.h"

namespace halfbyte {

struct ChatToolCall {
  std::string id;  // opaque; empty: none
  std::string name;
  // The text of a JSON object; blank: no arguments. Text that is not JSON is passed on as it is;
  // JSON that is not an object is an error.
  std::string arguments;
};

struct ChatMessage {
  std::string role;  // user, system, assistant, tool
  std::optional<std::string> name = {};
  std::vector<std::string> content = {};      // its text parts, each a segment; usually one
  std::string reasoning = {};                 // assistant
  std::vector<ChatToolCall> tool_calls = {};  // assistant
  std::string tool_call_id = {};              // tool: which call it answers; empty: unknown
  std::optional<std::string> tool = {};       // tool: whose answer it is, where no call says so
  std::string tools = {};                     // system: JSON of tools added here, no content then
};

enum class ToolChoice { kAuto, kRequired, kNone };
enum class ResponseFormat { kText, kJsonObject, kJsonSchema };

struct ChatRequest {
  std::vector<ChatMessage> messages;
  std::string tools;  // JSON of the list of tools; empty: none
  bool thinking = true;
  std::optional<ThinkingEffort> effort = ThinkingEffort::kMax;
  ToolChoice tool_choice = ToolChoice::kAuto;
  ResponseFormat response_format = ResponseFormat::kText;
  std::string schema;             // JSON; kJsonSchema
  bool generation_prompt = true;  // opens the assistant's message at the end
};

struct ChatSegment {
  std::string text;
  bool control = false;
  bool operator==(const ChatSegment&) const = default;
};

// Throws Error{kInput} that names the message and field, or the fixed text that is missing.
std::vector<ChatSegment> chat_segments(const ChatRequest& request, const ChatFormat& format);

// Throws Error{kInput} when the tokenizer lacks a control token or a segment is not UTF-8, and
// Error{kUnsupported} for a tokenizer with the chat tokens of Kimi-K2 and Kimi-Linear, whose
// encoding is another one.
std::vector<int32_t> encode_chat(const std::vector<ChatSegment>& segments,
                                 const Tokenizer& tokenizer);

}  // namespace halfbyte

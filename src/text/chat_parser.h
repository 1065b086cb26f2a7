// Token ids that K3 generates -> reasoning, answer, tool calls, as they come.
//
// Only the tokens <|open|>, <|close|>, <|sep|> and <|end_of_msg|> are structure; the same
// characters made of ordinary tokens are text. After <|open|> or <|close|> comes a tag with
// attributes, up to
// <|sep|>. Text goes where it stands: in `think` it is reasoning, in `response` the answer;
// anything outside those is dropped. A call counts when its close has come. The stream may stop
// anywhere, and any channel may be missing. Argument values: type string as it is; the other types
// as JSON, or as a string where they are not JSON. A `json` block is the arguments' text itself.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/chat.h"
#include "text/tokenizer.h"

namespace halfbyte {

struct ChatDelta {
  std::string reasoning;
  std::string content;
  std::vector<ChatToolCall> tool_calls;  // complete ones; without id
};

class ChatParser {
 public:
  // `thinking`: what the prompt opened last, think or response. The tokenizer must outlive this.
  // Throws Error{kInput} if it lacks a control token.
  ChatParser(const Tokenizer& tokenizer, bool thinking);

  ChatDelta push(int32_t id);            // throws Error{kInput} for an id outside the vocabulary
  ChatDelta finish();                    // what was held back of an incomplete character
  bool ended() const { return ended_; }  // <|end_of_msg|> has come; further tokens are ignored

 private:
  struct Element {
    std::string tag;
    std::map<std::string, std::string> attributes = {};
    std::string text = {};                                         // argument, json
    std::optional<std::string> raw = {};                           // call: its json block
    std::vector<std::pair<std::string, std::string>> values = {};  // call: key, JSON text
  };
  enum class Header { kNone, kOpen, kClose };

  void emit(std::string text, ChatDelta& delta);
  void open_element();
  void close_element(ChatDelta& delta);
  void end(Element element, ChatDelta& delta);

  TokenStream stream_;
  int32_t open_, close_, sep_, end_of_message_;
  std::vector<Element> path_;  // the elements that are open, outermost first
  Header header_ = Header::kNone;
  std::string header_text_;
  bool ended_ = false;
};

}  // namespace halfbyte

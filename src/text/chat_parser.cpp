#include "text/chat_parser.h"

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "halfbyte/error.h"
#include "text/python_json.h"

namespace halfbyte {

namespace {

std::string unescape_attribute(std::string text) {
  const auto replace = [&](std::string_view from, char to) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; ++at)
      text.replace(at, from.size(), 1, to);
  };
  replace("&quot;", '"');  // NOTE: before &amp;, or &amp;quot; would lose a level
  replace("&amp;", '&');
  return text;
}

bool is_json(std::string_view text) {
  try {
    JsonDocument::from_text(text, "argument");
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

ChatParser::ChatParser(const Tokenizer& tokenizer, bool thinking)
    : stream_(tokenizer),
      open_(tokenizer.get_special("<|open|>")),
      close_(tokenizer.get_special("<|close|>")),
      sep_(tokenizer.get_special("<|sep|>")),
      end_of_message_(tokenizer.get_special("<|end_of_msg|>")) {
  path_.push_back({.tag = "message"});
  path_.push_back({.tag = thinking ? "think" : "response"});
}

ChatDelta ChatParser::push(int32_t id) {
  ChatDelta delta;
  if (ended_) return delta;
  const bool structure = id == open_ || id == close_ || id == sep_ || id == end_of_message_;
  if (!structure) {
    emit(stream_.push(id), delta);
    return delta;
  }
  emit(stream_.finish(), delta);
  if (id == end_of_message_) {
    ended_ = true;
  } else if (id != sep_) {
    header_ = id == open_ ? Header::kOpen : Header::kClose;
    header_text_.clear();
  } else if (header_ == Header::kOpen) {
    open_element();
  } else if (header_ == Header::kClose) {
    close_element(delta);
  }
  if (id == sep_) header_ = Header::kNone;
  return delta;
}

ChatDelta ChatParser::finish() {
  ChatDelta delta;
  emit(stream_.finish(), delta);
  return delta;
}

void ChatParser::emit(std::string text, ChatDelta& delta) {
  if (header_ != Header::kNone) {
    header_text_ += text;
  } else if (!path_.empty()) {
    Element& element = path_.back();
    if (element.tag == "think") delta.reasoning += text;
    if (element.tag == "response") delta.content += text;
    if (element.tag == "argument" || element.tag == "json") element.text += text;
  }
}

// header_text_: tag key="value" key="value"
void ChatParser::open_element() {
  const std::string_view header = header_text_;
  Element element{.tag = std::string(header.substr(0, header.find(' ')))};
  for (size_t at = element.tag.size(); at < header.size();) {
    const size_t key = header.find_first_not_of(' ', at);
    const size_t equals = header.find("=\"", at);
    if (key == std::string_view::npos || equals == std::string_view::npos) break;
    const size_t quote = std::min(header.find('"', equals + 2), header.size());
    element.attributes[std::string(header.substr(key, equals - key))] =
        unescape_attribute(std::string(header.substr(equals + 2, quote - equals - 2)));
    at = quote + 1;
  }
  path_.push_back(std::move(element));
}

// Ends the innermost element of that tag and, without effect, whatever was left open inside it.
void ChatParser::close_element(ChatDelta& delta) {
  const auto same = [&](const Element& element) { return element.tag == header_text_; };
  const auto found = std::find_if(path_.rbegin(), path_.rend(), same);
  if (found == path_.rend()) return;
  path_.erase(found.base(), path_.end());
  Element element = std::move(path_.back());
  path_.pop_back();
  end(std::move(element), delta);
}

void ChatParser::end(Element element, ChatDelta& delta) {
  Element* call = path_.empty() || path_.back().tag != "call" ? nullptr : &path_.back();
  if (element.tag == "argument" && call != nullptr) {
    const bool verbatim = element.attributes["type"] == "string" || !is_json(element.text);
    std::string value = verbatim ? python_json_string(element.text) : std::move(element.text);
    const std::string key = element.attributes["key"];
    const auto same = [&](const auto& other) { return other.first == key; };
    const auto found = std::find_if(call->values.begin(), call->values.end(), same);
    if (found != call->values.end())
      found->second = std::move(value);  // given twice: the last counts
    else
      call->values.emplace_back(key, std::move(value));
  } else if (element.tag == "json" && call != nullptr) {
    call->raw = std::move(element.text);
  } else if (element.tag == "call" && !element.attributes["tool"].empty()) {
    std::string arguments = "{";
    for (const auto& [key, value] : element.values) {
      if (arguments.size() > 1) arguments += ", ";
      arguments += python_json_string(key) + ": " + value;
    }
    arguments += "}";
    delta.tool_calls.push_back({.id = {},
                                .name = element.attributes["tool"],
                                .arguments = element.raw.value_or(arguments)});
  }
}

}  // namespace halfbyte

#include "text/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/json.h"
#include "halfbyte/error.h"
#include "text/python_json.h"

namespace halfbyte {

namespace {

using Attributes = std::vector<std::pair<std::string_view, std::string>>;

std::string escape_attribute(std::string_view value) {
  std::string escaped;
  for (const char c : value)
    c == '&' ? escaped += "&amp;" : c == '"' ? escaped += "&quot;" : escaped += c;
  return escaped;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\n\r\f\v") == std::string_view::npos;
}

std::string canonical_json(std::string_view text, const std::string& where) {
  return to_python_json(JsonDocument::from_text(text, where).root(), kSortedCompactJson);
}

[[noreturn]] void fail(const std::string& where, const std::string& message) {
  throw Error(ErrorKind::kInput, where, message);
}

class Writer {
 public:
  explicit Writer(const ChatFormat& format) : format_(format) {}

  void write(const ChatRequest& request) {
    if (!request.tools.empty())
      declare_tools(ChatText::kToolDeclare, canonical_json(request.tools, "tools"));
    if (request.thinking && request.effort) {
      constexpr ChatText kEffort[] = {ChatText::kEffortLow, ChatText::kEffortHigh,
                                      ChatText::kEffortMax};
      instruct("thinking-effort", format_.text(kEffort[static_cast<int>(*request.effort)]));
    }
    conversation(request.messages, request.thinking);
    if (request.tool_choice == ToolChoice::kRequired)
      instruct("tool-choice", format_.text(ChatText::kToolChoiceRequired));
    if (request.tool_choice == ToolChoice::kNone)
      instruct("tool-choice", format_.text(ChatText::kToolChoiceNone));
    if (request.response_format == ResponseFormat::kJsonObject)
      instruct("response-format", format_.text(ChatText::kJsonObject));
    if (request.response_format == ResponseFormat::kJsonSchema)
      instruct("response-format", fenced(format_.text(ChatText::kJsonSchema),
                                         canonical_json(request.schema, "schema")));
    if (request.generation_prompt) {
      open("message", {{"role", "assistant"}});
      open(request.thinking ? "think" : "response");
    }
  }

  std::vector<ChatSegment> take() { return std::move(segments_); }

 private:
  // ---- Elements.

  void put(std::string_view text, bool control = false) {
    if (!text.empty()) segments_.push_back({std::string(text), control});
  }

  void open(std::string_view tag, const Attributes& attributes = {}) {
    put("<|open|>", true);
    put(tag);
    for (const auto& [key, value] : attributes) {
      put(fmt::format(" {}", key));
      put("=\"");
      put(escape_attribute(value));
      put("\"");
    }
    put("<|sep|>", true);
  }

  void close(std::string_view tag) {
    put("<|close|>", true);
    put(tag);
    put("<|sep|>", true);
  }

  void end_message() {
    close("message");
    put("<|end_of_msg|>", true);
  }

  void instruct(const std::string& type, std::string_view body) {
    open("message", {{"role", "system"}, {"type", type}});
    put(body);
    end_message();
  }

  static std::string fenced(std::string_view heading, std::string_view json) {
    return fmt::format("{}{}\n```", heading, json);
  }

  void declare_tools(ChatText heading, std::string_view json) {
    instruct("tool-declare", fenced(format_.text(heading), json));
  }

  // ---- The conversation.

  void conversation(const std::vector<ChatMessage>& messages, bool thinking) {
    const std::vector<ChatToolCall>* calls = nullptr;  // of the last assistant message
    int results = 0;                                   // since then
    for (size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      const std::string where = fmt::format("messages[{}]", i);
      if (message.role == "user" || (message.role == "system" && message.tools.empty())) {
        open("message", role_of(message));
        put_content(message);
        end_message();
      } else if (message.role == "system") {
        if (!message.content.empty()) fail(where, "a system message has either tools or content");
        declare_tools(ChatText::kToolDeclareLater, canonical_json(message.tools, where + ".tools"));
      } else if (message.role == "assistant") {
        calls = &message.tool_calls;
        results = 0;
        open("message", role_of(message));
        assistant(message, thinking, where);
        end_message();
      } else if (message.role == "tool") {
        size_t end = i + 1;
        while (end < messages.size() && messages[end].role == "tool") ++end;
        tool_results({&messages[i], end - i}, calls, results, where);
        i = end - 1;
      } else {
        fail(where + ".role",
             fmt::format("`{}` is unknown; known are user, system, assistant, tool", message.role));
      }
    }
  }

  static Attributes role_of(const ChatMessage& message) {
    Attributes attributes = {{"role", message.role}};
    if (message.name && !message.name->empty()) attributes.emplace_back("name", *message.name);
    return attributes;
  }

  void put_content(const ChatMessage& message) {
    for (const std::string& part : message.content) put(part);
  }

  void assistant(const ChatMessage& message, bool thinking, const std::string& where) {
    if (thinking) {
      open("think");
      if (!is_blank(message.reasoning)) put(message.reasoning);
      close("think");
    }
    open("response");
    put_content(message);
    close("response");
    if (message.tool_calls.empty()) return;
    open("tools");
    for (size_t i = 0; i < message.tool_calls.size(); ++i) {
      const ChatToolCall& call = message.tool_calls[i];
      open("call", {{"tool", call.name}, {"index", std::to_string(i + 1)}});
      arguments(call.arguments, fmt::format("{}.tool_calls[{}].arguments", where, i));
      close("call");
    }
    close("tools");
  }

  void arguments(const std::string& text, const std::string& where) {
    if (is_blank(text)) return;
    std::optional<JsonDocument> document;
    try {
      document = JsonDocument::from_text(text, where);
    } catch (const Error&) {  // what is not JSON goes back to the model as it came
      open("json", {{"type", "object"}});
      put(text);
      close("json");
      return;
    }
    if (document->root().type() != Json::Type::kObject) fail(where, "is JSON, but not an object");
    document->root().for_each_member([&](std::string_view key, Json value) {
      open("argument", {{"key", std::string(key)}, {"type", type_of(value)}});
      put(value.type() == Json::Type::kString ? std::string(value.string())
                                              : to_python_json(value));
      close("argument");
    });
  }

  static std::string type_of(const Json& value) {
    switch (value.type()) {
      case Json::Type::kNull:
        return "null";
      case Json::Type::kBool:
        return "boolean";
      case Json::Type::kInteger:
      case Json::Type::kReal:
        return "number";
      case Json::Type::kString:
        return "string";
      case Json::Type::kArray:
        return "array";
      case Json::Type::kObject:
        return "object";
    }
    return {};
  }

  // A run of results: in the order of the calls that they answer if every one answers a call, else
  // as they are.
  void tool_results(std::span<const ChatMessage> run, const std::vector<ChatToolCall>* calls,
                    int& results, const std::string& where) {
    std::map<std::string_view, size_t> call_of_id;
    for (size_t i = 0; calls != nullptr && i < calls->size(); ++i)
      if (!(*calls)[i].id.empty()) call_of_id.emplace((*calls)[i].id, i);

    struct Result {
      size_t call;
      const ChatMessage* message;
    };
    std::vector<Result> ordered;
    for (const ChatMessage& message : run)
      if (const auto found = call_of_id.find(message.tool_call_id); found != call_of_id.end())
        ordered.push_back({found->second, &message});
    const bool matched = ordered.size() == run.size();
    if (matched)
      std::stable_sort(ordered.begin(), ordered.end(),
                       [](const Result& a, const Result& b) { return a.call < b.call; });

    for (size_t i = 0; i < run.size(); ++i) {
      const ChatMessage& message = matched ? *ordered[i].message : run[i];
      const size_t index = static_cast<size_t>(results++);
      std::string name;
      if (matched)
        name = (*calls)[ordered[i].call].name;
      else if (message.tool || message.name)
        name = message.tool ? *message.tool : *message.name;
      else if (calls != nullptr && index < calls->size())
        name = (*calls)[index].name;
      else
        fail(where, "a tool message needs a tool, a name, or a call that it answers");
      open("message", {{"role", "tool"}, {"tool", name}, {"index", std::to_string(results)}});
      put_content(message);
      end_message();
    }
  }

  const ChatFormat& format_;
  std::vector<ChatSegment> segments_;
};

}  // namespace

std::vector<ChatSegment> chat_segments(const ChatRequest& request, const ChatFormat& format) {
  Writer writer(format);
  writer.write(request);
  return writer.take();
}

std::vector<int32_t> encode_chat(const std::vector<ChatSegment>& segments,
                                 const Tokenizer& tokenizer) {
  if (tokenizer.find_special("<|im_middle|>"))
    throw Error(
        ErrorKind::kUnsupported, "chat",
        "this tokenizer has the chat tokens of Kimi-K2 (<|im_middle|>); only the encoding of "
        "Kimi-K3 is supported, plain prompts work");
  std::vector<int32_t> ids;
  for (const ChatSegment& segment : segments) {
    if (segment.control) {
      ids.push_back(tokenizer.get_special(segment.text));
    } else {
      const std::vector<int32_t> part = tokenizer.encode(segment.text);
      ids.insert(ids.end(), part.begin(), part.end());
    }
  }
  return ids;
}

}  // namespace halfbyte

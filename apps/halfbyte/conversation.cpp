#include "conversation.h"

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "halfbyte/error.h"

namespace halfbyte {

namespace {

volatile std::sig_atomic_t interrupted = 0;

// While it lives, SIGINT sets `interrupted` and ends a read that waits.
class Interrupts {
 public:
  Interrupts() {
    struct sigaction action = {};
    action.sa_handler = [](int) { interrupted = 1; };
    sigaction(SIGINT, &action, &before_);
  }
  ~Interrupts() { sigaction(SIGINT, &before_, nullptr); }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

 private:
  struct sigaction before_ = {};
};

// Without its end; nothing at the end of the input.
std::optional<std::string> read_line(bool terminal) {
  char* line = nullptr;
  size_t room = 0;
  for (;;) {
    interrupted = 0;
    if (terminal) fmt::print(stderr, "> ");
    const ssize_t length = ::getline(&line, &room, stdin);
    if (length < 0 && interrupted) {
      std::clearerr(stdin);
      fmt::print(stderr, "\nCtrl-D ends.\n");
      continue;
    }
    std::optional<std::string> result;
    if (length >= 0) result = std::string(line, static_cast<size_t>(length));
    std::free(line);
    while (result && !result->empty() && (result->back() == '\n' || result->back() == '\r'))
      result->pop_back();
    return result;
  }
}

}  // namespace

void AnswerPrinter::print(const ChatDelta& delta) {
  fmt::print(stderr, "{}", delta.reasoning);
  reasoned_ |= !delta.reasoning.empty();
  const bool answers = !delta.content.empty() || !delta.tool_calls.empty();
  if (answers && std::exchange(reasoned_, false)) fmt::print(stderr, "\n\n");
  fmt::print("{}", delta.content);
  for (const ChatToolCall& call : delta.tool_calls)
    fmt::print("[calls {} {}]", call.name, call.arguments);
  std::fflush(stdout);
  message_.reasoning += delta.reasoning;
  message_.content[0] += delta.content;
  message_.tool_calls.insert(message_.tool_calls.end(), delta.tool_calls.begin(),
                             delta.tool_calls.end());
}

void AnswerPrinter::end() {
  print(parser_.finish());
  if (reasoned_) fmt::print(stderr, "\n");  // and nothing was answered
  fmt::print("\n");
  std::fflush(stdout);
}

void converse(Model& model, const Tokenizer& tokenizer, const ChatFormat& format,
              ChatRequest request, const GenerateOptions& options, bool terminal) {
  const Interrupts interrupts;
  Generator generator(model);
  if (terminal) fmt::print(stderr, "A line is a message. Ctrl-C stops an answer, Ctrl-D ends.\n");
  while (const std::optional<std::string> line = read_line(terminal)) {
    if (line->empty()) continue;
    request.messages.push_back({.role = "user", .content = {*line}});
    std::vector<int32_t> prompt;
    try {
      prompt = encode_chat(chat_segments(request, format), tokenizer);
    } catch (const Error& error) {  // it is not UTF-8
      fmt::print(stderr, "{}\n", error.what());
      request.messages.pop_back();
      continue;
    }
    AnswerPrinter printer(tokenizer, request.thinking);
    generator.generate(prompt, options, [&](int32_t id) {
      printer.token(id);
      return interrupted == 0;
    });
    printer.end();
    request.messages.push_back(printer.message());
  }
  if (terminal) fmt::print(stderr, "\n");
}

}  // namespace halfbyte

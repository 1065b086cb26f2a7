// A conversation with a model in the terminal.
#pragma once

#include <string>

#include "model/generate.h"
#include "text/chat.h"
#include "text/chat_parser.h"

namespace halfbyte {

// Prints an answer as it comes: the response on the standard output, reasoning on the standard
// error.
class AnswerPrinter {
 public:
  // `thinking`: what the prompt opened last is the think channel. The tokenizer must outlive this.
  AnswerPrinter(const Tokenizer& tokenizer, bool thinking) : parser_(tokenizer, thinking) {}
  void token(int32_t id) { print(parser_.push(id)); }
  void end();
  // What has been printed, as the assistant's message of the history.
  const ChatMessage& message() const { return message_; }

 private:
  void print(const ChatDelta& delta);

  ChatParser parser_;
  ChatMessage message_ = {.role = "assistant", .content = {""}};
  bool reasoned_ = false;  // and nothing has been answered since
};

// Every line of the standard input is a message of the user, appended to `request` like the
// answers. SIGINT stops the answer, or says how to end; the end of the input ends. `terminal`:
// somebody sits there, so that a prompt and a hint are shown.
void converse(Model& model, const Tokenizer& tokenizer, const ChatFormat& format,
              ChatRequest request, const GenerateOptions& options, bool terminal);

}  // namespace halfbyte

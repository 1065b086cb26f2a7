// `halfbyte run`: a prompt through a model, its continuation on the standard output as it comes; or
// a conversation in the terminal.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "conversation.h"
#include "halfbyte/device.h"
#include "halfbyte/error.h"
#include "model/generate.h"
#include "options.h"
#include "prompt.h"
#include "text/chat.h"

namespace halfbyte {

namespace {

constexpr int kMaxNewTokens = 1 << 20;  // the longest context of the models that we know
constexpr int kChatNewTokens = 1024;    // of an answer, unless told

struct Options {
  std::string model_path;
  std::string prompt;
  std::string ids;
  std::string device = "auto";
  DeviceOptions device_options;
  GenerateOptions generate;
  bool chat = false;
  bool no_thinking = false;
};

// Where generated tokens go.
class Output {
 public:
  virtual ~Output() = default;
  virtual void token(int32_t id) = 0;
  virtual void end() = 0;
};

// Without a tokenizer: ids, with commas between them.
class IdOutput : public Output {
 public:
  void token(int32_t id) override {
    fmt::print("{}{}", first_ ? "" : ",", id);
    std::fflush(stdout);
    first_ = false;
  }
  void end() override { fmt::print("\n"); }

 private:
  bool first_ = true;
};

class TextOutput : public Output {
 public:
  explicit TextOutput(const Tokenizer& tokenizer)
      : stream_(tokenizer, {.skip_special_tokens = true}) {}
  void token(int32_t id) override {
    fmt::print("{}", stream_.push(id));
    std::fflush(stdout);
  }
  void end() override { fmt::print("{}\n", stream_.finish()); }

 private:
  TokenStream stream_;
};

class ChatOutput : public Output {
 public:
  ChatOutput(const Tokenizer& tokenizer, bool thinking) : printer_(tokenizer, thinking) {}
  void token(int32_t id) override { printer_.token(id); }
  void end() override { printer_.end(); }

 private:
  AnswerPrinter printer_;
};

// No message yet, and the model's own defaults.
ChatRequest new_request(const Options& options, const ChatFormat& format) {
  ChatRequest request;
  request.thinking = format.thinking() && !options.no_thinking;
  request.effort = format.effort();
  return request;
}

std::string speed(int64_t tokens, double seconds) {
  if (tokens == 0 || seconds <= 0) return "-";
  return fmt::format("{:.1f} tokens/s", static_cast<double>(tokens) / seconds);
}

void run(Options options, const CLI::App& command) {
  const bool has_prompt = command.count("--prompt") > 0, has_ids = command.count("--ids") > 0;
  const bool converses = options.chat && !has_prompt && !has_ids;
  if (has_prompt == has_ids && !converses)
    throw Error(ErrorKind::kInput, "run", "exactly one of --prompt and --ids is needed, or --chat");
  if ((options.chat || options.no_thinking) && (!options.chat || has_ids))
    throw Error(ErrorKind::kInput, "run",
                "--chat goes with --prompt or alone, and --no-thinking with --chat");
  if (options.chat && command.count("--max-new-tokens") == 0)
    options.generate.max_new_tokens = kChatNewTokens;
  check_sampling(options.generate.sampling);

  const std::filesystem::path directory = options.model_path;
  const ModelConfig config = read_model_config(directory);
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(directory, config);
  options.generate.stop_tokens = read_stop_tokens(directory, config);
  ChatFormat format;
  ChatRequest request;
  std::vector<int32_t> prompt;
  std::unique_ptr<Output> output;
  if (options.chat) {
    if (converses && tokenizer == nullptr)
      throw Error(
          ErrorKind::kInput, "--chat",
          fmt::format("{} has no tiktoken.model: a conversation needs it", options.model_path));
    format = ChatFormat::from_directory(directory);
    request = new_request(options, format);
    if (has_prompt) {
      encode_prompt(tokenizer.get(), options.prompt, "--prompt");  // refused as any other text
      request.messages.push_back({.role = "user", .content = {options.prompt}});
    }
    // Of a conversation, what comes before the first message: refused before the model is read.
    prompt = encode_chat(chat_segments(request, format), *tokenizer);
    output = std::make_unique<ChatOutput>(*tokenizer, request.thinking);
  } else if (has_prompt) {
    prompt = encode_prompt(tokenizer.get(), options.prompt, "--prompt");
  } else {
    const std::vector<int64_t> ids = parse_ids(options.ids, "--ids");
    check_ids(ids, config, "--ids");
    prompt.assign(ids.begin(), ids.end());
  }
  if (output == nullptr && tokenizer != nullptr)
    output = std::make_unique<TextOutput>(*tokenizer);
  else if (output == nullptr)
    output = std::make_unique<IdOutput>();

  const std::unique_ptr<Device> device = open_device(options.device, options.device_options);
  const std::unique_ptr<Model> model = Model::open(directory, *device);
  if (converses) {
    converse(*model, *tokenizer, format, request, options.generate, isatty(STDIN_FILENO) != 0);
    return;
  }
  const GenerateStats stats =
      generate(*model, prompt, options.generate, [&](int32_t id) { output->token(id); });
  output->end();
  std::fflush(stdout);  // before the speed, also where both go into one file
  fmt::print(stderr, "prompt {} tokens, {}; decode {} tokens, {}; {}\n", stats.prompt_tokens,
             speed(stats.prompt_tokens, stats.prompt_seconds), stats.new_tokens,
             speed(stats.decode_steps, stats.decode_seconds), device->describe());
}

}  // namespace

void add_run_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  SamplingOptions& sampling = options->generate.sampling;
  CLI::App* command = app.add_subcommand("run", "Continue a prompt");
  add_model_path(*command, options->model_path, "Checkpoint directory");
  command->add_option("--prompt", options->prompt, "The prompt, as text")->type_name("TEXT");
  command->add_option("--ids", options->ids, "The prompt, as token ids: 1,2,3")->type_name("IDS");
  command->add_flag(
      "--chat", options->chat,
      "The prompt is a message to the model, the output its answer; without --prompt: "
      "a conversation, a line a message");
  command->add_flag("--no-thinking", options->no_thinking, "With --chat: answer at once");
  command
      ->add_option("--max-new-tokens", options->generate.max_new_tokens,
                   fmt::format("Stop after so many tokens, at most {}; with --chat {} unless given",
                               kMaxNewTokens, kChatNewTokens))
      ->type_name("N")
      ->check(in_range(1, kMaxNewTokens))
      ->capture_default_str();
  command->add_option("--temperature", sampling.temperature, "0 takes the most probable token")
      ->type_name("T")
      ->capture_default_str();
  command->add_option("--top-p", sampling.top_p, "Draw from the most probable tokens that sum to P")
      ->type_name("P")
      ->capture_default_str();
  command->add_option("--top-k", sampling.top_k, "Draw from the K most probable tokens; 0: all")
      ->type_name("K")
      ->capture_default_str();
  command->add_option("--seed", sampling.seed, "The same seed gives the same text")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--device", options->device, "auto, cpu, cpu.avx512, ..., ref")
      ->type_name("NAME")
      ->capture_default_str();
  add_threads(*command, options->device_options.threads);
  command->footer(
      "Text (or token ids, where the directory has no tokenizer) goes to the standard output; "
      "speed, "
      "and what\na model thinks before it answers, to the standard error.\n\n"
      "Examples:\n"
      "  halfbyte run --model-path DIR --prompt 'Once upon a time' --max-new-tokens 200\n"
      "  halfbyte run --model-path DIR --prompt 'Hi' --temperature 0.8 --top-p 0.95 --seed 7\n"
      "  halfbyte run --model-path DIR --chat --prompt 'What is the capital of France?'\n"
      "  halfbyte run --model-path DIR --chat        Ctrl-C stops an answer, Ctrl-D ends\n"
      "  halfbyte run --model-path tests/golden/k3-tiny-bf16 --ids 1,17,42 --device ref");
  command->callback([options, command] { run(*options, *command); });
}

}  // namespace halfbyte

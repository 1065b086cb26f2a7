// `halfbyte run`: a prompt through a model, its continuation on the standard output as it comes.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "halfbyte/device.h"
#include "halfbyte/error.h"
#include "model/generate.h"
#include "prompt.h"

namespace halfbyte {

namespace {

struct Options {
  std::string model_path;
  std::string prompt;
  std::vector<int64_t> ids;
  std::string device = "auto";
  DeviceOptions device_options;
  GenerateOptions generate;
};

// Text where there is a tokenizer, else ids with commas between them.
class Printer {
 public:
  explicit Printer(const Tokenizer* tokenizer) {
    if (tokenizer != nullptr)
      text_ = std::make_unique<TokenStream>(*tokenizer,
                                            Tokenizer::DecodeOptions{.skip_special_tokens = true});
  }
  void token(int32_t id) {
    if (text_ != nullptr)
      fmt::print("{}", text_->push(id));
    else
      fmt::print("{}{}", first_ ? "" : ",", id);
    first_ = false;
    std::fflush(stdout);
  }
  void end() { fmt::print("{}\n", text_ != nullptr ? text_->finish() : ""); }

 private:
  std::unique_ptr<TokenStream> text_;
  bool first_ = true;
};

std::string speed(int64_t tokens, double seconds) {
  if (tokens == 0 || seconds <= 0) return "-";
  return fmt::format("{:.1f} tokens/s", static_cast<double>(tokens) / seconds);
}

void run(Options options, const CLI::App& command) {
  if ((command.count("--prompt") > 0) == (command.count("--ids") > 0))
    throw Error(ErrorKind::kInput, "run", "one of --prompt and --ids is needed, not both");
  check_sampling(options.generate.sampling);

  const std::filesystem::path directory = options.model_path;
  const ModelConfig config = read_model_config(directory);
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(directory, config);
  std::vector<int32_t> prompt;
  if (command.count("--prompt") > 0) {
    prompt = encode_prompt(tokenizer.get(), options.prompt, "--prompt");
  } else {
    check_ids(options.ids, config, "--ids");
    prompt.assign(options.ids.begin(), options.ids.end());
  }
  options.generate.stop_tokens = read_stop_tokens(directory, config);

  const std::unique_ptr<Device> device = open_device(options.device, options.device_options);
  const std::unique_ptr<Model> model = Model::open(directory, *device);
  Printer printer(tokenizer.get());
  const GenerateStats stats =
      generate(*model, prompt, options.generate, [&](int32_t id) { printer.token(id); });
  printer.end();
  fmt::print(stderr, "prompt {} tokens, {}; decode {} tokens, {}; {}\n", stats.prompt_tokens,
             speed(stats.prompt_tokens, stats.prompt_seconds), stats.new_tokens,
             speed(stats.decode_steps, stats.decode_seconds), device->describe());
}

}  // namespace

void add_run_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  SamplingOptions& sampling = options->generate.sampling;
  CLI::App* command = app.add_subcommand("run", "Continue a prompt");
  command->add_option("--model-path", options->model_path, "Checkpoint directory")->required();
  command->add_option("--prompt", options->prompt, "The prompt, as text");
  command->add_option("--ids", options->ids, "The prompt, as token ids: 1,2,3")->delimiter(',');
  command
      ->add_option("--max-new-tokens", options->generate.max_new_tokens,
                   "Stop after so many tokens")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--temperature", sampling.temperature, "0 takes the most probable token")
      ->capture_default_str();
  command->add_option("--top-p", sampling.top_p, "Draw from the most probable tokens that sum to P")
      ->capture_default_str();
  command->add_option("--top-k", sampling.top_k, "Draw from the K most probable tokens; 0: all")
      ->capture_default_str();
  command->add_option("--seed", sampling.seed, "The same seed gives the same text")
      ->capture_default_str();
  command->add_option("--device", options->device, "auto, cpu, cpu.avx512, ..., ref")
      ->capture_default_str();
  command
      ->add_option("--threads", options->device_options.threads,
                   "0: as many as the process may run on")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->footer(
      "Text (or token ids, where the directory has no tokenizer) goes to the standard output, the "
      "speed to\nstandard error.\n\n"
      "Examples:\n"
      "  halfbyte run --model-path DIR --prompt 'Once upon a time' --max-new-tokens 200\n"
      "  halfbyte run --model-path DIR --prompt 'Hi' --temperature 0.8 --top-p 0.95 --seed 7\n"
      "  halfbyte run --model-path tests/golden/k3-tiny-bf16 --ids 1,17,42 --device ref");
  command->callback([options, command] { run(*options, *command); });
}

}  // namespace halfbyte

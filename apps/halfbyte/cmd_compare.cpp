// `halfbyte compare`: the same prompts on two devices; how far apart are their prompt logprobs.
//
// For each prompt: |difference| of log p(ids[t] | ids[:t]) over its tokens, mean and largest, and
// whether both devices continue it with the same token.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json.h"
#include "commands.h"
#include "halfbyte/device.h"
#include "halfbyte/error.h"
#include "model/logprobs.h"
#include "options.h"
#include "prompt.h"

namespace halfbyte {

namespace {

struct Options {
  std::string model_path;
  std::string ids_file;
  std::string devices[2] = {"ref", "cpu"};
  DeviceOptions device_options;
  bool json = false;
};

struct Prompt {
  std::string name;
  std::vector<int32_t> ids;
};

// A list of: ids, a text, or {"ids" or "text": ..., "name": ...}; or {"prompts": that list}.
std::vector<Prompt> read_prompts(const std::filesystem::path& path, const Tokenizer* tokenizer,
                                 const ModelConfig& config) {
  const JsonDocument document = JsonDocument::from_file(path);
  const Json root = document.root();
  const Json list = root.type() == Json::Type::kObject ? root.get("prompts") : root;
  std::vector<Prompt> prompts;
  for (const Json& element : list.elements()) {
    Prompt prompt;
    prompt.name = fmt::format("{}", prompts.size());
    Json content = element;
    if (element.type() == Json::Type::kObject) {
      if (const auto name = element.find_value("name")) prompt.name = name->string();
      const auto ids = element.find_value("ids");
      content = ids ? *ids : element.get("text");
    }
    if (content.type() == Json::Type::kString) {
      prompt.ids = encode_prompt(tokenizer, content.string(), content.where());
    } else {
      std::vector<int64_t> ids;
      for (const Json& id : content.elements()) ids.push_back(id.integer());
      check_ids(ids, config, content.where());
      prompt.ids.assign(ids.begin(), ids.end());
    }
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) list.fail("is empty, expected prompts");
  return prompts;
}

struct Results {
  std::string device;  // in words
  std::vector<PromptLogprobs> prompts;
};

// One model at a time is in memory.
Results run_on(const std::string& name, const Options& options,
               const std::vector<Prompt>& prompts) {
  const std::unique_ptr<Device> device = open_device(name, options.device_options);
  const std::unique_ptr<Model> model = Model::open(options.model_path, *device);
  Results results{device->describe(), {}};
  for (const Prompt& prompt : prompts)
    results.prompts.push_back(prompt_logprobs(*model, prompt.ids));
  return results;
}

void print_table(const std::vector<Prompt>& prompts, const Results& a, const Results& b) {
  fmt::print("a  {}\nb  {}\n\n", a.device, b.device);
  size_t width = 6;
  for (const Prompt& prompt : prompts) width = std::max(width, prompt.name.size());
  fmt::print("{:<{}}  {:>6}  {:>10}  {:>10}  {:>7}  {:>7}\n", "prompt", width, "tokens",
             "mean |a-b|", "max |a-b|", "first a", "first b");
  LogprobDifference all;
  int64_t tokens = 0;
  size_t agree = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const LogprobDifference one = difference_of(a.prompts[i], b.prompts[i]);
    const int32_t first_a = a.prompts[i].first_token, first_b = b.prompts[i].first_token;
    all.add(one);
    tokens += static_cast<int64_t>(prompts[i].ids.size());
    agree += first_a == first_b;
    fmt::print("{:<{}}  {:>6}  {:>10.6f}  {:>10.6f}  {:>7}  {:>7}{}\n", prompts[i].name, width,
               prompts[i].ids.size(), one.mean(), one.max, first_a, first_b,
               first_a == first_b ? "" : "  differ");
  }
  fmt::print("{:<{}}  {:>6}  {:>10.6f}  {:>10.6f}  first tokens agree: {} of {}\n", "all", width,
             tokens, all.mean(), all.max, agree, prompts.size());
}

void print_json(const std::vector<Prompt>& prompts, const Results& a, const Results& b) {
  nlohmann::ordered_json out = {{"a", a.device}, {"b", b.device}};
  LogprobDifference all;
  size_t agree = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const LogprobDifference one = difference_of(a.prompts[i], b.prompts[i]);
    all.add(one);
    agree += a.prompts[i].first_token == b.prompts[i].first_token;
    out["prompts"].push_back({{"name", prompts[i].name},
                              {"tokens", prompts[i].ids.size()},
                              {"mean_abs_difference", one.mean()},
                              {"max_abs_difference", one.max},
                              {"first_token_a", a.prompts[i].first_token},
                              {"first_token_b", b.prompts[i].first_token}});
  }
  out["all"] = {{"logprobs", all.count},
                {"mean_abs_difference", all.mean()},
                {"max_abs_difference", all.max},
                {"first_tokens_agree", agree},
                {"prompts", prompts.size()}};
  fmt::print("{}\n", out.dump(2));
}

void compare(const Options& options) {
  const std::filesystem::path directory = options.model_path;
  const ModelConfig config = read_model_config(directory);
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(directory, config);
  const std::vector<Prompt> prompts = read_prompts(options.ids_file, tokenizer.get(), config);
  for (const std::string& name : options.devices)
    open_device(name, options.device_options);  // refused now rather than after the first has run
  const Results a = run_on(options.devices[0], options, prompts);
  const Results b = run_on(options.devices[1], options, prompts);
  options.json ? print_json(prompts, a, b) : print_table(prompts, a, b);
}

}  // namespace

void add_compare_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("compare", "Compare prompt logprobs of two devices on the same prompts");
  add_model_path(*command, options->model_path, "Checkpoint directory");
  command->add_option("--a", options->devices[0], "The first device")
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--b", options->devices[1], "The second device")
      ->type_name("NAME")
      ->capture_default_str();
  command
      ->add_option("--ids-file", options->ids_file,
                   "JSON list of prompts: lists of token ids, texts, or objects with ids or text")
      ->type_name("FILE")
      ->required()
      ->check(kNotEmpty);
  add_threads(*command, options->device_options.threads);
  command->add_flag("--json", options->json, "JSON instead of a table");
  command->footer(
      "Examples:\n"
      "  halfbyte compare --model-path DIR --a ref --b cpu --ids-file prompts.json\n"
      "  halfbyte compare --model-path tests/golden/k3-tiny-bf16 "
      "--ids-file tests/golden/k3-tiny-bf16/expected.json");
  command->callback([options] { compare(*options); });
}

}  // namespace halfbyte

// `halfbyte tokenize`: text -> token ids and back, with the tokenizer of a checkpoint.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "commands.h"
#include "formats/checkpoint.h"
#include "halfbyte/error.h"
#include "options.h"
#include "prompt.h"
#include "text/tokenizer.h"

namespace halfbyte {

namespace {

struct Options {
  std::string model_path;
  std::string text;
  bool from_stdin = false;
  bool json_lines = false;
  bool specials = false;
  std::string decode;
};

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text, bool specials) {
  return specials ? tokenizer.encode_with_specials(text) : tokenizer.encode(text);
}

void tokenize(const Options& options, const CLI::App& command) {
  std::vector<std::string_view> sources;
  for (const char* name : {"--text", "--stdin", "--json-lines", "--decode"})
    if (command.count(name) > 0) sources.emplace_back(name);
  if (sources.empty())
    throw Error(ErrorKind::kInput, "tokenize",
                "one of --text, --stdin, --json-lines and --decode is needed");
  if (sources.size() > 1)
    throw Error(ErrorKind::kInput, "tokenize",
                fmt::format("{} cannot go together", fmt::join(sources, " and ")));
  check_directory(options.model_path);
  const Tokenizer tokenizer{std::filesystem::path(options.model_path)};
  std::ios::sync_with_stdio(false);

  if (options.json_lines) {
    int64_t number = 0;
    for (std::string line; std::getline(std::cin, line);) {
      const std::string name = fmt::format("line {}", ++number);
      const JsonDocument document = JsonDocument::from_text(line, name);
      fmt::print("[{}]\n",
                 fmt::join(encode(tokenizer, document.root().string(), options.specials), ","));
    }
  } else if (command.count("--decode") > 0) {
    std::vector<int32_t> ids;
    for (const int64_t id : parse_ids(options.decode, "--decode")) {
      if (id < 0 || id >= tokenizer.vocab_size())
        throw Error(
            ErrorKind::kInput, "--decode",
            fmt::format("{} is outside the vocabulary [0, {})", id, tokenizer.vocab_size()));
      ids.push_back(static_cast<int32_t>(id));
    }
    fmt::print("{}\n", tokenizer.decode(ids));
  } else {
    const std::string text =
        options.from_stdin ? std::string(std::istreambuf_iterator(std::cin), {}) : options.text;
    fmt::print("{}\n", fmt::join(encode(tokenizer, text, options.specials), ","));
  }
}

}  // namespace

void add_tokenize_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("tokenize", "Turn text into token ids, or back");
  add_model_path(*command, options->model_path, "Directory with tiktoken.model");
  command->add_option("--text", options->text, "The text");
  command->add_flag("--stdin", options->from_stdin, "The text is all of the standard input");
  command->add_flag(
      "--json-lines", options->json_lines,
      "Each line of the standard input is a JSON string; one JSON list of ids a line comes out");
  command->add_option("--decode", options->decode, "Print the text of these ids: 1,2,3")
      ->type_name("IDS");
  command->add_flag("--specials", options->specials, "Names of special tokens become their ids");
  command->footer(
      "Examples:\n"
      "  halfbyte tokenize --model-path DIR --text 'Hello, world!'\n"
      "  halfbyte tokenize --model-path DIR --stdin <book.txt\n"
      "  halfbyte tokenize --model-path DIR --decode 1,2,3\n"
      "  halfbyte tokenize tests/golden/tokenizer --decode 39,68,405,78,11,799,0");
  command->callback([options, command] { tokenize(*options, *command); });
}

}  // namespace halfbyte

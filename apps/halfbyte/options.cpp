#include "options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "base/threads.h"

namespace halfbyte {

namespace {

constexpr int kMaxThreads = 1024;

// Insertions, deletions and replacements between two names; '_' is read as '-'.
size_t edit_distance(std::string_view a, std::string_view b) {
  const auto plain = [](char c) { return c == '_' ? '-' : c; };
  std::vector<size_t> row(b.size() + 1);  // of a[0, i) to b[0, j)
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (plain(a[i - 1]) != plain(b[j - 1]));
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row[b.size()];
}

// The option of a command that a word was probably meant to be; empty: none is near.
std::string nearest_option(const CLI::App& command, std::string_view word) {
  size_t best = word.size() / 3 + 1;
  std::string nearest;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) {
      const size_t distance = edit_distance(word, "--" + name);
      if (distance >= best) continue;
      best = distance;
      nearest = "--" + name;
    }
  return nearest;
}

// What to say where the command should stand, and what could.
std::string no_command(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining();
  std::string message = words.empty() ? "a command is needed: one of"
                                      : fmt::format("\"{}\" is no command, expected", words[0]);
  const char* separator = " ";
  for (const CLI::App* command : app.get_subcommands({})) {
    message += separator + command->get_name();
    separator = ", ";
  }
  return message;
}

}  // namespace

CLI::Validator in_range(int least, int most) { return CLI::Range(least, most).description(""); }

CLI::Option* add_model_path(CLI::App& command, std::string& path, const std::string& help) {
  return command.add_option("--model-path,model_path", path, help)
      ->required()
      ->type_name("DIR")
      ->check(kNotEmpty);
}

CLI::Option* add_threads(CLI::App& command, int& threads) {
  return command
      .add_option("--threads", threads,
                  fmt::format("1 to {}; 0: as many as the process may run on", kMaxThreads))
      ->type_name("N")
      ->check(in_range(0, kMaxThreads))
      ->capture_default_str()
      ->each([](const std::string& text) {
        int asked = 0;
        if (CLI::detail::lexical_cast(text, asked) && asked > usable_processors())
          fmt::print(stderr, "halfbyte: --threads {}: more than the processors here, {}\n", asked,
                     usable_processors());
      });
}

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  if (app.get_subcommands().empty()) return no_command(app);
  const CLI::App& command = *app.get_subcommands().front();
  const std::vector<std::string> words = command.remaining();
  if (words.empty()) {
    const std::string message = error.what();
    constexpr std::string_view kTwice = ": At Most 1 required but received";
    const size_t at = message.find(kTwice);
    return at == std::string::npos ? message : message.substr(0, at) + ": is given more than once";
  }
  const auto is_option = [](const std::string& word) { return word.starts_with("-"); };
  const auto option = std::find_if(words.begin(), words.end(), is_option);
  const std::string& word = option == words.end() ? words.front() : *option;
  if (option == words.end())
    return fmt::format("{}: \"{}\" is not expected", command.get_name(), word);
  const std::string name = word.substr(0, word.find('='));
  const std::string nearest = nearest_option(command, name);
  return fmt::format("{} has no option {}{}", command.get_name(), name,
                     nearest.empty() ? "" : ": is " + nearest + " meant?");
}

}  // namespace halfbyte

// Options that several commands have, and what is said about a command line that is not understood.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace halfbyte {

// For options that name a place.
inline const CLI::Validator kNotEmpty(
    [](const std::string& path) { return std::string(path.empty() ? "is empty" : ""); }, "");

// A number from `least` to `most`; --help leaves the range to the option's own text.
CLI::Validator in_range(int least, int most);

// Required, by name or by place: --model-path DIR or DIR.
CLI::Option* add_model_path(CLI::App& command, std::string& path, const std::string& help);

// 0 to 1024. More threads than processors are allowed, with a warning on the standard error.
CLI::Option* add_threads(CLI::App& command, int& threads);

// One line about a command line that CLI11 refused: a word that is not understood comes before
// whatever else is wrong, since it may be why.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace halfbyte

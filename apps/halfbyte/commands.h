// The subcommands of `halfbyte`. Each adds itself to the command line, with its own --help and
// examples; its callback does the work. One file a command: cmd_NAME.cpp.
#pragma once

#include <CLI/CLI.hpp>

namespace halfbyte {

void add_bench_command(CLI::App& app);
void add_compare_command(CLI::App& app);
void add_convert_command(CLI::App& app);
void add_inspect_command(CLI::App& app);
void add_logits_command(CLI::App& app);
void add_moe_command(CLI::App& app);
void add_run_command(CLI::App& app);
void add_tokenize_command(CLI::App& app);

}  // namespace halfbyte

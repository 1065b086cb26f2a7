// `halfbyte`: one binary, subcommands. An Error becomes one line on stderr and exit status 1, a
// command line that cannot be understood one line and exit status 2.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <filesystem>

#include "commands.h"
#include "options.h"

namespace {
constexpr int kUsageStatus = 2;
}

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("halfbyte"));  // stdout is for results
  spdlog::set_pattern("%n: %v");
  CLI::App app{"halfbyte: runs, measures and converts 4-bit mixture-of-experts language models"};
  app.require_subcommand(1);
  app.set_version_flag("--version", HALFBYTE_VERSION);
  // COMMANDS (one line each, in the order of --help)
  halfbyte::add_run_command(app);
  halfbyte::add_compare_command(app);
  halfbyte::add_inspect_command(app);
  halfbyte::add_logits_command(app);
  halfbyte::add_convert_command(app);
  halfbyte::add_tokenize_command(app);
  halfbyte::add_moe_command(app);
  halfbyte::add_bench_command(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& error) {  // a command has said what it had to say
    return app.exit(error);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    fmt::print(stderr, "halfbyte: {} (--help shows what is possible)\n",
               halfbyte::usage_message(app, error));
    return kUsageStatus;
  } catch (const std::filesystem::filesystem_error& error) {  // e.g. a loop of symbolic links
    fmt::print(stderr, "halfbyte: {}: {}\n", error.path1().string(), error.code().message());
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "halfbyte: {}\n", error.what());
    return 1;
  }
  return 0;
}

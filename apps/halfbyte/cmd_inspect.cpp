// `halfbyte inspect`: what a checkpoint is, and every reason why it could not be run.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>

#include "commands.h"
#include "model/inspect.h"
#include "options.h"

namespace halfbyte {

namespace {
constexpr int kProblemLines = 25;

struct Options {
  std::string directory;
  bool json = false;
  bool headers_only = false;
};

void inspect(const Options& options) {
  const Inspection inspection =
      inspect_checkpoint(options.directory, {.read_values = !options.headers_only});
  fmt::print("{}", options.json ? inspection_json(inspection)
                                : inspection_table(inspection, kProblemLines));
  if (!inspection.problems.empty()) throw CLI::RuntimeError(1);
}
}  // namespace

void add_inspect_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("inspect", "Say what a checkpoint is and whether halfbyte could run it");
  add_model_path(*command, options->directory, "Checkpoint directory");
  command->add_flag("--json", options->json, "Print JSON, with every reason");
  command->add_flag("--headers-only", options->headers_only,
                    "Do not read scale bytes and vectors: fast for files that are not in memory");
  command->footer(
      "The exit status is 0 only if halfbyte could run the checkpoint.\n"
      "Examples:\n"
      "  halfbyte inspect DIR\n"
      "  halfbyte inspect DIR --json");
  command->callback([options] { inspect(*options); });
}

}  // namespace halfbyte

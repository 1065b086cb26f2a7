// `halfbyte convert`: a BF16 or MXFP4 checkpoint in, a ModelOpt-layout NVFP4 checkpoint out.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "base/progress.h"
#include "commands.h"
#include "convert/convert.h"
#include "halfbyte/error.h"
#include "model/convertible.h"
#include "options.h"

namespace halfbyte {

namespace {

struct Options {
  std::string in, out, report;
  std::string to = "modelopt-nvfp4";
  std::string scale = "max";
  int num_layers = 0, keep_experts = 0, threads = 0;
  bool experts_only = false;
  uint64_t max_shard_bytes = 4'000'000'000;
};

// Where the report goes: found out before the work, which may take hours.
std::filesystem::path report_path_of(const Options& options) {
  namespace fs = std::filesystem;
  fs::path out = fs::path(options.out).lexically_normal();
  if (!out.has_filename()) out = out.parent_path();  // "out/"
  if (options.report.empty()) return out += ".report.json";
  const fs::path report = fs::absolute(options.report).lexically_normal();
  const fs::path folder = report.parent_path();
  if (fs::is_directory(report) || !(fs::is_directory(folder) || folder == fs::absolute(out)))
    throw Error(ErrorKind::kInput, "--report",
                fmt::format("{} is no place for a file", options.report));
  return options.report;
}

void convert(const Options& options, const CLI::App& command) {
  const std::filesystem::path report_path = report_path_of(options);
  ConvertOptions convert_options;
  convert_options.scale = parse_scale_choice(options.scale);
  convert_options.recipe.experts_only = options.experts_only;
  if (command.count("--num-layers") > 0) convert_options.recipe.num_layers = options.num_layers;
  if (command.count("--keep-experts") > 0)
    convert_options.recipe.keep_experts = options.keep_experts;
  convert_options.threads = options.threads;
  convert_options.max_shard_bytes = static_cast<int64_t>(options.max_shard_bytes);
  convert_options.accept = [](const Checkpoint& source, const std::string& config_json) {
    const auto name = (source.directory() / "config.json").string();
    check_convertible(source,
                      parse_model_config(JsonDocument::from_text(config_json, name).root()));
  };
  convert_options.producer_version = "halfbyte " HALFBYTE_VERSION;

  ConvertReport report;
  const auto began = std::chrono::steady_clock::now();
  {
    Progress progress("converting", stderr);
    convert_options.progress = [&](int64_t done, int64_t total) { progress.set(done, total); };
    report = convert_checkpoint(options.in, options.out, convert_options);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();

  write_text(report_path, report_json(report, convert_options));
  fmt::print("{}{}, {}/s; every converted matrix is listed in {}\n", report_table(report),
             format_seconds(seconds),
             format_bytes(static_cast<int64_t>(static_cast<double>(report.read_bytes) / seconds)),
             report_path.string());
}

}  // namespace

void add_convert_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "convert", "Convert a BF16 or MXFP4 checkpoint to NVFP4 (ModelOpt layout)");
  command->add_option("in", options->in, "Directory of the checkpoint to read")
      ->type_name("DIR")
      ->required()
      ->check(kNotEmpty);
  command->add_option("out", options->out, "Directory to make; must not exist, or be empty")
      ->type_name("DIR")
      ->required()
      ->check(kNotEmpty);
  command->add_option("--to", options->to, "Layout of the result")
      ->type_name("LAYOUT")
      ->check(CLI::IsMember({"modelopt-nvfp4"}).description(""))
      ->capture_default_str();
  command->add_flag("--experts-only", options->experts_only,
                    "Leave the attention projections as stored (else: block FP8)");
  command
      ->add_option("--scale", options->scale,
                   "Block scales of BF16 experts: max, mse (best of 126, slower), four-over-six")
      ->type_name("RULE")
      ->check(CLI::IsMember({"max", "mse", "four-over-six"}).description(""))
      ->capture_default_str();
  command->add_option("--num-layers", options->num_layers, "Keep only the first N layers")
      ->type_name("N");
  command
      ->add_option("--keep-experts", options->keep_experts,
                   "Keep only the first N experts of every layer")
      ->type_name("N");
  add_threads(*command, options->threads);
  command
      ->add_option(
          "--max-shard-size", options->max_shard_bytes,
          "Largest file of the result, e.g. 500MB; what must be in one file, an expert or a "
          "single matrix, is never split")
      ->type_name("SIZE")
      ->transform(CLI::AsSizeValue(true).description("").name(""))
      ->default_str("4GB");
  command
      ->add_option("--report", options->report,
                   "File for the full report; default: OUT.report.json")
      ->type_name("FILE")
      ->check(kNotEmpty);
  command->footer(
      "Examples:\n"
      "  halfbyte convert Kimi-K3 Kimi-K3-NVFP4 --to modelopt-nvfp4\n"
      "  halfbyte convert Kimi-K3 K3-5-layers --num-layers 5 --keep-experts 128 --experts-only\n"
      "  halfbyte convert model-bf16 model-nvfp4 --scale mse\n"
      "\n"
      "MXFP4 experts keep their codes where NVFP4 can hold the same values; the report counts the\n"
      "blocks for which it cannot. The result appears at once when all is written.");
  command->callback([options, command] { convert(*options, *command); });
}

}  // namespace halfbyte

// `halfbyte logits`: token ids -> logits of all positions, and the intermediates on request.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "commands.h"
#include "formats/safetensors.h"
#include "halfbyte/error.h"
#include "model/model.h"
#include "options.h"
#include "prompt.h"

namespace halfbyte {
namespace {

struct LogitsArguments {
  std::string model_path, device = "auto", ids, out, trace;
  bool last = false;
  int chunk = 512;
  int threads = 0;
};

void write_logits(const LogitsArguments& arguments) {
  // What can be wrong with the request comes before the work.
  const std::vector<int64_t> numbers = parse_ids(arguments.ids, "--ids");
  check_ids(numbers, read_model_config(arguments.model_path), "--ids");
  const std::vector<int32_t> ids(numbers.begin(), numbers.end());
  { const AtomicFile can_be_written(arguments.out); }
  if (!arguments.trace.empty()) {
    if (arguments.trace == arguments.out)
      throw Error(ErrorKind::kInput, "--trace",
                  fmt::format("{} is --out already", arguments.trace));
    const AtomicFile can_be_written(arguments.trace);
  }

  const auto device = open_device(arguments.device, {.threads = arguments.threads});
  const auto model = Model::open(arguments.model_path, *device, {.max_chunk = arguments.chunk});
  Sequence sequence = model->new_sequence(static_cast<int64_t>(ids.size()));
  Trace trace;
  const auto logits =
      model->forward(ids, sequence, arguments.last ? LogitRows::kLast : LogitRows::kAll,
                     arguments.trace.empty() ? nullptr : &trace);

  const int64_t vocab = model->config().vocab_size;
  const int64_t rows = static_cast<int64_t>(logits.size()) / vocab;
  SafetensorsWriter writer(arguments.out, {{"logits", DType::kF32, {rows, vocab}}});
  writer.write(logits.data(), logits.size_bytes());
  writer.commit();
  if (!arguments.trace.empty()) trace.write(arguments.trace);
  fmt::print("{}: logits F32 [{}, {}]\n", arguments.out, rows, vocab);
}

}  // namespace

void add_logits_command(CLI::App& app) {
  auto arguments = std::make_shared<LogitsArguments>();
  CLI::App* command =
      app.add_subcommand("logits", "Run token ids through a model and write the logits");
  add_model_path(*command, arguments->model_path, "Directory of the checkpoint");
  command->add_option("--ids", arguments->ids, "Token ids: 5,6,7")->type_name("IDS")->required();
  command->add_option("--out", arguments->out, "File to write: `logits` F32 [T, V]")
      ->type_name("FILE")
      ->required()
      ->check(kNotEmpty);
  command->add_flag("--last", arguments->last, "Only the last position: [1, V]");
  command->add_option("--device", arguments->device, "auto, ref, cpu, cpu.avx2, ...")
      ->type_name("NAME")
      ->capture_default_str();
  command
      ->add_option("--trace", arguments->trace,
                   "File for the intermediates, named layers.N.attn_mix, attn_norm, attn_out, "
                   "mlp_mix, mlp_norm, mlp_out, residual_out, router_ids, router_weights, "
                   "latent, routed_sum, routed_out, shared_out; final_mix, final_norm")
      ->type_name("FILE");
  command->add_option("--chunk", arguments->chunk, "Run the prompt in pieces of this many tokens")
      ->type_name("N")
      ->check(in_range(1, 1 << 20))
      ->capture_default_str();
  add_threads(*command, arguments->threads);
  command->footer(
      "Examples:\n"
      "  halfbyte logits --model-path DIR --ids 5,6,7 --out logits.safetensors\n"
      "  halfbyte logits --model-path DIR --ids 5,6,7 --device ref --chunk 1 --last "
      "--out last.safetensors --trace trace.safetensors");
  command->callback([arguments] { write_logits(*arguments); });
}

}  // namespace halfbyte

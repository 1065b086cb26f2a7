// `halfbyte bench`: how near the kernels come to what this machine can do.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench.h"
#include "commands.h"
#include "halfbyte/error.h"
#include "moe/bench.h"
#include "options.h"
#include "prompt.h"

namespace halfbyte {
namespace {

using nlohmann::ordered_json;

WeightFormat parse_weights(const std::string& name) {
  for (WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8Block,
                              WeightFormat::kNvfp4, WeightFormat::kMxfp4})
    if (name == name_of(format)) return format;
  throw Error(ErrorKind::kInput, "weights",
              fmt::format("\"{}\": expected {}, {}, {} or {}", name, name_of(WeightFormat::kBf16),
                          name_of(WeightFormat::kFp8Block), name_of(WeightFormat::kNvfp4),
                          name_of(WeightFormat::kMxfp4)));
}

constexpr int kMaxTokens = 1 << 16;

// Experts to hold: all, or as many as fit into this.
constexpr double kWeightBytes = 640e6;

int default_experts(const MoeShape& shape) {
  const double matrices = shape.activation.gated() ? 3 : 2;
  const double bits = shape.weights == WeightFormat::kBf16 ? 16 : 4.5;
  const double expert_bytes = matrices * shape.hidden * shape.intermediate * bits / 8;
  return std::clamp(static_cast<int>(kWeightBytes / expert_bytes),
                    std::min(shape.num_experts, 2 * shape.top_k), shape.num_experts);
}

// Tokens choose among as many times more experts as before.
void hold_experts(BenchShape& shape, int experts) {
  shape.all_experts =
      static_cast<int>(int64_t{shape.all_experts} * experts / shape.moe.num_experts);
  shape.moe.num_experts = experts;
}

std::vector<int> parse_tokens(const std::string& text) {
  std::vector<int> tokens;
  for (const int64_t count : parse_ids(text, "--tokens", "number of tokens")) {
    if (count < 1 || count > kMaxTokens)
      throw Error(ErrorKind::kInput, "--tokens",
                  fmt::format("is {}, expected 1 to {}", count, kMaxTokens));
    tokens.push_back(static_cast<int>(count));
  }
  return tokens;
}

void print_table(const std::vector<BenchLine>& lines) {
  fmt::print("{:>7} {:>10} {:>19} {:>8} {:>10} {:>8} {:>9} {:>9} {:>8}\n", "tokens", "ms",
             "(p10 - p90)", "GB/s", "GFLOP/s", "probe", "% probe", "% peak", "% roof");
  for (const BenchLine& line : lines) {
    const double seconds = line.seconds.median;
    fmt::print(
        "{:>7} {:>10.3f} {:>19} {:>8.1f} {:>10.1f} {:>8.1f} {:>8.1f}% {:>8.1f}% {:>7.1f}%{}\n",
        line.tokens, seconds * 1e3,
        fmt::format("({:.3f} - {:.3f})", line.seconds.p10 * 1e3, line.seconds.p90 * 1e3),
        line.bytes / seconds / 1e9, line.flops / seconds / 1e9, line.probes.median / 1e9,
        line.of_probe * 100, line.flops / seconds / line.peak * 100, line.of_roof * 100,
        is_disturbed(line) ? "  busy" : "");
  }
  if (std::any_of(lines.begin(), lines.end(), is_disturbed))
    fmt::print(
        "busy: the machine did other work meanwhile (limits that vary, or shares of more than "
        "100 %): measure again\n");
}

void print_json(const BenchLine& line, const Device& device) {
  ordered_json record;
  record["bench"] = line.what;
  record["shape"] = line.shape;
  record["weights"] = line.weights;
  record["tokens"] = line.tokens;
  record["repetitions"] = line.repetitions;
  record["seconds"] = line.seconds.median;
  record["seconds_p10"] = line.seconds.p10;
  record["seconds_p90"] = line.seconds.p90;
  record["bytes"] = line.bytes;
  record["flops"] = line.flops;
  record["probe_bytes_per_s"] = line.probes.median;
  record["probe_p10"] = line.probes.p10;
  record["probe_p90"] = line.probes.p90;
  record["peak_flops_per_s"] = line.peak;
  record["share_of_probe"] = line.of_probe;
  record["share_of_roof"] = line.of_roof;
  record["busy"] = is_disturbed(line);
  record["device"] = device.describe();
  record["version"] = HALFBYTE_VERSION;
  fmt::print("{}\n", record.dump());
}

void print_roof(const BenchArguments& arguments, CpuDevice& device) {
  Roof roof(device);
  std::vector<double> bandwidth, peak;
  for (int i = 0; i < arguments.options.repetitions; ++i) {
    bandwidth.push_back(roof.read_bandwidth());
    peak.push_back(roof.peak_flops());
  }
  const Spread read = spread_of(bandwidth), dot = spread_of(peak);
  if (arguments.json) {
    ordered_json record;
    record["bench"] = "roof";
    record["read_bytes_per_s"] = read.median;
    record["read_p10"] = read.p10;
    record["read_p90"] = read.p90;
    record["peak_flops_per_s"] = dot.median;
    record["peak_p10"] = dot.p10;
    record["peak_p90"] = dot.p90;
    record["device"] = device.describe();
    record["version"] = HALFBYTE_VERSION;
    fmt::print("{}\n", record.dump());
    return;
  }
  fmt::print("{}\n", device.describe());
  fmt::print("memory read  {:8.1f} GB/s     ({:.1f} - {:.1f})\n", read.median / 1e9, read.p10 / 1e9,
             read.p90 / 1e9);
  fmt::print("dot product  {:8.1f} GFLOP/s  ({:.1f} - {:.1f})\n", dot.median / 1e9, dot.p10 / 1e9,
             dot.p90 / 1e9);
}

void run_bench(BenchArguments arguments) {
  arguments.options.tokens = parse_tokens(arguments.tokens);
  const auto device = open_device(arguments.device, {.threads = arguments.threads});
#ifdef HALFBYTE_CUDA
  if (device->name().starts_with("cuda")) return run_gpu_bench(arguments, *device);
#endif
  auto* cpu = dynamic_cast<CpuDevice*>(device.get());
  if (cpu == nullptr)
    throw Error(ErrorKind::kUnsupported, "device",
                fmt::format("{} has no roof to be measured against; cpu has", device->name()));
  if (arguments.what == "roof") return print_roof(arguments, *cpu);

  std::vector<BenchLine> lines;
  std::string title;
  if (arguments.what == "moe") {
    BenchShape shape = bench_shape(arguments);
    if (arguments.experts == 0) hold_experts(shape, default_experts(shape.moe));
    title = describe(shape);
    lines = bench_moe(*cpu, shape, arguments.options);
  } else {
    DenseShape shape = find_dense_shape(arguments.shape);
    if (!arguments.weights.empty()) shape.weights = parse_weights(arguments.weights);
    title = fmt::format("dense {}: gate, up ({}, {}) and down ({}, {}), {}", shape.name,
                        shape.inner, shape.width, shape.width, shape.inner, name_of(shape.weights));
    lines = bench_dense(*cpu, shape, arguments.options);
  }
  if (arguments.json) {
    for (const BenchLine& line : lines) print_json(line, *cpu);
    return;
  }
  fmt::print("{}\n{}\n", title, cpu->describe());
  print_table(lines);
}

}  // namespace

BenchShape bench_shape(const BenchArguments& arguments) {
  BenchShape shape = find_bench_shape(arguments.shape);
  if (!arguments.weights.empty()) shape.moe.weights = parse_weights(arguments.weights);
  if (!arguments.activation.empty())
    shape.moe.activation.kind = parse_activation(arguments.activation).kind;
  if (arguments.experts > 0) hold_experts(shape, arguments.experts);
  return shape;
}

std::string describe(const BenchShape& shape) {
  return fmt::format(
      "moe {}: latent width {}, inner width {}, {} experts in memory{}, top {}, {}, {}", shape.name,
      shape.moe.hidden, shape.moe.intermediate, shape.moe.num_experts,
      shape.all_experts > 0 ? fmt::format(" of {}", shape.all_experts) : "", shape.moe.top_k,
      name_of(shape.moe.activation.kind), name_of(shape.moe.weights));
}

void add_bench_command(CLI::App& app) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand(
      "bench", "Time the kernels against what this machine can do, measured beside them");
  command->add_option("what", arguments->what, "moe, dense or roof")
      ->required()
      ->type_name("WHAT")
      ->check(CLI::IsMember({"moe", "dense", "roof"}).description(""));
  command
      ->add_option("--shape", arguments->shape,
                   "moe: k3, k3-tp4, k3-tp8, k3-ep8, kimi-k2, kimi-linear, qwen3-30b, gpt-oss or "
                   "LATENTxINNERxEXPERTSxTOP_K; dense: k3, kimi-linear or WIDTHxINNER")
      ->type_name("NAME")
      ->capture_default_str();
  command
      ->add_option("--tokens", arguments->tokens,
                   fmt::format("Tokens a call, one line each, at most {}", kMaxTokens))
      ->type_name("N,N,...")
      ->capture_default_str();
  command
      ->add_option("--experts", arguments->experts,
                   "Experts held in memory; 0: all, on a CPU what fits into 640 MB")
      ->type_name("N")
      ->check(in_range(0, 1 << 24))
      ->capture_default_str();
  command
      ->add_option("--weights", arguments->weights,
                   "bf16, fp8_block, nvfp4 or mxfp4; default: what the shape has")
      ->type_name("FORMAT");
  command
      ->add_option(
          "--activation", arguments->activation,
          "moe: swiglu, swiglu_clamped, geglu_tanh, relu2 or situ; default: the shape's own")
      ->type_name("NAME");
  command
      ->add_option("--repetitions", arguments->options.repetitions,
                   "Of each line; fewer where 10 s are over")
      ->type_name("N")
      ->check(in_range(3, 10000))
      ->capture_default_str();
  command
      ->add_option("--device", arguments->device, "cpu, cpu.avx512, cpu.avx2, cpu.scalar, cuda:0")
      ->type_name("NAME")
      ->capture_default_str();
  add_threads(*command, arguments->threads);
  command->add_flag("--json", arguments->json, "One record a line");
  const char* gpu = "On a GPU (--shape, --backend and --routing may be lists)";
  command->add_option("--backend", arguments->backend, "auto, hopper or dequant")
      ->capture_default_str()
      ->group(gpu);
  command
      ->add_option("--routing", arguments->routing,
                   "uniform, zipf (exponent 1) or one (every slot names the same expert)")
      ->capture_default_str()
      ->group(gpu);
  command
      ->add_option("--seconds", arguments->seconds,
                   "Of back-to-back calls for a sustained figure; 0: bursts only")
      ->check(CLI::Range(0.0, 60.0))
      ->capture_default_str()
      ->group(gpu);
  command
      ->add_option("--calls-per-graph", arguments->calls_per_graph,
                   "Calls that one CUDA graph holds, as the layers of a model")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->group(gpu);
  command->add_option("--records", arguments->records, "A file that gets --json's records as well")
      ->group(gpu);
  command->add_option("--commit", arguments->commit, "Written into records")->group(gpu);
  command->footer(
      "% probe: bytes that had to move, over what a plain read moved in the same time.\n"
      "% roof: the time that memory or arithmetic needs at least, over the time taken.\n\n"
      "Examples:\n"
      "  halfbyte bench roof\n"
      "  halfbyte bench moe --shape k3 --experts 32 --tokens 1,8,64,512\n"
      "  halfbyte bench moe --shape qwen3-30b --threads 1 --json\n"
      "  halfbyte bench dense --shape k3 --tokens 1,64\n"
      "  halfbyte bench moe --device cuda:0 --shape k3,k3-tp8 --tokens 1,64,4096 "
      "--backend hopper,dequant");
  command->callback([arguments] { run_bench(*arguments); });
}

}  // namespace halfbyte

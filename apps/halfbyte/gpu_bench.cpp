// `halfbyte bench roof | moe --device cuda:N`. Only with CUDA.
#ifdef HALFBYTE_CUDA
#include "moe/gpu_bench.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "bench.h"
#include "halfbyte/error.h"

namespace halfbyte {
namespace {

using nlohmann::ordered_json;

std::string board_text(const BoardState& board) {
  if (board.sm_mhz == 0) return "clock not known";
  return fmt::format("{:.0f} MHz, {:.0f} W", board.sm_mhz, board.watts);
}

void print_roof(const GpuRoof& roof) {
  fmt::print("memory read  {:7.3f} TB/s in bursts, {:7.3f} TB/s sustained ({})\n",
             roof.read.burst / 1e12, roof.read.sustained / 1e12, board_text(roof.read.board));
  if (roof.dense.burst == 0)
    fmt::print("dense BF16   not known: {}\n", roof.why_no_dense);
  else
    fmt::print("dense BF16   {:7.1f} TFLOP/s in bursts, {:7.1f} TFLOP/s sustained ({})\n",
               roof.dense.burst / 1e12, roof.dense.sustained / 1e12, board_text(roof.dense.board));
  std::fflush(stdout);
}

ordered_json roof_record(const GpuRoof& roof) {
  ordered_json record;
  record["read_burst"] = roof.read.burst;
  record["read_sustained"] = roof.read.sustained;
  record["read_sm_mhz"] = roof.read.board.sm_mhz;
  record["read_watts"] = roof.read.board.watts;
  record["dense_burst"] = roof.dense.burst;
  record["dense_sustained"] = roof.dense.sustained;
  record["dense_sm_mhz"] = roof.dense.board.sm_mhz;
  record["dense_watts"] = roof.dense.board.watts;
  return record;
}

// Where records go: to stdout with --json, behind the others of a file with --records.
class Records {
 public:
  Records(const BenchArguments& arguments, const Device& device)
      : json_(arguments.json), commit_(arguments.commit), device_(device.describe()) {
    date_ = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
    if (arguments.records.empty()) return;
    file_.open(arguments.records, std::ios::app);
    if (!file_)
      throw Error(ErrorKind::kResource, arguments.records, "cannot be written (--records)");
  }

  void add(ordered_json record) {
    record["device"] = device_;
    record["version"] = HALFBYTE_VERSION;
    record["commit"] = commit_;
    record["date"] = date_;
    if (json_) {
      fmt::print("{}\n", record.dump());
      std::fflush(stdout);
    }
    if (file_.is_open()) file_ << record.dump() << std::endl;
  }

 private:
  bool json_;
  std::string commit_, device_, date_;  // date_: when the run began, UTC
  std::ofstream file_;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  if (parts.empty()) parts.emplace_back();  // an empty name, which is refused as such
  return parts;
}

ordered_json line_record(const BenchShape& shape, const BenchArguments& arguments,
                         const GpuBenchSetup& setup, const GpuBenchLine& line) {
  ordered_json record;
  record["bench"] = "moe";
  record["shape"] = shape.name;
  record["hidden"] = shape.moe.hidden;
  record["intermediate"] = shape.moe.intermediate;
  record["experts"] = shape.moe.num_experts;
  record["routed_experts"] = shape.routed_experts();
  record["top_k"] = shape.moe.top_k;
  record["activation"] = name_of(shape.moe.activation.kind);
  record["weights"] = name_of(shape.moe.weights);
  record["backend"] = arguments.backend;
  record["layout"] = setup.layout;
  record["plan"] = setup.plan;
  record["routing"] = arguments.routing;
  record["tokens"] = line.tokens;
  record["active_experts"] = line.active_experts;
  record["active_slots"] = line.active_slots;
  record["bytes"] = line.bytes;
  record["flops"] = line.flops;
  record["layers_in_memory"] = setup.layers;
  record["graph"] = line.captured;
  record["plausible"] = line.plausible;
  record["calls_per_graph"] = arguments.calls_per_graph;
  record["burst_seconds"] = line.timing.burst;
  record["burst_share_of_roof"] = line.burst_of_roof;
  record["sustained_seconds"] = line.timing.sustained;
  record["sustained_share_of_roof"] = line.sustained_of_roof;
  record["sm_mhz"] = line.timing.board.sm_mhz;
  record["watts"] = line.timing.board.watts;
  return record;
}

void print_header() {
  fmt::print("{:>7} {:>7} | {:>10} {:>7} {:>8} {:>7} | {:>10} {:>7} {:>8} {:>7} | {:>5} {:>5}\n",
             "", "", "burst", "", "", "", "sustained", "", "", "", "", "");
  fmt::print("{:>7} {:>7} | {:>10} {:>7} {:>8} {:>7} | {:>10} {:>7} {:>8} {:>7} | {:>5} {:>5}\n",
             "tokens", "experts", "us", "TB/s", "TFLOP/s", "% roof", "us", "TB/s", "TFLOP/s",
             "% roof", "MHz", "W");
}

void print_line(const GpuBenchLine& line) {
  const auto figures = [&](double seconds, double of_roof) {
    if (seconds == 0) return fmt::format("{:>10} {:>7} {:>8} {:>7}", "-", "-", "-", "-");
    return fmt::format("{:>10.2f} {:>7.3f} {:>8.1f} {:>7.1f}", seconds * 1e6,
                       line.bytes / seconds / 1e12, line.flops / seconds / 1e12, of_roof * 100);
  };
  fmt::print("{:>7} {:>7.1f} | {} | {} | {:>5.0f} {:>5.0f}{}{}\n", line.tokens, line.active_experts,
             figures(line.timing.burst, line.burst_of_roof),
             figures(line.timing.sustained, line.sustained_of_roof), line.timing.board.sm_mhz,
             line.timing.board.watts, line.captured ? "" : "  not captured",
             line.plausible ? "" : "  y IS NOT PLAUSIBLE");
  std::fflush(stdout);
}

// One table: one shape, backend and routing.
void bench_moe(const BenchArguments& arguments, Device& device, const GpuRoof& roof,
               Records& records) {
  const BenchShape shape = bench_shape(arguments);
  GpuBenchOptions options;
  options.tokens = arguments.options.tokens;
  options.backend = arguments.backend;
  options.routing = parse_routing_kind(arguments.routing);
  options.seconds = arguments.seconds;
  options.calls_per_graph = arguments.calls_per_graph;
  bool first = true;
  bench_moe_gpu(
      device, shape, options, roof, [&](const GpuBenchSetup& setup, const GpuBenchLine& line) {
        ordered_json record = line_record(shape, arguments, setup, line);
        record.update(roof_record(roof));
        records.add(record);
        if (arguments.json) return;
        if (first) {
          fmt::print("\n{}, routing {}\n{}; {} in memory\n", describe(shape), arguments.routing,
                     setup.plan,
                     setup.layers == 1 ? "one layer" : fmt::format("{} layers", setup.layers));
          print_header();
          first = false;
        }
        print_line(line);
      });
}

}  // namespace

void run_gpu_bench(const BenchArguments& arguments, Device& device) {
  if (arguments.what == "dense")
    throw Error(ErrorKind::kUnsupported, "device",
                "bench dense runs on cpu; on a GPU there are bench roof and bench moe");
  Records records(arguments, device);
  if (!arguments.json) fmt::print("{}\n", device.describe());
  const GpuRoof roof = measure_gpu_roof(device, arguments.seconds);
  if (!arguments.json) print_roof(roof);
  ordered_json record;
  record["bench"] = "roof";
  record.update(roof_record(roof));
  records.add(record);
  if (arguments.what == "roof") return;

  // A combination that cannot be run does not stop the others.
  int failures = 0;
  for (const std::string& shape : split(arguments.shape))
    for (const std::string& backend : split(arguments.backend))
      for (const std::string& routing : split(arguments.routing)) {
        BenchArguments one = arguments;
        one.shape = shape;
        one.backend = backend;
        one.routing = routing;
        try {
          bench_moe(one, device, roof, records);
        } catch (const Error& error) {
          ++failures;
          fmt::print(stderr, "{}, backend {}, routing {}: {}\n", shape, backend, routing,
                     error.what());
        }
      }
  if (failures > 0)
    throw Error(ErrorKind::kUnsupported, "bench",
                fmt::format("{} of the benches could not be run", failures));
}

}  // namespace halfbyte
#endif

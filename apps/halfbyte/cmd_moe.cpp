// `halfbyte moe`: one MoE operation from a file, its result into another.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "formats/bf16.h"
#include "formats/safetensors.h"
#include "halfbyte/error.h"
#include "halfbyte/moe.h"
#include "moe/case_file.h"
#include "options.h"

namespace halfbyte {
namespace {

struct MoeArguments {
  std::string case_path, out, device = "auto", backend = "auto";
  int threads = 0;
};

void run_case(const MoeArguments& arguments) {
  const MoeCase c(arguments.case_path);
  const auto device = open_device(arguments.device, {.threads = arguments.threads});
  const auto plan = plan_moe(c.shape, {.max_tokens = std::max(1, c.routing.num_tokens)}, *device,
                             arguments.backend);

  std::vector<std::byte> host(plan->layout().packed_bytes);
  pack_experts([&](int e) { return c.experts[static_cast<size_t>(e)]; }, *plan, host);
  Buffer packed = device->allocate(host.size());
  device->copy_to_device(packed.data(), host.data(), host.size());
  const auto layer = plan->bind(packed.data(), packed.bytes());

  const auto to_device = [&](const void* data, int64_t bytes) {
    Buffer buffer = device->allocate(static_cast<size_t>(bytes));
    device->copy_to_device(buffer.data(), data, static_cast<size_t>(bytes));
    return buffer;
  };
  const int64_t slots = int64_t{c.routing.num_tokens} * c.shape.top_k;
  const int64_t elements = c.x.rows * c.x.cols;
  const Buffer ids = to_device(c.routing.topk_ids, slots * 4);
  const Buffer weights = to_device(c.routing.topk_weights, slots * 4);
  std::vector<uint16_t> rounded;
  TensorView host_x = c.x;
  if (c.x.dtype == DType::kF32 && !plan->takes_f32_x()) {
    const auto* values = static_cast<const float*>(c.x.data);
    rounded.resize(static_cast<size_t>(elements));
    std::transform(values, values + elements, rounded.begin(), float_to_bf16);
    host_x = TensorView::of(rounded.data(), DType::kBf16, c.x.rows, c.x.cols);
  }
  const Buffer x = to_device(host_x.data, elements * dtype_bytes(host_x.dtype));
  const Buffer y = device->allocate(static_cast<size_t>(elements) * 4);
  const Buffer workspace = device->allocate(plan->workspace_bytes());
  layer->run({static_cast<const int32_t*>(ids.data()), static_cast<const float*>(weights.data()),
              c.routing.num_tokens},
             TensorView::of(x.data(), host_x.dtype, c.x.rows, c.x.cols),
             TensorView::of(y.data(), DType::kF32, c.x.rows, c.x.cols), workspace.data());
  device->wait();

  std::vector<float> result(static_cast<size_t>(elements));
  device->copy_to_host(result.data(), y.data(), result.size() * 4);
  SafetensorsWriter writer(arguments.out, {{"y", DType::kF32, {c.x.rows, c.x.cols}}});
  writer.write(result.data(), result.size() * 4);
  writer.commit();
  fmt::print("{}: y F32 [{}, {}], {}\n", arguments.out, c.x.rows, c.x.cols, plan->describe());
}

}  // namespace

void add_moe_command(CLI::App& app) {
  auto arguments = std::make_shared<MoeArguments>();
  CLI::App* command = app.add_subcommand("moe", "Run one mixture-of-experts operation from a file");
  command
      ->add_option("--case", arguments->case_path,
                   "safetensors: hidden, topk_ids, topk_weights, experts.E.{w1,w3,w2}...; metadata "
                   "`case` is JSON with the activation and its parameters")
      ->type_name("FILE")
      ->required()
      ->check(kNotEmpty);
  command->add_option("--out", arguments->out, "File to write: `y` F32 [T, hidden]")
      ->type_name("FILE")
      ->required()
      ->check(kNotEmpty);
  command->add_option("--device", arguments->device, "auto, ref, cpu, cpu.avx2, cuda:0, ...")
      ->type_name("NAME")
      ->capture_default_str();
  command
      ->add_option(
          "--backend", arguments->backend,
          "auto, cpu, reference, hopper (fused, on cuda), dequant (on cuda: experts decoded "
          "to BF16, then plain products); hopper rounds an F32 `hidden` to BF16")
      ->type_name("NAME")
      ->capture_default_str();
  add_threads(*command, arguments->threads);
  command->footer(
      "Examples:\n"
      "  halfbyte moe --case tests/golden/moe-op/situ_t7.safetensors --out y.safetensors\n"
      "  halfbyte moe --case CASE.safetensors --device ref --out y.safetensors\n"
      "  halfbyte moe --case CASE.safetensors --device cuda:0 --backend dequant --out "
      "y.safetensors");
  command->callback([arguments] { run_case(*arguments); });
}

}  // namespace halfbyte

// The C ABI over moe.h: handles, checks of what a C caller may get wrong, errors as numbers.
#include "halfbyte/halfbyte_c.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "c_api/on_device.h"
#include "c_api/pack_through_host.h"
#include "halfbyte/error.h"
#include "halfbyte/moe.h"
#include "moe/device_packer.h"

using halfbyte::DevicePacker;
using halfbyte::DType;
using halfbyte::Error;
using halfbyte::ErrorKind;
using halfbyte::c_api::KeepCurrentGpu;
using halfbyte::c_api::OnDevice;
using halfbyte::c_api::SharedDevice;

struct hb_device {
  std::shared_ptr<SharedDevice> shared;
};

namespace {

// Here and in hb_moe_layer, what others rest on stands first, so that it goes last.
struct Plan {
  std::shared_ptr<SharedDevice> shared;
  std::unique_ptr<halfbyte::MoePlan> plan;
  int max_num_tokens = 0;
  size_t workspace_bytes = 0;
  std::string description;
};

thread_local std::string last_error;  // NOLINT: one a thread

hb_status fail(hb_status status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();  // no memory for the words either
  }
  return status;
}

hb_status status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInput:
      return HB_ERROR_INPUT;
    case ErrorKind::kUnsupported:
      return HB_ERROR_UNSUPPORTED;
    case ErrorKind::kResource:
      return HB_ERROR_RESOURCE;
    case ErrorKind::kInternal:
      break;
  }
  return HB_ERROR_INTERNAL;
}

// Everything that may throw runs in here.
template <class Work>
hb_status guarded(const Work& work) noexcept {
  try {
    work();
    return HB_OK;
  } catch (const Error& error) {
    return fail(status_of(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(HB_ERROR_RESOURCE, "not enough memory");
  } catch (const std::exception& error) {
    return fail(HB_ERROR_INTERNAL, error.what());
  } catch (...) {
    return fail(HB_ERROR_INTERNAL, "unknown exception");
  }
}

[[noreturn]] void refuse(std::string where, std::string message) {
  throw Error(ErrorKind::kInput, std::move(where), std::move(message));
}

void expect_there(const char* name, const void* pointer) {
  if (pointer == nullptr) refuse(name, "NULL");
}

// Throws unless a struct is as large as one that a caller can have been compiled with.
template <class Struct>
void check_struct(const char* name, const Struct* theirs) {
  expect_there(name, theirs);
  const uint32_t bytes = theirs->struct_bytes;
  if (bytes < sizeof bytes || bytes > sizeof(Struct))
    refuse(fmt::format("{}.struct_bytes", name),
           fmt::format("{}: expected sizeof({}), which is {} here", bytes, name, sizeof(Struct)));
}

// The caller's struct over the defaults of ours: fields that it does not have keep them.
template <class Struct>
Struct read_struct(const char* name, const Struct* theirs, Struct defaults = {}) {
  check_struct(name, theirs);
  std::memcpy(&defaults, theirs, theirs->struct_bytes);
  return defaults;
}

halfbyte::WeightFormat parse_format(const char* name) {
  for (auto format : {halfbyte::WeightFormat::kNvfp4, halfbyte::WeightFormat::kMxfp4})
    if (std::strcmp(name, name_of(format)) == 0) return format;
  refuse("weight_format", fmt::format("\"{}\": expected nvfp4 or mxfp4", name));
}

halfbyte::MoeShape shape_of(const hb_moe_options& options) {
  halfbyte::MoeShape shape;
  shape.num_experts = options.num_experts;
  shape.top_k = options.top_k;
  shape.hidden = options.hidden_size;
  shape.intermediate = options.intermediate_size;
  shape.weights = parse_format(options.weight_format);
  halfbyte::Activation& activation = shape.activation;
  activation = halfbyte::parse_activation(options.activation);
  activation.beta = options.situ_beta;
  activation.linear_beta.reset();
  if (options.situ_has_linear_beta != 0) activation.linear_beta = options.situ_linear_beta;
  activation.alpha = options.swiglu_alpha;
  activation.limit = options.swiglu_limit;
  activation.up_bias = options.swiglu_beta;
  return shape;
}

halfbyte::StridedMatrices matrices_of(const char* name, const hb_moe_matrices& from,
                                      halfbyte::WeightFormat format) {
  const auto tensor = [](const hb_strided& strided) {
    return halfbyte::StridedTensor{static_cast<const uint8_t*>(strided.data), strided.expert_stride,
                                   strided.row_stride};
  };
  expect_there(fmt::format("{}.codes", name).c_str(), from.codes.data);
  expect_there(fmt::format("{}.scales", name).c_str(), from.scales.data);
  const bool is_nvfp4 = format == halfbyte::WeightFormat::kNvfp4;
  if (is_nvfp4) expect_there(fmt::format("{}.global_scales", name).c_str(), from.global_scales);
  return {tensor(from.codes), tensor(from.scales), is_nvfp4 ? from.global_scales : nullptr,
          from.global_scale_stride};
}

DType dtype_of(const char* name, int32_t dtype) {
  if (dtype == HB_BF16) return DType::kBf16;
  if (dtype == HB_F32) return DType::kF32;
  refuse(name, fmt::format("{}: expected HB_BF16 or HB_F32", dtype));
}

void check_packed_bytes(const halfbyte::MoePlan& plan, const void* packed, size_t packed_bytes) {
  expect_there("packed", packed);
  if (packed_bytes != plan.layout().packed_bytes)
    refuse("packed_bytes", fmt::format("{}: layout {} needs {}", packed_bytes, plan.layout().name,
                                       plan.layout().packed_bytes));
}

// A GPU's work must not fail for what a check can find before it is queued.
void check_call(const Plan& plan, const hb_moe_call& call, DType x_dtype) {
  const halfbyte::MoeShape& shape = plan.plan->shape();
  if (call.num_tokens < 0 || call.num_tokens > plan.max_num_tokens)
    refuse("num_tokens", fmt::format("{}: expected 0 to max_num_tokens, {}", call.num_tokens,
                                     plan.max_num_tokens));
  if (call.num_tokens == 0) return;
  expect_there("topk_ids", call.topk_ids);
  expect_there("topk_weights", call.topk_weights);
  expect_there("hidden_states", call.hidden_states);
  expect_there("output", call.output);
  if (x_dtype == DType::kF32 && !plan.plan->takes_f32_x())
    refuse("hidden_states_dtype", "F32: this backend takes BF16");
  if (call.hidden_states_stride < shape.hidden || call.output_stride < shape.hidden)
    refuse("hidden_states_stride, output_stride",
           fmt::format("{}, {}: expected hidden_size, {}, at least", call.hidden_states_stride,
                       call.output_stride, shape.hidden));
  if (plan.workspace_bytes == 0) return;
  expect_there("workspace", call.workspace);
  if (call.workspace_bytes < plan.workspace_bytes)
    refuse("workspace_bytes",
           fmt::format("{}: this plan needs {}", call.workspace_bytes, plan.workspace_bytes));
  if (reinterpret_cast<uintptr_t>(call.workspace) % 256 != 0)
    refuse("workspace", "address not a multiple of 256");
}

}  // namespace

struct hb_moe_plan {
  std::shared_ptr<const Plan> plan;
};

struct hb_moe_layer {
  std::shared_ptr<const Plan> plan;
  std::unique_ptr<halfbyte::MoeLayer> layer;
};

uint32_t hb_abi_version(void) { return HB_ABI_VERSION; }

const char* hb_last_error(void) { return last_error.c_str(); }

hb_status hb_device_open(const char* name, int32_t threads, hb_device** device) {
  return guarded([&] {
    expect_there("name", name);
    expect_there("device", device);
    if (threads < 0) refuse("threads", fmt::format("{}: expected 0 or more", threads));
    const KeepCurrentGpu keep;
    *device = new hb_device{std::make_shared<SharedDevice>(halfbyte::open_device(name, {threads}))};
  });
}

void hb_device_close(hb_device* device) { delete device; }

void hb_moe_options_init(hb_moe_options* options, size_t struct_bytes) {
  if (options == nullptr) return;
  const halfbyte::Activation activation;
  hb_moe_options defaults = {};
  defaults.struct_bytes = static_cast<uint32_t>(struct_bytes);
  defaults.weight_format = "nvfp4";
  defaults.backend = "auto";
  defaults.activation = "swiglu";
  defaults.situ_beta = activation.beta;
  defaults.situ_linear_beta = activation.linear_beta.value_or(0);
  defaults.situ_has_linear_beta = activation.linear_beta.has_value() ? 1 : 0;
  defaults.swiglu_alpha = activation.alpha;
  defaults.swiglu_limit = activation.limit;
  defaults.swiglu_beta = activation.up_bias;
  // What is behind the caller's struct is not ours. A larger one is refused when it is used.
  std::memcpy(options, &defaults, std::min(struct_bytes, sizeof defaults));
}

hb_status hb_moe_plan_create(hb_device* device, const hb_moe_options* options, hb_moe_plan** plan) {
  return guarded([&] {
    expect_there("device", device);
    expect_there("plan", plan);
    hb_moe_options defaults;
    hb_moe_options_init(&defaults, sizeof defaults);
    const hb_moe_options wanted = read_struct("hb_moe_options", options, defaults);
    if (wanted.reserved != 0)
      refuse("hb_moe_options.reserved", fmt::format("{}: expected 0", wanted.reserved));
    expect_there("weight_format", wanted.weight_format);
    expect_there("backend", wanted.backend);
    expect_there("activation", wanted.activation);
    OnDevice turn(*device->shared);
    auto made = std::make_shared<Plan>();
    made->shared = device->shared;
    made->plan = halfbyte::plan_moe(
        shape_of(wanted),
        {.max_tokens = wanted.max_num_tokens, .num_global_experts = wanted.num_global_experts},
        turn.device(), wanted.backend);
    made->max_num_tokens = wanted.max_num_tokens;
    made->workspace_bytes = made->plan->workspace_bytes();
    made->description = made->plan->describe();
    *plan = new hb_moe_plan{std::move(made)};
  });
}

void hb_moe_plan_destroy(hb_moe_plan* plan) { delete plan; }

hb_status hb_moe_plan_get_info(const hb_moe_plan* plan, hb_moe_plan_info* info) {
  return guarded([&] {
    expect_there("plan", plan);
    check_struct("hb_moe_plan_info", info);
    const halfbyte::MoePlan& made = *plan->plan->plan;
    hb_moe_plan_info filled = {};
    filled.struct_bytes = info->struct_bytes;
    filled.expert_bytes = made.layout().expert_bytes;
    filled.packed_bytes = made.layout().packed_bytes;
    filled.workspace_bytes = plan->plan->workspace_bytes;
    filled.takes_f32_input = made.takes_f32_x() ? 1 : 0;
    filled.is_gated = made.shape().activation.gated() ? 1 : 0;
    filled.describe = plan->plan->description.c_str();
    if (const DevicePacker* packer = made.device_packer()) {
      const halfbyte::StagedExpert staged = packer->staged();
      filled.packs_in_place = 1;
      filled.gate_codes = staged.gate_codes;
      filled.up_codes = staged.up_codes;
      filled.gate_scales = staged.gate_scales;
      filled.up_scales = staged.up_scales;
      filled.down_codes = staged.down_codes;
      filled.down_scales = staged.down_scales;
      filled.global_scales = staged.global_scales;
    }
    std::memcpy(info, &filled, filled.struct_bytes);
  });
}

hb_status hb_moe_pack(const hb_moe_plan* plan, const hb_moe_weights* weights, int32_t first,
                      int32_t count, void* packed, size_t packed_bytes, void* stream) {
  return guarded([&] {
    expect_there("plan", plan);
    const halfbyte::MoePlan& made = *plan->plan->plan;
    const hb_moe_weights stored = read_struct("hb_moe_weights", weights);
    check_packed_bytes(made, packed, packed_bytes);
    const halfbyte::MoeShape& shape = made.shape();
    if (first < 0 || count < 0 || first > shape.num_experts - count)
      refuse("first, count", fmt::format("experts {} to {}: the layer has {}", first,
                                         int64_t{first} + count - 1, shape.num_experts));
    if (count == 0) return;
    halfbyte::StridedExperts experts;
    if (shape.activation.gated()) experts.gate = matrices_of("gate", stored.gate, shape.weights);
    experts.up = matrices_of("up", stored.up, shape.weights);
    experts.down = matrices_of("down", stored.down, shape.weights);
    OnDevice turn(*plan->plan->shared, stream);
    if (const DevicePacker* packer = made.device_packer())
      packer->pack(experts, first, count, packed);
    else
      halfbyte::c_api::pack_through_host(made, turn.device(), experts, first, count, packed);
  });
}

hb_status hb_moe_pack_in_place(const hb_moe_plan* plan, void* packed, size_t packed_bytes,
                               void* scratch, size_t scratch_bytes, void* stream) {
  return guarded([&] {
    expect_there("plan", plan);
    const halfbyte::MoePlan& made = *plan->plan->plan;
    const DevicePacker* packer = made.device_packer();
    if (packer == nullptr)
      throw Error(ErrorKind::kUnsupported, "packing in place",
                  fmt::format("layout {} is packed on the host; what would work: hb_moe_pack",
                              made.layout().name));
    check_packed_bytes(made, packed, packed_bytes);
    expect_there("scratch", scratch);
    OnDevice turn(*plan->plan->shared, stream);
    packer->pack_in_place(packed, scratch, scratch_bytes);
  });
}

hb_status hb_moe_layer_create(const hb_moe_plan* plan, const void* packed, size_t packed_bytes,
                              hb_moe_layer** layer) {
  return guarded([&] {
    expect_there("plan", plan);
    expect_there("layer", layer);
    check_packed_bytes(*plan->plan->plan, packed, packed_bytes);
    OnDevice turn(*plan->plan->shared);
    auto made = std::make_unique<hb_moe_layer>();
    made->plan = plan->plan;
    made->layer = plan->plan->plan->bind(packed, packed_bytes);
    *layer = made.release();
  });
}

void hb_moe_layer_destroy(hb_moe_layer* layer) { delete layer; }

hb_status hb_moe_run(const hb_moe_layer* layer, const hb_moe_call* call) {
  return guarded([&] {
    expect_there("layer", layer);
    const hb_moe_call wanted = read_struct("hb_moe_call", call);
    const Plan& plan = *layer->plan;
    const DType x_dtype = dtype_of("hidden_states_dtype", wanted.hidden_states_dtype);
    const DType y_dtype = dtype_of("output_dtype", wanted.output_dtype);
    check_call(plan, wanted, x_dtype);
    if (wanted.num_tokens == 0) return;
    const int64_t hidden = plan.plan->shape().hidden;
    // NOTE: TensorView has no read-only twin; `run` does not write through x.
    const halfbyte::TensorView x = {const_cast<void*>(wanted.hidden_states), x_dtype,
                                    wanted.num_tokens, hidden, wanted.hidden_states_stride};
    const halfbyte::TensorView y = {wanted.output, y_dtype, wanted.num_tokens, hidden,
                                    wanted.output_stride};
    OnDevice turn(*plan.shared, wanted.stream);
    layer->layer->run({wanted.topk_ids, wanted.topk_weights, wanted.num_tokens}, x, y,
                      wanted.workspace);
  });
}

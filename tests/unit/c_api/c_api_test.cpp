// The C ABI on the CPU: the same results as moe.h, errors as numbers with one line, structs of
// other sizes, handles released in any order, several threads.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "halfbyte/device.h"
#include "halfbyte/halfbyte_c.h"
#include "support/moe.h"

namespace halfbyte {
namespace {

using testing_moe::StoredExperts;

constexpr int kExperts = 5, kTopK = 2, kHidden = 64, kInner = 32, kTokens = 9;

MoeShape shape_of(WeightFormat format, ActivationKind activation) {
  MoeShape shape;
  shape.num_experts = kExperts;
  shape.top_k = kTopK;
  shape.hidden = kHidden;
  shape.intermediate = kInner;
  shape.weights = format;
  shape.activation.kind = activation;
  return shape;
}

// All experts of one matrix as a checkpoint's tensors have them, rows `pad` bytes apart at least.
struct Stacked {
  std::vector<uint8_t> codes, scales;
  std::vector<float> globals;
  hb_moe_matrices matrices{};

  Stacked(const std::vector<ExpertWeights>& experts, MatrixView ExpertWeights::*part, size_t pad) {
    const MatrixView& first = experts[0].*part;
    if (first.empty()) return;
    const auto rows = static_cast<size_t>(first.rows), cols = static_cast<size_t>(first.cols);
    const size_t code_bytes = cols / 2;
    const size_t scale_bytes = cols / (first.format == WeightFormat::kMxfp4 ? 32 : 16);
    for (const ExpertWeights& expert : experts) {
      const MatrixView& matrix = expert.*part;
      append(codes, matrix.values, rows, code_bytes, pad);
      append(scales, matrix.scales, rows, scale_bytes, pad);
      globals.push_back(matrix.global_scale);
    }
    matrices.codes = strided(codes, rows, code_bytes + pad);
    matrices.scales = strided(scales, rows, scale_bytes + pad);
    matrices.global_scales = globals.data();
    matrices.global_scale_stride = 1;
  }
  Stacked(const Stacked&) = delete;

 private:
  static void append(std::vector<uint8_t>& to, const void* from, size_t rows, size_t row_bytes,
                     size_t pad) {
    const auto* bytes = static_cast<const uint8_t*>(from);
    for (size_t row = 0; row < rows; ++row) {
      to.insert(to.end(), bytes + row * row_bytes, bytes + (row + 1) * row_bytes);
      to.insert(to.end(), pad, 0xFF);
    }
  }
  static hb_strided strided(const std::vector<uint8_t>& bytes, size_t rows, size_t row_stride) {
    return {bytes.data(), static_cast<int64_t>(rows * row_stride),
            static_cast<int64_t>(row_stride)};
  }
};

hb_moe_options options_for(const char* format, const char* activation) {
  hb_moe_options options;
  hb_moe_options_init(&options, sizeof options);
  options.num_experts = kExperts;
  options.top_k = kTopK;
  options.hidden_size = kHidden;
  options.intermediate_size = kInner;
  options.max_num_tokens = kTokens;
  options.weight_format = format;
  options.activation = activation;
  return options;
}

void ok(hb_status status) { ASSERT_EQ(status, HB_OK) << hb_last_error(); }

// A device, a plan and a layer with its memory.
struct Layer {
  hb_device* device = nullptr;
  hb_moe_plan* plan = nullptr;
  hb_moe_layer* layer = nullptr;
  hb_moe_plan_info info{};
  Buffer packed, workspace;
  std::unique_ptr<Device> memory = open_device("cpu", {.threads = 1});

  explicit Layer(const hb_moe_options& options, const char* name = "cpu") {
    ok(hb_device_open(name, 2, &device));
    ok(hb_moe_plan_create(device, &options, &plan));
    info.struct_bytes = sizeof info;
    ok(hb_moe_plan_get_info(plan, &info));
    packed = memory->allocate(info.packed_bytes);
    workspace = memory->allocate(info.workspace_bytes);
  }
  ~Layer() {
    hb_device_close(device);  // others keep what they need
    hb_moe_plan_destroy(plan);
    hb_moe_layer_destroy(layer);
  }

  hb_status pack(const StoredExperts& experts, size_t pad = 0) {
    const Stacked gate(experts.views, &ExpertWeights::gate, pad),
        up(experts.views, &ExpertWeights::up, pad), down(experts.views, &ExpertWeights::down, pad);
    const hb_moe_weights weights = {sizeof weights, gate.matrices, up.matrices, down.matrices};
    return hb_moe_pack(plan, &weights, 0, kExperts, packed.data(), packed.bytes(), nullptr);
  }
  void bind() { ok(hb_moe_layer_create(plan, packed.data(), packed.bytes(), &layer)); }

  hb_moe_call call(const Routing& routing, const uint16_t* x, float* y) {
    return {sizeof(hb_moe_call),
            routing.num_tokens,
            routing.topk_ids,
            routing.topk_weights,
            x,
            y,
            HB_BF16,
            HB_F32,
            kHidden,
            kHidden,
            workspace.data(),
            workspace.bytes(),
            nullptr};
  }
};

class CApi : public ::testing::Test {
 protected:
  StoredExperts experts(WeightFormat format, ActivationKind activation) {
    return testing_moe::random_experts(shape_of(format, activation), random_);
  }
  std::vector<float> run(Layer& layer) {
    std::vector<float> y(kTokens * kHidden, std::numeric_limits<float>::quiet_NaN());
    const hb_moe_call call = layer.call(routing_.view(), x_.data(), y.data());
    ok(hb_moe_run(layer.layer, &call));
    return y;
  }

  std::mt19937 random_{5};
  testing_moe::StoredRouting routing_ = testing_moe::random_routing(
      shape_of(WeightFormat::kNvfp4, ActivationKind::kSitu), kTokens, random_);
  std::vector<uint16_t> x_ = testing_moe::random_bf16(kTokens * kHidden, random_);
};

TEST_F(CApi, GivesTheBitsOfMoeH) {
  struct Case {
    WeightFormat format;
    ActivationKind activation;
  };
  for (const auto& [format, activation] :
       {Case{WeightFormat::kNvfp4, ActivationKind::kSitu},
        Case{WeightFormat::kNvfp4, ActivationKind::kRelu2},
        Case{WeightFormat::kMxfp4, ActivationKind::kSwigluClamped}}) {
    const StoredExperts stored = experts(format, activation);
    testing_moe::Runner runner("cpu." + open_device("cpu")->name().substr(4),
                               shape_of(format, activation), stored.views, kTokens);
    const std::vector<float> expected =
        runner.run(routing_.view(), testing_moe::bf16_view(x_, kTokens, kHidden));
    for (const size_t pad : {0, 3}) {  // strided rows too
      Layer layer(options_for(name_of(format), name_of(activation)));
      ok(layer.pack(stored, pad));
      layer.bind();
      EXPECT_EQ(run(layer), expected) << name_of(format) << " " << name_of(activation);
    }
  }
}

TEST_F(CApi, ParametersOfActivationsArrive) {
  const StoredExperts stored = experts(WeightFormat::kNvfp4, ActivationKind::kSitu);
  std::vector<std::vector<float>> results;
  for (int i = 0; i < 4; ++i) {
    hb_moe_options options = options_for("nvfp4", i == 3 ? "silu" : "situ");
    if (i == 1) options.situ_beta = 0.5f;
    if (i == 2) options.situ_has_linear_beta = 0;
    Layer layer(options);
    ok(layer.pack(stored));
    layer.bind();
    results.push_back(run(layer));
    for (int j = 0; j < i; ++j) EXPECT_NE(results[static_cast<size_t>(j)], results.back()) << i;
  }
}

// Packed expert by expert, or some at a time: the same bytes as at once.
TEST_F(CApi, PacksAnyRangeOfExperts) {
  const StoredExperts stored = experts(WeightFormat::kNvfp4, ActivationKind::kSitu);
  Layer whole(options_for("nvfp4", "situ")), parts(options_for("nvfp4", "situ"));
  ok(whole.pack(stored));
  for (const auto& [first, count] : {std::pair{3, 2}, std::pair{0, 1}, std::pair{1, 2}}) {
    const std::vector<ExpertWeights> some(stored.views.begin() + first,
                                          stored.views.begin() + first + count);
    const Stacked gate(some, &ExpertWeights::gate, 0), up(some, &ExpertWeights::up, 0),
        down(some, &ExpertWeights::down, 0);
    const hb_moe_weights weights = {sizeof weights, gate.matrices, up.matrices, down.matrices};
    ok(hb_moe_pack(parts.plan, &weights, first, count, parts.packed.data(), parts.packed.bytes(),
                   nullptr));
  }
  EXPECT_EQ(std::memcmp(whole.packed.data(), parts.packed.data(), whole.packed.bytes()), 0);
}

TEST_F(CApi, RefusesWithANumberAndOneLine) {
  const auto expect_refused = [](hb_status status, hb_status wanted, const char* words) {
    EXPECT_EQ(status, wanted);
    EXPECT_NE(std::string(hb_last_error()).find(words), std::string::npos) << hb_last_error();
  };
  hb_device* device = nullptr;
  expect_refused(hb_device_open("tpu", 0, &device), HB_ERROR_INPUT, "unknown device \"tpu\"");
  expect_refused(hb_device_open(nullptr, 0, &device), HB_ERROR_INPUT, "name: NULL");
  expect_refused(hb_device_open("cuda:255", 0, &device), HB_ERROR_UNSUPPORTED, "cuda:255");
  EXPECT_EQ(device, nullptr);

  hb_moe_options options = options_for("nvfp4", "situ");
  Layer layer(options);
  hb_moe_plan* plan = nullptr;
  const auto refused_plan = [&](hb_status wanted, const char* words) {
    expect_refused(hb_moe_plan_create(layer.device, &options, &plan), wanted, words);
    options = options_for("nvfp4", "situ");
  };
  options.activation = "gelu";
  refused_plan(HB_ERROR_INPUT, "unknown name \"gelu\"");
  options.weight_format = "fp8";
  refused_plan(HB_ERROR_INPUT, "weight_format: \"fp8\"");
  options.backend = "hopper";
  refused_plan(HB_ERROR_UNSUPPORTED, "hopper does not run on device cpu");
  options.hidden_size = 40;
  refused_plan(HB_ERROR_INPUT, "multiple of 16");
  options.situ_beta = 0;
  refused_plan(HB_ERROR_INPUT, "activation beta");
  options.reserved = 1;
  refused_plan(HB_ERROR_INPUT, "reserved: 1");
  options.reserved = 0;
  options.num_global_experts = kExperts - 1;
  refused_plan(HB_ERROR_INPUT, "num_global_experts");
  options.struct_bytes += 8;
  refused_plan(HB_ERROR_INPUT, "hb_moe_options.struct_bytes");
  EXPECT_EQ(plan, nullptr);

  StoredExperts stored = experts(WeightFormat::kNvfp4, ActivationKind::kSitu);
  stored.matrices[3 * 2 + 1].scales[7] = 0x7F;  // NaN
  expect_refused(layer.pack(stored), HB_ERROR_INPUT, "expert 2 up");
  ok(layer.pack(experts(WeightFormat::kNvfp4, ActivationKind::kSitu)));
  const hb_moe_weights none = {sizeof none, {}, {}, {}};
  expect_refused(
      hb_moe_pack(layer.plan, &none, 0, 1, layer.packed.data(), layer.packed.bytes(), nullptr),
      HB_ERROR_INPUT, "gate.codes: NULL");
  expect_refused(
      hb_moe_pack(layer.plan, &none, 4, 2, layer.packed.data(), layer.packed.bytes(), nullptr),
      HB_ERROR_INPUT, "experts 4 to 5: the layer has 5");
  expect_refused(hb_moe_pack_in_place(layer.plan, layer.packed.data(), layer.packed.bytes(),
                                      layer.workspace.data(), layer.workspace.bytes(), nullptr),
                 HB_ERROR_UNSUPPORTED, "hb_moe_pack");
  hb_moe_layer* unbound = nullptr;
  expect_refused(
      hb_moe_layer_create(layer.plan, layer.packed.data(), layer.packed.bytes() - 1, &unbound),
      HB_ERROR_INPUT, "packed_bytes");
  layer.bind();
  std::vector<float> y(kTokens * kHidden);
  const hb_moe_call good = layer.call(routing_.view(), x_.data(), y.data());
  const auto refused_run = [&](const char* words, const auto& spoil) {
    hb_moe_call call = good;
    spoil(call);
    expect_refused(hb_moe_run(layer.layer, &call), HB_ERROR_INPUT, words);
  };
  refused_run("max_num_tokens", [](hb_moe_call& c) { c.num_tokens = kTokens + 1; });
  refused_run("num_tokens", [](hb_moe_call& c) { c.num_tokens = -1; });
  refused_run("topk_ids: NULL", [](hb_moe_call& c) { c.topk_ids = nullptr; });
  refused_run("workspace_bytes", [](hb_moe_call& c) { c.workspace_bytes -= 1; });
  refused_run("stride", [](hb_moe_call& c) { c.output_stride = kHidden - 1; });
  refused_run("hidden_states_dtype", [](hb_moe_call& c) { c.hidden_states_dtype = 0; });
  refused_run("struct_bytes", [](hb_moe_call& c) { c.struct_bytes = 0; });
  ok(hb_moe_run(layer.layer, &good));
}

// A caller that was compiled with fewer fields: nothing is written behind its struct.
TEST(CApiOptions, InitWritesNoMoreThanTheCallerHas) {
  hb_moe_options options;
  std::memset(static_cast<void*>(&options), 0x5A, sizeof options);
  constexpr size_t kShorter = offsetof(hb_moe_options, swiglu_alpha);
  hb_moe_options_init(&options, kShorter);
  EXPECT_EQ(options.struct_bytes, kShorter);
  EXPECT_EQ(options.situ_beta, 4.0f);
  const auto* bytes = reinterpret_cast<const unsigned char*>(&options);
  EXPECT_EQ(std::count(bytes + kShorter, bytes + sizeof options, 0x5A),
            static_cast<int64_t>(sizeof options - kShorter));
}

// A caller that was compiled with fewer fields: those that it lacks have their defaults.
TEST_F(CApi, ShorterStructsKeepDefaults) {
  hb_moe_options options = options_for("nvfp4", "swiglu_clamped");
  options.struct_bytes = offsetof(hb_moe_options, swiglu_alpha);
  options.swiglu_alpha = std::nanf("");  // not read
  hb_device* device = nullptr;
  hb_moe_plan* plan = nullptr;
  ok(hb_device_open("cpu", 1, &device));
  ok(hb_moe_plan_create(device, &options, &plan));
  hb_moe_plan_info info{};
  info.struct_bytes = offsetof(hb_moe_plan_info, workspace_bytes);
  ok(hb_moe_plan_get_info(plan, &info));
  EXPECT_GT(info.packed_bytes, 0u);
  EXPECT_EQ(info.workspace_bytes, 0u);  // not written
  options.struct_bytes = sizeof options;
  hb_moe_plan* none = nullptr;
  EXPECT_EQ(hb_moe_plan_create(device, &options, &none), HB_ERROR_INPUT);
  hb_moe_plan_destroy(plan);
  hb_device_close(device);
}

TEST_F(CApi, NoTokensAndNullHandles) {
  Layer layer(options_for("nvfp4", "situ"));
  ok(layer.pack(experts(WeightFormat::kNvfp4, ActivationKind::kSitu)));
  layer.bind();
  hb_moe_call call{};
  call.struct_bytes = sizeof call;
  call.hidden_states_dtype = call.output_dtype = HB_BF16;
  ok(hb_moe_run(layer.layer, &call));
  hb_device_close(nullptr);
  hb_moe_plan_destroy(nullptr);
  hb_moe_layer_destroy(nullptr);
  hb_moe_options_init(nullptr, sizeof(hb_moe_options));
  EXPECT_EQ(hb_moe_run(nullptr, &call), HB_ERROR_INPUT);
  EXPECT_EQ(hb_abi_version(), static_cast<uint32_t>(HB_ABI_VERSION));
}

// Layers with workspaces of their own, from several threads, on one device; each thread its errors.
TEST_F(CApi, ThreadsShareADevice) {
  const StoredExperts stored = experts(WeightFormat::kNvfp4, ActivationKind::kSitu);
  Layer first(options_for("nvfp4", "situ"));
  ok(first.pack(stored));
  first.bind();
  const std::vector<float> expected = run(first);
  std::vector<std::thread> threads;
  std::array<bool, 3> good{};
  for (size_t i = 0; i < good.size(); ++i)
    threads.emplace_back([&, i] {
      const Buffer workspace =
          open_device("cpu", {.threads = 1})->allocate(first.info.workspace_bytes);
      hb_moe_layer* layer = nullptr;
      hb_moe_layer_create(first.plan, first.packed.data(), first.packed.bytes(), &layer);
      good[i] = true;
      for (int repeat = 0; repeat < 20; ++repeat) {
        std::vector<float> y(kTokens * kHidden);
        hb_moe_call call = first.call(routing_.view(), x_.data(), y.data());
        call.workspace = workspace.data();
        good[i] = good[i] && hb_moe_run(layer, &call) == HB_OK && y == expected;
        call.num_tokens = 100 + static_cast<int>(i);
        good[i] =
            good[i] && hb_moe_run(layer, &call) == HB_ERROR_INPUT &&
            std::string(hb_last_error()).find(std::to_string(call.num_tokens)) != std::string::npos;
      }
      hb_moe_layer_destroy(layer);
    });
  for (std::thread& thread : threads) thread.join();
  for (const bool each : good) EXPECT_TRUE(each);
}

}  // namespace
}  // namespace halfbyte

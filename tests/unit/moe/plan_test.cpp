#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "halfbyte/error.h"
#include "halfbyte/moe.h"
#include "moe/cost.h"
#include "support/moe.h"

namespace halfbyte {
namespace {

MoeShape small_shape() {
  MoeShape shape;
  shape.num_experts = 3;
  shape.top_k = 2;
  shape.hidden = 64;
  shape.intermediate = 32;
  return shape;
}

// The message of the Error that `call` throws, checked for its kind; "" if it throws none.
std::string error_of(const std::function<void()>& call, ErrorKind kind = ErrorKind::kInput) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "";
}

std::string plan_error(const MoeShape& shape, std::string_view backend = "auto",
                       ErrorKind kind = ErrorKind::kInput) {
  CpuDevice device(SimdLevel::kScalar, {.threads = 1}, {});
  return error_of([&] { plan_moe(shape, {.max_tokens = 4}, device, backend); }, kind);
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST(Activations, EveryNameParsesBack) {
  for (ActivationKind kind :
       {ActivationKind::kSwiglu, ActivationKind::kSwigluClamped, ActivationKind::kGegluTanh,
        ActivationKind::kRelu2, ActivationKind::kSitu})
    EXPECT_EQ(parse_activation(name_of(kind)).kind, kind);
  EXPECT_EQ(parse_activation("silu").kind, ActivationKind::kSwiglu);
  EXPECT_EQ(parse_activation("swiglu_oai").kind, ActivationKind::kSwigluClamped);
  EXPECT_TRUE(has(error_of([] { parse_activation("gelu"); }), "geglu_tanh"));
}

// moe-faults B43: no sentinel values.
TEST(Activations, RefusesParametersThatAreNotFiniteAndPositive) {
  for (float bad : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(),
                    std::numeric_limits<float>::infinity()}) {
    MoeShape shape = small_shape();
    shape.activation = {.kind = ActivationKind::kSitu, .beta = bad};
    EXPECT_TRUE(has(plan_error(shape), "activation beta")) << bad;
    shape.activation = {.kind = ActivationKind::kSitu, .linear_beta = bad};
    EXPECT_TRUE(has(plan_error(shape), "activation linear_beta")) << bad;
    shape.activation = {.kind = ActivationKind::kSwigluClamped, .limit = bad};
    EXPECT_TRUE(has(plan_error(shape), "activation limit")) << bad;
  }
  MoeShape shape = small_shape();
  shape.activation = {.kind = ActivationKind::kSitu, .linear_beta = std::nullopt};
  EXPECT_EQ(plan_error(shape), "");
}

TEST(Plan, RefusesShapesThatMeanNothing) {
  const auto with = [](auto change) {
    MoeShape shape = small_shape();
    change(shape);
    return plan_error(shape);
  };
  EXPECT_TRUE(has(with([](MoeShape& s) { s.num_experts = 0; }), "num_experts"));
  EXPECT_TRUE(has(with([](MoeShape& s) { s.top_k = 0; }), "top_k"));
  EXPECT_TRUE(has(with([](MoeShape& s) { s.hidden = -64; }), "hidden"));
  EXPECT_TRUE(has(with([](MoeShape& s) { s.hidden = 72; }), "multiple of 16"));
  EXPECT_TRUE(has(with([](MoeShape& s) { s.intermediate = 8; }), "multiple of 16"));
  EXPECT_TRUE(has(with([](MoeShape& s) {
                    s.intermediate = 48;
                    s.weights = WeightFormat::kMxfp4;
                  }),
                  "multiple of 32"));
}

TEST(Plan, RefusalSaysWhatWouldWork) {
  EXPECT_TRUE(has(plan_error(small_shape(), "tpu"), "expected auto"));
  MoeShape shape = small_shape();
  shape.weights = WeightFormat::kFp8Block;
  const std::string message = plan_error(shape, "auto", ErrorKind::kUnsupported);
  EXPECT_TRUE(has(message, "fp8")) << message;
  EXPECT_TRUE(has(message, "nvfp4")) << message;
}

TEST(Plan, BackendsOfAnotherDeviceAreRefusedWithTheOneThatWorks) {
  for (const auto& [name, means] : {std::pair{"dequant", "dequant "},
                                    {"hopper", "hopper "},
                                    {"marlin", "hopper "},
                                    {"flashinfer_cutedsl", "hopper "}}) {
    const std::string message = plan_error(small_shape(), name, ErrorKind::kUnsupported);
    EXPECT_TRUE(has(message, means)) << message;
    EXPECT_TRUE(has(message, "does not run on device cpu.scalar")) << message;
    EXPECT_TRUE(has(message, "backend cpu")) << message;
  }
}

TEST(Pack, NamesTheMatrixThatIsWrong) {
  std::mt19937 random(3);
  const MoeShape shape = small_shape();
  const auto expect_refused = [&](const std::function<void(testing_moe::StoredExperts&)>& spoil) {
    testing_moe::StoredExperts experts = testing_moe::random_experts(shape, random);
    experts.views[1].up.name = "experts.1.w3.weight";
    spoil(experts);
    for (const std::string& device : testing_moe::device_names()) {
      const std::string message =
          error_of([&] { testing_moe::Runner runner(device, shape, experts.views, 1); });
      EXPECT_EQ(message.rfind("experts.1.w3.weight: ", 0), 0u) << device << ": " << message;
    }
  };
  const auto scale_of = [&](testing_moe::StoredExperts& e) -> uint8_t& {
    return e.matrices[4].scales[5];  // expert 1: matrices 3 (gate), 4 (up), 5 (down)
  };
  expect_refused([&](auto& e) { scale_of(e) = 0x7F; });
  expect_refused([&](auto& e) { scale_of(e) = 0xFF; });
  expect_refused([&](auto& e) { scale_of(e) = 0x90; });
  // moe-faults B12: a global scale that is zero, negative or not finite.
  for (float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                    std::numeric_limits<float>::quiet_NaN()})
    expect_refused([&](auto& e) { e.views[1].up.global_scale = bad; });
  expect_refused([&](auto& e) { e.views[1].up.rows = 48; });
  expect_refused([&](auto& e) { e.views[1].up.format = WeightFormat::kMxfp4; });
}

// moe-faults B16: gate of a layer without one, and the other way round.
TEST(Pack, GateMustBeThereExactlyWhenTheActivationHasOne) {
  std::mt19937 random(3);
  const MoeShape gated = small_shape();
  MoeShape plain = small_shape();
  plain.activation.kind = ActivationKind::kRelu2;
  const testing_moe::StoredExperts with = testing_moe::random_experts(gated, random);
  const testing_moe::StoredExperts without = testing_moe::random_experts(plain, random);
  for (const std::string& device : testing_moe::device_names()) {
    EXPECT_NE(error_of([&] { testing_moe::Runner(device, gated, without.views, 1); }), "");
    EXPECT_NE(error_of([&] { testing_moe::Runner(device, plain, with.views, 1); }), "");
  }
}

TEST(Plan, GlobalExpertsAreAtLeastTheLocalOnes) {
  const MoeShape shape = small_shape();
  for (const std::string& name : testing_moe::device_names()) {
    const auto device = open_device(name);
    const auto plan = [&](int global) {
      plan_moe(shape, {.max_tokens = 4, .num_global_experts = global}, *device);
    };
    plan(0);
    plan(shape.num_experts);
    plan(100 * shape.num_experts);
    const std::string error = error_of([&] { plan(shape.num_experts - 1); });
    EXPECT_NE(error.find("num_global_experts"), std::string::npos) << error;
  }
}

TEST(Cost, CountsEachActiveExpertOnceAndEveryValidSlot) {
  const MoeShape shape = small_shape();
  const MoeLayout layout{"test", 1000, 3000};
  const int32_t ids[] = {0, 2, 2, -1, 0, 7, 1, 1};
  const float weights[] = {1, 1, 1, 1, 1, 1, 0, 0};  // the last token asks for nothing
  const Routing routing{ids, weights, 4};
  const MoeCost cost = moe_cost(shape, layout, routing, DType::kBf16, DType::kF32);
  EXPECT_EQ(cost.active_experts, 2);
  EXPECT_EQ(cost.active_slots, 4);
  EXPECT_EQ(cost.weight_bytes, 2000);
  EXPECT_EQ(cost.bytes, 2000 + 4 * 64 * 6);
  EXPECT_EQ(cost.flops, 4.0 * 3 * 2 * 64 * 32);
}

}  // namespace
}  // namespace halfbyte

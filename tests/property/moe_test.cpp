// Properties of the MoE operation over random shapes, formats, activations and routings.
#include "support/moe.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace halfbyte {
namespace {

using testing_moe::bf16_view;
using testing_moe::relative_l2;
using testing_moe::Runner;
using testing_moe::StoredExperts;
using testing_moe::StoredRouting;

// A random layer and call.
struct Problem {
  MoeShape shape;
  StoredExperts experts;
  StoredRouting routing;
  std::vector<uint16_t> x;
  int tokens() const { return routing.num_tokens; }
  TensorView view() { return bf16_view(x, tokens(), shape.hidden); }
};

Problem random_problem(int max_tokens) {
  Problem p;
  p.shape.num_experts = *rc::gen::inRange(1, 9);
  p.shape.top_k = *rc::gen::inRange(1, p.shape.num_experts + 1);
  p.shape.hidden = 32 * *rc::gen::inRange(1, 9);
  p.shape.intermediate = 32 * *rc::gen::inRange(1, 7);
  p.shape.weights =
      *rc::gen::element(WeightFormat::kNvfp4, WeightFormat::kMxfp4, WeightFormat::kBf16);
  p.shape.activation.kind =
      *rc::gen::element(ActivationKind::kSwiglu, ActivationKind::kSwigluClamped,
                        ActivationKind::kGegluTanh, ActivationKind::kRelu2, ActivationKind::kSitu);
  const int tokens = *rc::gen::inRange(1, max_tokens + 1);
  std::mt19937 random(*rc::gen::arbitrary<uint32_t>());
  p.experts = testing_moe::random_experts(p.shape, random);
  p.routing = testing_moe::random_routing(p.shape, tokens, random);
  for (int32_t& id : p.routing.ids)
    if (random() % 8 == 0) id = -1;
  p.x = testing_moe::random_bf16(static_cast<size_t>(tokens * p.shape.hidden), random);
  return p;
}

std::vector<std::string> cpu_devices() {
  std::vector<std::string> names = testing_moe::device_names();
  names.erase(names.begin());  // ref
  return names;
}

// h may land on the neighbouring BF16 value where fp32 and double sums straddle a boundary: the
// same tolerance as against the golden cases (docs/numerics.md, "The MoE operation").
RC_GTEST_PROP(MoeProperty, DevicesAgreeWithRef, ()) {
  Problem p = random_problem(40);
  Runner reference("ref", p.shape, p.experts.views, p.tokens());
  const std::vector<float> expected = reference.run(p.routing.view(), p.view());
  for (const std::string& device : cpu_devices()) {
    Runner runner(device, p.shape, p.experts.views, p.tokens());
    RC_ASSERT(relative_l2(runner.run(p.routing.view(), p.view()), expected) < 4e-4);
  }
}

// F32 activations are not rounded in between: fp32 sums only.
RC_GTEST_PROP(MoeProperty, F32ActivationsAgreeWithRefClosely, ()) {
  Problem p = random_problem(20);
  std::vector<float> x(p.x.size());
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(static_cast<int16_t>(p.x[i])) * 0x1.234567p-14f;
  const TensorView view = TensorView::of(x.data(), DType::kF32, p.tokens(), p.shape.hidden);
  Runner reference("ref", p.shape, p.experts.views, p.tokens());
  const std::vector<float> expected = reference.run(p.routing.view(), view);
  for (const std::string& device : cpu_devices()) {
    Runner runner(device, p.shape, p.experts.views, p.tokens());
    RC_ASSERT(relative_l2(runner.run(p.routing.view(), view), expected) < 5e-6);
  }
}

RC_GTEST_PROP(MoeProperty, ThreadsDoNotChangeABit, ()) {
  Problem p = random_problem(40);
  for (const std::string& device : cpu_devices()) {
    Runner one(device, p.shape, p.experts.views, p.tokens(), 1);
    const std::vector<float> expected = one.run(p.routing.view(), p.view());
    for (int threads : {2, 3, 4}) {
      Runner runner(device, p.shape, p.experts.views, p.tokens(), threads);
      RC_ASSERT(runner.run(p.routing.view(), p.view()) == expected);
    }
  }
}

RC_GTEST_PROP(MoeProperty, CompanyInTheBatchDoesNotChangeABit, ()) {
  Problem p = random_problem(60);
  for (const std::string& device : cpu_devices()) {
    Runner runner(device, p.shape, p.experts.views, p.tokens());
    const std::vector<float> all = runner.run(p.routing.view(), p.view());
    const int t = *rc::gen::inRange(0, p.tokens());
    const Routing alone{p.routing.ids.data() + t * p.shape.top_k,
                        p.routing.weights.data() + t * p.shape.top_k, 1};
    const std::vector<float> y = runner.run(alone, p.view().row_slice(t, 1));
    RC_ASSERT(std::equal(y.begin(), y.end(), all.begin() + t * p.shape.hidden));
  }
}

RC_GTEST_PROP(MoeProperty, PermutedTokensPermuteOutputs, ()) {
  Problem p = random_problem(30);
  std::vector<int> order(static_cast<size_t>(p.tokens()));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(*rc::gen::arbitrary<uint32_t>());
  std::shuffle(order.begin(), order.end(), random);
  StoredRouting routing;
  routing.num_tokens = p.tokens();
  std::vector<uint16_t> x;
  const auto append = [](auto& to, const auto& from, int begin, int count) {
    to.insert(to.end(), from.begin() + begin, from.begin() + begin + count);
  };
  for (int t : order) {
    append(routing.ids, p.routing.ids, t * p.shape.top_k, p.shape.top_k);
    append(routing.weights, p.routing.weights, t * p.shape.top_k, p.shape.top_k);
    append(x, p.x, t * p.shape.hidden, p.shape.hidden);
  }
  for (const std::string& device : testing_moe::device_names()) {
    Runner runner(device, p.shape, p.experts.views, p.tokens());
    const std::vector<float> expected = runner.run(p.routing.view(), p.view());
    const std::vector<float> y =
        runner.run(routing.view(), bf16_view(x, p.tokens(), p.shape.hidden));
    for (size_t i = 0; i < order.size(); ++i)
      RC_ASSERT(std::equal(y.begin() + static_cast<int64_t>(i) * p.shape.hidden,
                           y.begin() + static_cast<int64_t>(i + 1) * p.shape.hidden,
                           expected.begin() + order[i] * p.shape.hidden));
  }
}

}  // namespace
}  // namespace halfbyte

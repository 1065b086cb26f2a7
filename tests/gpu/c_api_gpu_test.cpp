// The C ABI on a GPU: both ways of packing give the bytes of moe.h, a run on the caller's stream
// its bits, also out of a CUDA graph; the current GPU stays what it was.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/graph.h"
#include "formats/decode.h"
#include "halfbyte/device.h"
#include "halfbyte/halfbyte_c.h"
#include "support/moe.h"

namespace halfbyte {
namespace {

constexpr int kExperts = 6, kTopK = 2, kHidden = 256, kInner = 192, kTokens = 20;

void ok(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }
void ok(hb_status status) { ASSERT_EQ(status, HB_OK) << hb_last_error(); }

class CApiGpu : public ::testing::TestWithParam<WeightFormat> {
 protected:
  void SetUp() override {
    if (const std::string reason = testing_moe::why_not_here("cuda.hopper"); !reason.empty())
      GTEST_SKIP() << reason;
    shape_.num_experts = kExperts;
    shape_.top_k = kTopK;
    shape_.hidden = kHidden;
    shape_.intermediate = kInner;
    shape_.weights = GetParam();
    shape_.activation.kind = ActivationKind::kSitu;
    experts_ = testing_moe::random_experts(shape_, random_);
    memory_ = open_device("cuda:0");
    hb_moe_options options;
    hb_moe_options_init(&options, sizeof options);
    options.num_experts = kExperts;
    options.top_k = kTopK;
    options.hidden_size = kHidden;
    options.intermediate_size = kInner;
    options.max_num_tokens = kTokens;
    options.weight_format = name_of(GetParam());
    options.activation = "situ";
    ok(hb_device_open("cuda:0", 0, &device_));
    ok(hb_moe_plan_create(device_, &options, &plan_));
    info_.struct_bytes = sizeof info_;
    ok(hb_moe_plan_get_info(plan_, &info_));
    ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  void TearDown() override {
    hb_moe_plan_destroy(plan_);
    hb_device_close(device_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  // The checkpoint's tensors at the offsets of the info, expert by expert.
  Buffer staged() {
    std::vector<std::byte> host(info_.packed_bytes);
    for (size_t e = 0; e < kExperts; ++e) {
      std::byte* const here = host.data() + e * info_.expert_bytes;
      const ExpertWeights& expert = experts_.views[e];
      const auto put = [&](const MatrixView& matrix, uint64_t codes, uint64_t scales,
                           size_t index) {
        std::memcpy(here + codes, matrix.values, value_bytes(matrix));
        std::memcpy(here + scales, matrix.scales, scale_bytes(matrix));
        std::memcpy(here + info_.global_scales + 4 * index, &matrix.global_scale, 4);
      };
      put(expert.gate, info_.gate_codes, info_.gate_scales, 0);
      put(expert.up, info_.up_codes, info_.up_scales, 1);
      put(expert.down, info_.down_codes, info_.down_scales, 2);
    }
    Buffer buffer = memory_->allocate(host.size());
    memory_->copy_to_device(buffer.data(), host.data(), host.size());
    return buffer;
  }
  std::vector<std::byte> bytes_of(const void* data, size_t count) {
    std::vector<std::byte> host(count);
    memory_->copy_to_host(host.data(), data, count);
    return host;
  }

  MoeShape shape_;
  std::mt19937 random_{3};
  testing_moe::StoredExperts experts_;
  std::unique_ptr<Device> memory_;
  hb_device* device_ = nullptr;
  hb_moe_plan* plan_ = nullptr;
  hb_moe_plan_info info_{};
  cudaStream_t stream_ = nullptr;
};

TEST_P(CApiGpu, PacksAndRunsAsMoeHDoes) {
  testing_moe::Runner runner("cuda.hopper", shape_, experts_.views, kTokens);
  const std::vector<std::byte> expected = bytes_of(runner.packed(), info_.packed_bytes);
  ASSERT_EQ(info_.packs_in_place, 1);

  // Out of place, from tensors that lie as staged ones do.
  Buffer in_place = staged();
  const Buffer packed = memory_->allocate(info_.packed_bytes);
  const auto* from = static_cast<const std::byte*>(in_place.data());
  const auto stride = static_cast<int64_t>(info_.expert_bytes);
  const int64_t group = GetParam() == WeightFormat::kMxfp4 ? 32 : 16;
  const auto matrices = [&](uint64_t codes, uint64_t scales, int64_t cols, size_t index) {
    const bool has_global = GetParam() == WeightFormat::kNvfp4;
    return hb_moe_matrices{
        {from + codes, stride, cols / 2},
        {from + scales, stride, cols / group},
        has_global ? reinterpret_cast<const float*>(from + info_.global_scales) + index : nullptr,
        stride / 4};
  };
  const hb_moe_weights weights = {sizeof weights,
                                  matrices(info_.gate_codes, info_.gate_scales, kHidden, 0),
                                  matrices(info_.up_codes, info_.up_scales, kHidden, 1),
                                  matrices(info_.down_codes, info_.down_scales, kInner, 2)};
  ok(hb_moe_pack(plan_, &weights, 0, kExperts, packed.data(), info_.packed_bytes, stream_));
  EXPECT_EQ(bytes_of(packed.data(), info_.packed_bytes), expected);

  // In place, two experts at a time.
  const Buffer scratch = memory_->allocate(2 * info_.expert_bytes);
  ok(hb_moe_pack_in_place(plan_, in_place.data(), info_.packed_bytes, scratch.data(),
                          scratch.bytes(), stream_));
  EXPECT_EQ(bytes_of(in_place.data(), info_.packed_bytes), expected);

  hb_moe_layer* layer = nullptr;
  ok(hb_moe_layer_create(plan_, in_place.data(), info_.packed_bytes, &layer));
  const auto routing = testing_moe::random_routing(shape_, kTokens, random_);
  auto x = testing_moe::random_bf16(kTokens * kHidden, random_);
  const std::vector<float> y =
      runner.run(routing.view(), testing_moe::bf16_view(x, kTokens, kHidden));

  const auto upload = [&](const void* host, size_t bytes) {
    Buffer buffer = memory_->allocate(bytes);
    memory_->copy_to_device(buffer.data(), host, bytes);
    return buffer;
  };
  const Buffer x_there = upload(x.data(), x.size() * 2),
               ids = upload(routing.ids.data(), routing.ids.size() * 4),
               factors = upload(routing.weights.data(), routing.weights.size() * 4),
               out = memory_->allocate(y.size() * 4),
               workspace = memory_->allocate(info_.workspace_bytes);
  const hb_moe_call call = {sizeof call,
                            kTokens,
                            static_cast<const int32_t*>(ids.data()),
                            static_cast<const float*>(factors.data()),
                            x_there.data(),
                            out.data(),
                            HB_BF16,
                            HB_F32,
                            kHidden,
                            kHidden,
                            workspace.data(),
                            workspace.bytes(),
                            stream_};
  const auto result = [&] {
    ok(cudaStreamSynchronize(stream_));
    std::vector<float> values(y.size());
    memory_->copy_to_host(values.data(), out.data(), values.size() * 4);
    return values;
  };
  ok(hb_moe_run(layer, &call));
  EXPECT_EQ(result(), y);
  ok(cudaMemset(out.data(), 0xFF, out.bytes()));
  const CudaGraph graph(stream_, [&] { ok(hb_moe_run(layer, &call)); });
  graph.launch(stream_);
  EXPECT_EQ(result(), y);
  hb_moe_layer_destroy(layer);
}

TEST_P(CApiGpu, RefusesAScaleThatIsNaN) {
  const size_t up_of_expert_1 = 3 * 1 + 1;
  experts_.matrices[up_of_expert_1].scales[5] = GetParam() == WeightFormat::kMxfp4 ? 0xFF : 0x7F;
  const Buffer in_place = staged(), scratch = memory_->allocate(info_.expert_bytes);
  EXPECT_EQ(hb_moe_pack_in_place(plan_, in_place.data(), info_.packed_bytes, scratch.data(),
                                 scratch.bytes(), stream_),
            HB_ERROR_INPUT);
  EXPECT_NE(std::string(hb_last_error()).find("expert 1: up: scale [0, 5] is byte 0x"),
            std::string::npos)
      << hb_last_error();
}

TEST_P(CApiGpu, LeavesTheCurrentGpu) {
  int count = 0, now = -1;
  ok(cudaGetDeviceCount(&count));
  ok(cudaSetDevice(count - 1));
  const Buffer in_place = staged(), scratch = memory_->allocate(info_.expert_bytes);
  ok(cudaSetDevice(count - 1));
  ok(hb_moe_pack_in_place(plan_, in_place.data(), info_.packed_bytes, scratch.data(),
                          scratch.bytes(), stream_));
  ok(cudaGetDevice(&now));
  EXPECT_EQ(now, count - 1);
}

INSTANTIATE_TEST_SUITE_P(Formats, CApiGpu,
                         ::testing::Values(WeightFormat::kNvfp4, WeightFormat::kMxfp4),
                         [](const auto& each) { return std::string(name_of(each.param)); });

}  // namespace
}  // namespace halfbyte

// The packer on the GPU against the one on the host: every byte is the same.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "formats/decode.h"
#include "halfbyte/error.h"
#include "moe/cuda/layout.h"
#include "moe/cuda/pack.h"
#include "moe/cuda/pack_device.h"
#include "support/hopper_layout.h"

namespace halfbyte::hopper {
namespace {

using Bytes = std::vector<uint8_t>;

void ok(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

// Device memory, full of a byte.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes, int value = 0xFF) : bytes_(bytes) {
    ok(cudaMalloc(&data_, bytes));
    ok(cudaMemset(data_, value, bytes));
  }
  explicit DeviceBytes(const Bytes& host) : DeviceBytes(host.size()) { put(0, host); }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  void put(size_t offset, const Bytes& host) {
    ok(cudaMemcpy(data() + offset, host.data(), host.size(), cudaMemcpyHostToDevice));
  }
  Bytes get(size_t offset, size_t count) const {
    Bytes host(count);
    ok(cudaMemcpy(host.data(), data() + offset, count, cudaMemcpyDeviceToHost));
    return host;
  }
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

Bytes bytes_of(const float* values, size_t count) {
  Bytes bytes(count * sizeof(float));
  std::memcpy(bytes.data(), values, bytes.size());
  return bytes;
}

struct Case {
  const char* name;
  WeightFormat format;
  ActivationKind activation;
  int hidden, intermediate;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

MoeShape shape_of(const Case& c, int num_experts) {
  MoeShape shape;
  shape.num_experts = num_experts;
  shape.top_k = 1;
  shape.hidden = c.hidden;
  shape.intermediate = c.intermediate;
  shape.activation.kind = c.activation;
  shape.weights = c.format;
  return shape;
}

Bytes packed_on_host(const MoeShape& shape, const std::vector<ExpertWeights>& experts) {
  const size_t expert_bytes = expert_layout(shape).bytes;
  Bytes packed(expert_bytes * experts.size());
  for (size_t e = 0; e < experts.size(); ++e)
    pack_expert_host(
        shape, experts[e],
        std::as_writable_bytes(std::span(packed)).subspan(e * expert_bytes, expert_bytes));
  return packed;
}

// Tensors of all experts in device memory: gate and up in one, rows as `interleaved` says, and
// down.
class Tensors {
 public:
  Tensors(const MoeShape& shape, const std::vector<ExpertWeights>& experts, bool interleaved)
      : gated_(shape.activation.gated()), interleaved_(interleaved && gated_) {
    for (const ExpertWeights& expert : experts) {
      append(expert, &MatrixView::values, shape.hidden / 2, up_codes_, down_codes_);
      const int64_t group = shape.weights == WeightFormat::kMxfp4 ? 32 : 16;
      append(expert, &MatrixView::scales, shape.hidden / group, up_scales_, down_scales_);
      const float globals[3] = {expert.gate.global_scale, expert.up.global_scale,
                                expert.down.global_scale};
      const Bytes bytes = bytes_of(globals, 3);
      globals_.insert(globals_.end(), bytes.begin(), bytes.end());
    }
    device_.reserve(5);
    for (const Bytes* bytes : {&up_codes_, &up_scales_, &down_codes_, &down_scales_, &globals_})
      device_.push_back(std::make_unique<DeviceBytes>(*bytes));
    const int64_t num_experts = shape.num_experts;
    const auto side = [&](size_t codes, int64_t rows, int64_t row_step, int64_t offset,
                          int global) {
      const auto tensor = [&](const DeviceBytes& bytes) {
        const int64_t expert = static_cast<int64_t>(bytes.bytes()) / num_experts;
        const int64_t row = expert / rows;
        return StridedTensor{bytes.data() + offset * row, expert, row * row_step};
      };
      return StridedMatrices{tensor(*device_[codes]), tensor(*device_[codes + 1]),
                             reinterpret_cast<const float*>(device_[4]->data()) + global, 3};
    };
    const int F = shape.intermediate;
    const int64_t step = interleaved_ ? 2 : 1;
    if (gated_) view_.gate = side(0, 2 * F, step, 0, 0);
    view_.up = side(0, gated_ ? 2 * F : F, step, !gated_ ? 0 : interleaved_ ? 1 : F, 1);
    view_.down = side(2, shape.hidden, 1, 0, 2);
  }
  const StridedExperts& view() const { return view_; }
  DeviceBytes& up_codes() { return *device_[0]; }
  DeviceBytes& up_scales() { return *device_[1]; }

 private:
  void append(const ExpertWeights& expert, const void* MatrixView::*part, int64_t row_bytes,
              Bytes& up, Bytes& down) const {
    const auto* gate_rows = static_cast<const uint8_t*>(expert.gate.*part);
    const auto* up_rows = static_cast<const uint8_t*>(expert.up.*part);
    const int64_t rows = expert.up.rows;
    if (!gated_) {
      up.insert(up.end(), up_rows, up_rows + rows * row_bytes);
    } else if (!interleaved_) {
      up.insert(up.end(), gate_rows, gate_rows + rows * row_bytes);
      up.insert(up.end(), up_rows, up_rows + rows * row_bytes);
    } else {
      for (int64_t r = 0; r < rows; ++r)
        for (const uint8_t* from : {gate_rows, up_rows})
          up.insert(up.end(), from + r * row_bytes, from + (r + 1) * row_bytes);
    }
    const auto* down_bytes = static_cast<const uint8_t*>(expert.down.*part);
    const size_t count =
        part == &MatrixView::values ? value_bytes(expert.down) : scale_bytes(expert.down);
    down.insert(down.end(), down_bytes, down_bytes + count);
  }

  bool gated_, interleaved_;
  Bytes up_codes_, up_scales_, down_codes_, down_scales_, globals_;
  std::vector<std::unique_ptr<DeviceBytes>> device_;
  StridedExperts view_;
};

class HopperPackGpu : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
    bad_ = std::make_unique<DeviceBytes>(sizeof(BadScales), 0);
  }
  BadScales* bad() const { return reinterpret_cast<BadScales*>(bad_->data()); }
  BadScales found() const {
    BadScales found;
    std::memcpy(&found, bad_->get(0, sizeof found).data(), sizeof found);
    return found;
  }

  std::mt19937 random_{11};
  std::unique_ptr<DeviceBytes> bad_;
};

constexpr size_t kGuard = 256;  // bytes behind the packed ones, which stay as they were

void expect_packed(const DeviceBytes& packed, const Bytes& expected) {
  const Bytes got = packed.get(0, packed.bytes());
  ASSERT_EQ(got.size(), expected.size() + kGuard);
  size_t wrong = 0, first = 0;
  for (size_t i = expected.size(); i-- > 0;)
    if (got[i] != expected[i]) ++wrong, first = i;
  EXPECT_EQ(wrong, 0u) << "of " << expected.size() << ", the first at " << first;
  for (size_t i = expected.size(); i < got.size(); ++i) ASSERT_EQ(got[i], 0xFF) << i;
}

TEST_P(HopperPackGpu, OutOfPlaceGivesTheBytesOfTheHost) {
  const MoeShape shape = shape_of(GetParam(), 3);
  const auto experts = testing_hopper::random_experts(shape, random_);
  const Bytes expected = packed_on_host(shape, experts.views);
  for (bool interleaved : {false, true}) {
    Tensors tensors(shape, experts.views, interleaved);
    DeviceBytes packed(expected.size() + kGuard);
    ok(pack_experts_device(shape, tensors.view(), packed.data(), bad(), nullptr));
    ok(cudaDeviceSynchronize());
    expect_packed(packed, expected);
    EXPECT_EQ(found().count, 0u);
  }
}

TEST_P(HopperPackGpu, InPlaceGivesTheBytesOfTheHost) {
  const MoeShape shape = shape_of(GetParam(), 3);
  const auto experts = testing_hopper::random_experts(shape, random_);
  const Bytes expected = packed_on_host(shape, experts.views);
  const ExpertLayout layout = expert_layout(shape);
  const StagedExpert staged = staged_expert(shape);
  for (size_t at_once : {1, 2, 5}) {
    DeviceBytes packed(expected.size() + kGuard);
    for (size_t e = 0; e < experts.views.size(); ++e) {
      const auto put = [&](const MatrixView& matrix, size_t codes, size_t scales, size_t factor) {
        if (matrix.empty()) return;
        const auto* values = static_cast<const uint8_t*>(matrix.values);
        const auto* scale = static_cast<const uint8_t*>(matrix.scales);
        const size_t at = e * layout.bytes;
        packed.put(at + codes, Bytes(values, values + value_bytes(matrix)));
        packed.put(at + scales, Bytes(scale, scale + scale_bytes(matrix)));
        packed.put(at + layout.factor_offset + 4 * factor, bytes_of(&matrix.global_scale, 1));
      };
      put(experts.views[e].gate, staged.gate_codes, staged.gate_scales, 0);
      put(experts.views[e].up, staged.up_codes, staged.up_scales, 1);
      put(experts.views[e].down, staged.down_codes, staged.down_scales, 2);
    }
    DeviceBytes scratch(at_once * layout.bytes);
    ok(pack_experts_in_place(shape, packed.data(), scratch.data(), scratch.bytes(), bad(),
                             nullptr));
    ok(cudaDeviceSynchronize());
    expect_packed(packed, expected);
    EXPECT_EQ(found().count, 0u);
  }
}

// Teeth: one other nibble is seen, and scales that are NaN or negative are counted.
TEST_P(HopperPackGpu, OneWrongNibbleIsSeenAndBadScalesAreCounted) {
  const MoeShape shape = shape_of(GetParam(), 2);
  auto experts = testing_hopper::random_experts(shape, random_);
  for (auto& matrix : experts.matrices)
    for (uint8_t& scale : matrix.scales)
      if (scale == 0) scale = 1;
  const Bytes expected = packed_on_host(shape, experts.views);
  Tensors tensors(shape, experts.views, false);
  Bytes byte = tensors.up_codes().get(0, 1);
  byte[0] ^= 0x10;
  tensors.up_codes().put(0, byte);
  DeviceBytes packed(expected.size());
  ok(pack_experts_device(shape, tensors.view(), packed.data(), bad(), nullptr));
  EXPECT_NE(packed.get(0, expected.size()), expected);

  const bool mxfp4 = shape.weights == WeightFormat::kMxfp4;
  const uint8_t nan = mxfp4 ? 0xFF : 0x7F, negative = mxfp4 ? 0xFF : 0x81;
  const size_t scales = tensors.up_scales().bytes();
  tensors.up_scales().put(scales - 1, {nan});
  ok(pack_experts_device(shape, tensors.view(), packed.data(), bad(), nullptr, 5));
  ok(cudaDeviceSynchronize());
  EXPECT_EQ(found().count, 1u);
  const int group = mxfp4 ? 32 : 16;
  EXPECT_EQ(found().where(), "expert 6: up");
  EXPECT_EQ(found().what(), fmt::format("scale [{}, {}] is byte 0x{:02X}", shape.intermediate - 1,
                                        shape.hidden / group - 1, nan));

  tensors.up_scales().put(0, {negative});
  ok(pack_experts_device(shape, tensors.view(), packed.data(), bad(), nullptr, 5));
  ok(cudaDeviceSynchronize());
  EXPECT_EQ(found().count, 1u + 2u);
  EXPECT_EQ(found().where(), shape.activation.gated() ? "expert 5: gate" : "expert 5: up");
  EXPECT_EQ(found().what(), fmt::format("scale [0, 0] is byte 0x{:02X}", negative));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, HopperPackGpu,
    testing::Values(
        Case{"nvfp4_k3_tp8", WeightFormat::kNvfp4, ActivationKind::kSitu, 3584, 384},
        Case{"nvfp4_rows_not_64", WeightFormat::kNvfp4, ActivationKind::kSwiglu, 144, 48},
        Case{"nvfp4_narrow", WeightFormat::kNvfp4, ActivationKind::kSwiglu, 1280, 16},
        Case{"nvfp4_tails", WeightFormat::kNvfp4, ActivationKind::kSwigluClamped, 2000, 208},
        Case{"nvfp4_not_gated", WeightFormat::kNvfp4, ActivationKind::kRelu2, 272, 80},
        Case{"mxfp4_gpt_oss", WeightFormat::kMxfp4, ActivationKind::kSwigluClamped, 2880, 320},
        Case{"mxfp4_even", WeightFormat::kMxfp4, ActivationKind::kSitu, 256, 128},
        Case{"mxfp4_not_gated", WeightFormat::kMxfp4, ActivationKind::kRelu2, 96, 32}),
    [](const auto& info) { return std::string(info.param.name); });

using HopperPackLayerGpu = HopperPackGpu;

TEST_P(HopperPackLayerGpu, RefusesAddressesThatAreNotAligned) {
  const MoeShape shape = shape_of(GetParam(), 1);
  const auto experts = testing_hopper::random_experts(shape, random_);
  const Tensors tensors(shape, experts.views, false);
  DeviceBytes packed(expert_layout(shape).bytes + 128);
  StridedExperts moved = tensors.view();
  moved.down.codes.data += 4;
  EXPECT_THROW(pack_experts_device(shape, moved, packed.data(), bad(), nullptr), Error);
  moved = tensors.view();
  moved.up.codes.row_stride += 4;
  EXPECT_THROW(pack_experts_device(shape, moved, packed.data(), bad(), nullptr), Error);
  EXPECT_THROW(pack_experts_device(shape, tensors.view(), packed.data() + 16, bad(), nullptr),
               Error);
  EXPECT_THROW(pack_experts_in_place(shape, packed.data(), packed.data(), 64, bad(), nullptr),
               Error);
}

// Prints the rate; the last expert tells whether the work was done.
TEST_P(HopperPackLayerGpu, RunsAtTheSpeedOfMemory) {
  constexpr int kExperts = 64, kRounds = 5;
  const MoeShape shape = shape_of(GetParam(), kExperts);
  const ExpertLayout layout = expert_layout(shape);
  const StagedExpert staged = staged_expert(shape);
  const size_t tail = (kExperts - 1) * layout.bytes;
  DeviceBytes stored(kExperts * layout.bytes, 0x3C), packed(kExperts * layout.bytes);
  const auto stride = static_cast<int64_t>(layout.bytes);
  const int64_t group = shape.weights == WeightFormat::kMxfp4 ? 32 : 16;
  const auto matrix = [&](size_t codes, size_t scales, int cols) {
    return StridedMatrices{{stored.data() + codes, stride, cols / 2},
                           {stored.data() + scales, stride, cols / group},
                           reinterpret_cast<const float*>(stored.data() + layout.factor_offset),
                           stride / 4};
  };
  const StridedExperts experts = {
      matrix(staged.gate_codes, staged.gate_scales, shape.hidden),
      matrix(staged.up_codes, staged.up_scales, shape.hidden),
      matrix(staged.down_codes, staged.down_scales, shape.intermediate)};
  const Bytes before = stored.get(tail, layout.bytes);
  // 0x3C is a scale of both formats, and as four bytes a global scale.
  const auto view = [&](size_t codes, size_t scales, int64_t rows, int64_t cols) {
    MatrixView m{shape.weights, rows, cols, before.data() + codes, before.data() + scales, 1, ""};
    std::memcpy(&m.global_scale, before.data() + layout.factor_offset, 4);
    return m;
  };
  const Bytes expected = packed_on_host(
      shape, {{view(staged.gate_codes, staged.gate_scales, shape.intermediate, shape.hidden),
               view(staged.up_codes, staged.up_scales, shape.intermediate, shape.hidden),
               view(staged.down_codes, staged.down_scales, shape.hidden, shape.intermediate)}});

  const auto time = [&](const char* how, const std::function<cudaError_t()>& pack) {
    cudaEvent_t begin, end;
    ok(cudaEventCreate(&begin));
    ok(cudaEventCreate(&end));
    ok(pack());
    ok(cudaEventRecord(begin, nullptr));
    for (int i = 0; i < kRounds; ++i) ok(pack());
    ok(cudaEventRecord(end, nullptr));
    ok(cudaEventSynchronize(end));
    float ms = 0;
    ok(cudaEventElapsedTime(&ms, begin, end));
    ok(cudaEventDestroy(begin));
    ok(cudaEventDestroy(end));
    const double bytes = static_cast<double>(staged.end + layout.bytes) * kExperts * kRounds;
    fmt::print("{}, {} experts ({}, {}) {}: {:.3f} ms, {:.0f} GB/s read and written\n",
               name_of(shape.weights), kExperts, shape.hidden, shape.intermediate, how,
               ms / kRounds, bytes / (ms * 1e6));
  };
  time("out of place",
       [&] { return pack_experts_device(shape, experts, packed.data(), bad(), nullptr); });
  EXPECT_TRUE(packed.get(tail, layout.bytes) == expected);
  // NOTE: in place packs what it packed before, as if it were staged: only the time has a meaning.
  for (size_t at_once : {1, 4}) {
    DeviceBytes scratch(at_once * layout.bytes);
    time(at_once == 1 ? "in place, scratch of 1" : "in place, scratch of 4", [&] {
      return pack_experts_in_place(shape, stored.data(), scratch.data(), scratch.bytes(), nullptr,
                                   nullptr);
    });
  }
  EXPECT_EQ(found().count, 0u);
}

INSTANTIATE_TEST_SUITE_P(Layers, HopperPackLayerGpu,
                         testing::Values(Case{"nvfp4_k3", WeightFormat::kNvfp4,
                                              ActivationKind::kSitu, 3584, 3072},
                                         Case{"mxfp4_gpt_oss", WeightFormat::kMxfp4,
                                              ActivationKind::kSwigluClamped, 2880, 2880}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace halfbyte::hopper

#include "support/moe.h"

#ifdef HALFBYTE_CUDA
#include <cuda_runtime_api.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <span>

#include "formats/bf16.h"
#include "formats/check_matrix.h"
#include "formats/decode.h"
#include "halfbyte/error.h"

namespace halfbyte::testing_moe {

std::vector<std::string> device_names() {
  std::vector<std::string> names = {"ref"};
  for (SimdLevel level : {SimdLevel::kScalar, SimdLevel::kAvx2, SimdLevel::kAvx512})
    if (machine_has(level)) names.push_back(std::string("cpu.") + name_of(level));
  return names;
}

std::string device_test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

double relative_l2(const std::vector<float>& value, const std::vector<float>& expected) {
  if (value.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double error = 0, norm = 0;
  for (size_t i = 0; i < value.size(); ++i) {
    const double difference = double{value[i]} - double{expected[i]};
    error += difference * difference;
    norm += double{expected[i]} * double{expected[i]};
  }
  if (std::isnan(error)) return std::numeric_limits<double>::infinity();
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}

namespace {

constexpr size_t kGuardBytes = 1024;
constexpr unsigned char kPoison = 0xFF;  // NaN in every format

bool is_gpu(const std::string& device) { return device.starts_with("cuda."); }

std::unique_ptr<Device> open(const std::string& device, int threads) {
  if (is_gpu(device)) return open_device("cuda:0");
  SimdLevel level = SimdLevel::kScalar;
  for (SimdLevel known : {SimdLevel::kAvx2, SimdLevel::kAvx512})
    if (device == std::string("cpu.") + name_of(known)) level = known;
  return std::make_unique<CpuDevice>(level, DeviceOptions{.threads = threads},
                                     CpuDevice::OpsFactory{});
}

std::string backend_of(const std::string& device) {
  if (is_gpu(device)) return device.substr(5);
  return device == "ref" ? "reference" : "cpu";
}

void fill(Device& device, void* to, unsigned char byte, size_t bytes) {
  if (bytes == 0) return;
#ifdef HALFBYTE_CUDA
  if (device.name().starts_with("cuda")) {
    device.wait();
    ASSERT_EQ(cudaMemset(to, byte, bytes), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return;
  }
#endif
  const std::vector<unsigned char> values(bytes, byte);
  device.copy_to_device(to, values.data(), bytes);
}

// Memory on `device` with at least these bytes, the same as before if that is large enough.
void upload(Device& device, Buffer& buffer, const void* from, size_t bytes) {
  if (bytes == 0) return;
  if (buffer.bytes() < bytes) buffer = device.allocate(bytes);
  device.copy_to_device(buffer.data(), from, bytes);
}

}  // namespace

std::vector<std::string> gpu_device_names() {
#ifdef HALFBYTE_CUDA
  return {"cuda.hopper", "cuda.dequant"};
#else
  return {};
#endif
}

std::string why_not_here(const std::string& device) {
  if (!is_gpu(device)) return "";
  for (const std::string& there : available_moe_devices())
    if (there == "cuda:0") return "";
  return "NO GPU HERE: this test of " + device + " checks nothing";
}

bool can_run(const std::string& device, const MoeShape& shape) {
  try {
    plan_moe(shape, {.max_tokens = 1}, *open(device, 1), backend_of(device));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    return false;
  }
  return true;
}

void* Runner::Guarded::data() const { return static_cast<std::byte*>(buffer.data()) + kGuardBytes; }

Runner::Guarded Runner::poisoned(size_t bytes) {
  Guarded memory{device_->allocate(bytes + 2 * kGuardBytes), bytes};
  fill(*device_, memory.buffer.data(), kPoison, memory.buffer.bytes());
  return memory;
}

void Runner::expect_guards(const Guarded& memory, const char* name) {
  std::vector<unsigned char> guard(kGuardBytes);
  const auto* begin = static_cast<const std::byte*>(memory.buffer.data());
  for (const std::byte* at : {begin, begin + kGuardBytes + memory.bytes}) {
    device_->copy_to_host(guard.data(), at, kGuardBytes);
    EXPECT_EQ(std::count(guard.begin(), guard.end(), kPoison), kGuardBytes)
        << "written " << (at == begin ? "before" : "behind") << " the " << name;
  }
}

Runner::Runner(const std::string& device, const MoeShape& shape,
               const std::vector<ExpertWeights>& experts, int max_tokens, int threads,
               int num_global_experts)
    : device_(open(device, threads)) {
  plan_ = plan_moe(
      shape, {.max_tokens = std::max(max_tokens, 1), .num_global_experts = num_global_experts},
      *device_, backend_of(device));
  packed_ = device_->allocate(plan_->layout().packed_bytes);
  repack(experts);
  layer_ = plan_->bind(packed_.data(), packed_.bytes());
  workspace_ = poisoned(plan_->workspace_bytes());
}

void Runner::repack(const std::vector<ExpertWeights>& experts) {
  // Poison: a byte that packing forgets would be a NaN scale.
  std::vector<std::byte> packed(packed_.bytes(), std::byte{kPoison});
  const size_t expert_bytes = plan_->layout().expert_bytes;
  std::map<std::array<const void*, 3>, size_t> done;  // experts that are one in memory
  for (size_t e = 0; e < static_cast<size_t>(plan_->shape().num_experts); ++e) {
    const ExpertWeights& expert = experts[e];
    const std::span<std::byte> to(packed.data() + e * expert_bytes, expert_bytes);
    const auto [found, is_new] =
        done.emplace(std::array{expert.gate.values, expert.up.values, expert.down.values}, e);
    if (is_new)
      plan_->pack_expert(expert, to);
    else
      std::memcpy(to.data(), packed.data() + found->second * expert_bytes, expert_bytes);
  }
  device_->copy_to_device(packed_.data(), packed.data(), packed.size());
}

std::vector<float> Runner::run(const Routing& routing, TensorView x, DType y_dtype) {
  prepare(routing, x, y_dtype);
  queue();
  return result();
}

void Runner::prepare(const Routing& routing, TensorView x, DType y_dtype) {
  const auto slots =
      static_cast<size_t>(routing.num_tokens) * static_cast<size_t>(plan_->shape().top_k);
  upload(*device_, ids_, routing.topk_ids, slots * sizeof(int32_t));
  upload(*device_, weights_, routing.topk_weights, slots * sizeof(float));
  routing_ = {static_cast<const int32_t*>(ids_.data()), static_cast<const float*>(weights_.data()),
              routing.num_tokens};
  const auto elements = static_cast<size_t>(x.rows * x.cols);
  upload(*device_, x_, x.data, elements * static_cast<size_t>(dtype_bytes(x.dtype)));
  x_view_ = TensorView::of(x_.data(), x.dtype, x.rows, x.cols);
  const size_t y_bytes = elements * static_cast<size_t>(dtype_bytes(y_dtype));
  if (y_.buffer.data() == nullptr || y_.bytes != y_bytes)
    y_ = poisoned(y_bytes);
  else
    fill(*device_, y_.data(), kPoison, y_bytes);
  y_view_ = TensorView::of(y_.data(), y_dtype, x.rows, x.cols);
  fill(*device_, workspace_.data(), kPoison, workspace_.bytes);
}

void Runner::queue() { layer_->run(routing_, x_view_, y_view_, workspace_.data()); }

std::vector<float> Runner::result() {
  device_->wait();
  expect_guards(y_, "output");
  expect_guards(workspace_, "workspace");
  std::vector<std::byte> bytes(y_.bytes);
  if (!bytes.empty()) device_->copy_to_host(bytes.data(), y_.data(), bytes.size());
  std::vector<float> y(static_cast<size_t>(y_view_.rows * y_view_.cols));
  if (y_view_.dtype == DType::kF32) {
    if (!y.empty()) std::memcpy(y.data(), bytes.data(), bytes.size());
  } else {
    for (size_t i = 0; i < y.size(); ++i)
      y[i] = bf16_to_float(reinterpret_cast<const uint16_t*>(bytes.data())[i]);
  }
  return y;
}

std::vector<uint16_t> random_bf16(size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) value = float_to_bf16(normal(random));
  return values;
}

StoredMatrix random_matrix(WeightFormat format, int64_t rows, int64_t cols, std::mt19937& random) {
  StoredMatrix matrix;
  matrix.view.format = format;
  matrix.view.rows = rows;
  matrix.view.cols = cols;
  matrix.values.resize(value_bytes(matrix.view));
  matrix.scales.resize(scale_bytes(matrix.view));
  const float size = 1.0f / std::sqrt(static_cast<float>(cols));
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kBf16: {
      std::normal_distribution<float> normal(0, size);
      for (int64_t i = 0; i < rows * cols; ++i) {
        const float value = normal(random);
        const uint16_t rounded = float_to_bf16(value);
        if (format == WeightFormat::kF32)
          std::memcpy(matrix.values.data() + i * 4, &value, 4);
        else
          std::memcpy(matrix.values.data() + i * 2, &rounded, 2);
      }
      break;
    }
    case WeightFormat::kFp8Block:
      for (uint8_t& byte : matrix.values) {
        byte = static_cast<uint8_t>(random());
        if ((byte & 0x7F) == 0x7F) byte = 0;
      }
      for (size_t i = 0; i < matrix.scales.size(); i += 4) {
        const float scale = size / 100 * static_cast<float>(1 + random() % 4);
        std::memcpy(matrix.scales.data() + i, &scale, 4);
      }
      break;
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4:
      for (uint8_t& byte : matrix.values) byte = static_cast<uint8_t>(random());
      for (uint8_t& byte : matrix.scales)
        byte = static_cast<uint8_t>(format == WeightFormat::kNvfp4
                                        ? 0x20 + random() % 0x28  // 2^-3 .. 2^2
                                        : 125 + random() % 4);
      if (format == WeightFormat::kNvfp4)
        matrix.view.global_scale = size * static_cast<float>(1 + random() % 5) / 5;
      break;
  }
  matrix.view.values = matrix.values.data();
  matrix.view.scales = matrix.scales.empty() ? nullptr : matrix.scales.data();
  return matrix;
}

StoredExperts random_experts(const MoeShape& shape, std::mt19937& random) {
  StoredExperts experts;
  experts.matrices.reserve(static_cast<size_t>(shape.num_experts) * 3);
  const auto add = [&](int64_t rows, int64_t cols) {
    experts.matrices.push_back(random_matrix(shape.weights, rows, cols, random));
    return experts.matrices.back().view;
  };
  for (int e = 0; e < shape.num_experts; ++e) {
    ExpertWeights expert;
    if (shape.activation.gated()) expert.gate = add(shape.intermediate, shape.hidden);
    expert.up = add(shape.intermediate, shape.hidden);
    expert.down = add(shape.hidden, shape.intermediate);
    experts.views.push_back(expert);
  }
  return experts;
}

StoredRouting random_routing(const MoeShape& shape, int num_tokens, std::mt19937& random) {
  StoredRouting routing;
  routing.num_tokens = num_tokens;
  std::vector<int32_t> ids(static_cast<size_t>(shape.num_experts));
  for (size_t e = 0; e < ids.size(); ++e) ids[e] = static_cast<int32_t>(e);
  for (int t = 0; t < num_tokens; ++t) {
    std::shuffle(ids.begin(), ids.end(), random);
    float sum = 0;
    for (int k = 0; k < shape.top_k; ++k) {
      routing.ids.push_back(ids[static_cast<size_t>(k) % ids.size()]);
      routing.weights.push_back(static_cast<float>(1 + random() % 100));
      sum += routing.weights.back();
    }
    for (int k = 0; k < shape.top_k; ++k)
      routing.weights[routing.weights.size() - 1 - static_cast<size_t>(k)] /= sum;
  }
  return routing;
}

}  // namespace halfbyte::testing_moe

#include "support/moe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/bf16.h"
#include "formats/check_matrix.h"
#include "formats/decode.h"

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

Runner::Runner(const std::string& device, const MoeShape& shape,
               const std::vector<ExpertWeights>& experts, int max_tokens, int threads) {
  SimdLevel level = SimdLevel::kScalar;
  for (SimdLevel known : {SimdLevel::kAvx2, SimdLevel::kAvx512})
    if (device == std::string("cpu.") + name_of(known)) level = known;
  device_ = std::make_unique<CpuDevice>(level, DeviceOptions{.threads = threads},
                                        CpuDevice::OpsFactory{});
  plan_ = plan_moe(shape, {.max_tokens = std::max(max_tokens, 1)}, *device_,
                   device == "ref" ? "reference" : "cpu");
  packed_ = device_->allocate(plan_->layout().packed_bytes);
  // Poison: a byte that packing forgets would be a NaN scale.
  std::memset(packed_.data(), 0xFF, packed_.bytes());
  pack_experts([&](int e) { return experts[static_cast<size_t>(e)]; }, *plan_,
               {static_cast<std::byte*>(packed_.data()), packed_.bytes()});
  layer_ = plan_->bind(packed_.data(), packed_.bytes());
  workspace_ = device_->allocate(plan_->workspace_bytes());
}

std::vector<float> Runner::run(const Routing& routing, TensorView x, DType y_dtype) {
  if (workspace_.bytes() > 0) std::memset(workspace_.data(), 0xFF, workspace_.bytes());
  const size_t count = static_cast<size_t>(x.rows * x.cols);
  std::vector<uint32_t> bytes(count, 0xFFFFFFFFu);
  layer_->run(routing, x, TensorView::of(bytes.data(), y_dtype, x.rows, x.cols), workspace_.data());
  device_->wait();
  std::vector<float> y(count);
  if (y_dtype == DType::kF32) {
    if (count > 0) std::memcpy(y.data(), bytes.data(), count * sizeof(float));
  } else {
    for (size_t i = 0; i < count; ++i)
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

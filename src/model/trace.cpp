#include "model/trace.h"

#include "formats/bf16.h"
#include "formats/safetensors.h"

namespace halfbyte {

void Trace::record(Device& device, const std::string& name, const TensorView& view) {
  device.wait();
  Tensor& tensor = tensors_[name];
  tensor.dtype = view.dtype == DType::kI32 ? DType::kI32 : DType::kF32;
  tensor.cols = view.cols;
  const size_t cols = static_cast<size_t>(view.cols);
  std::vector<uint16_t> halves(view.dtype == DType::kBf16 ? cols : 0);
  for (int64_t r = 0; r < view.rows; ++r) {
    if (view.dtype == DType::kI32) {
      tensor.ids.resize(tensor.ids.size() + cols);
      device.copy_to_host(tensor.ids.data() + tensor.ids.size() - cols, view.row<int32_t>(r),
                          cols * 4);
      continue;
    }
    tensor.values.resize(tensor.values.size() + cols);
    float* row = tensor.values.data() + tensor.values.size() - cols;
    if (view.dtype == DType::kF32) {
      device.copy_to_host(row, view.row<float>(r), cols * 4);
    } else {
      device.copy_to_host(halves.data(), view.row<uint16_t>(r), cols * 2);
      for (size_t c = 0; c < cols; ++c) row[c] = bf16_to_float(halves[c]);
    }
  }
}

void Trace::write(const std::filesystem::path& path) const {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors_)
    specs.push_back({name, tensor.dtype, {tensor.rows(), tensor.cols}});
  SafetensorsWriter writer(path, specs);
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.dtype == DType::kI32)
      writer.write(tensor.ids.data(), tensor.ids.size() * 4);
    else
      writer.write(tensor.values.data(), tensor.values.size() * 4);
  }
  writer.commit();
}

}  // namespace halfbyte

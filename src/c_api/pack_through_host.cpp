#include "c_api/pack_through_host.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "formats/check_matrix.h"

namespace halfbyte::c_api {

namespace {

// One matrix of one expert in host memory.
struct HostMatrix {
  std::vector<std::byte> codes, scales;
  std::string name;
  MatrixView view;
};

std::vector<std::byte> read_rows(Device& device, const StridedTensor& tensor, int expert,
                                 int64_t rows, int64_t row_bytes) {
  std::vector<std::byte> bytes(static_cast<size_t>(rows * row_bytes));
  const uint8_t* from = tensor.data + expert * tensor.expert_stride;
  if (tensor.row_stride == row_bytes) {
    device.copy_to_host(bytes.data(), from, bytes.size());
    return bytes;
  }
  for (int64_t row = 0; row < rows; ++row)
    device.copy_to_host(bytes.data() + row * row_bytes, from + row * tensor.row_stride,
                        static_cast<size_t>(row_bytes));
  return bytes;
}

HostMatrix read_matrix(Device& device, const StridedMatrices& from, int expert, MatrixView shape,
                       std::string name) {
  HostMatrix matrix;
  matrix.name = std::move(name);
  matrix.codes = read_rows(device, from.codes, expert, shape.rows, shape.cols / 2);
  matrix.scales =
      read_rows(device, from.scales, expert, shape.rows, shape.cols / scale_group(shape.format));
  matrix.view = shape;
  if (from.global_scale != nullptr)
    device.copy_to_host(&matrix.view.global_scale,
                        from.global_scale + expert * from.global_scale_stride, sizeof(float));
  return matrix;
}

}  // namespace

void pack_through_host(const MoePlan& plan, Device& device, const StridedExperts& experts,
                       int first, int count, void* packed) {
  const MoeShape& shape = plan.shape();
  const size_t expert_bytes = plan.layout().expert_bytes;
  MatrixView inner, outer;
  inner.format = outer.format = shape.weights;
  inner.rows = outer.cols = shape.intermediate;
  inner.cols = outer.rows = shape.hidden;
  std::vector<std::byte> packed_expert(expert_bytes);
  for (int e = 0; e < count; ++e) {
    HostMatrix gate, up, down;
    const auto read = [&](HostMatrix& to, const StridedMatrices& from, const MatrixView& part,
                          const char* name) {
      to = read_matrix(device, from, e, part, fmt::format("expert {} {}", first + e, name));
      to.view.values = to.codes.data();
      to.view.scales = to.scales.data();
      to.view.name = to.name;
    };
    if (shape.activation.gated()) read(gate, experts.gate, inner, "gate");
    read(up, experts.up, inner, "up");
    read(down, experts.down, outer, "down");
    plan.pack_expert({gate.view, up.view, down.view}, packed_expert);
    device.copy_to_device(
        static_cast<std::byte*>(packed) + static_cast<size_t>(first + e) * expert_bytes,
        packed_expert.data(), expert_bytes);
  }
}

}  // namespace halfbyte::c_api

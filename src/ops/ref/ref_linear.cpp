#include "ops/ref/ref_linear.h"

#include <cstring>

#include "formats/decode.h"
#include "ops/ref/view.h"

namespace halfbyte::ref {
namespace {

class RefLinear : public Linear {
 public:
  explicit RefLinear(const MatrixView& weight)
      : weight_(weight), values_(value_bytes(weight)), scales_(scale_bytes(weight)) {
    std::memcpy(values_.data(), weight.values, values_.size());
    if (!scales_.empty()) std::memcpy(scales_.data(), weight.scales, scales_.size());
    weight_.values = values_.data();
    weight_.scales = scales_.data();
    weight_.name = {};
    row_.resize(static_cast<size_t>(weight.cols));
  }

  int64_t in_features() const override { return weight_.cols; }
  int64_t out_features() const override { return weight_.rows; }
  size_t weight_bytes() const override { return values_.size() + scales_.size(); }

  void run(TensorView x, TensorView y) const override {
    for (int64_t n = 0; n < weight_.rows; ++n) {
      decode_row(weight_, n, row_.data());
      for (int64_t t = 0; t < x.rows; ++t) {
        double sum = 0;
        for (int64_t k = 0; k < weight_.cols; ++k) sum += at(x, t, k) * row_[k];
        put(y, t, n, sum);
      }
    }
  }

 private:
  MatrixView weight_;
  std::vector<std::byte> values_, scales_;
  mutable std::vector<double> row_;  // one device, one thread
};

}  // namespace

std::unique_ptr<Linear> load_ref_linear(const MatrixView& weight) {
  return std::make_unique<RefLinear>(weight);
}

}  // namespace halfbyte::ref

#include "support/hidden_steps.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "formats/bf16.h"
#include "formats/decode.h"
#include "ops/activation.h"

namespace halfbyte::testing_moe {
namespace {

constexpr double kStep = 0x1p-7;

using Matrix = std::vector<std::vector<double>>;

Matrix decode(const MatrixView& view) {
  Matrix rows(static_cast<size_t>(view.rows), std::vector<double>(static_cast<size_t>(view.cols)));
  for (size_t r = 0; r < rows.size(); ++r)
    decode_row(view, static_cast<int64_t>(r), rows[r].data());
  return rows;
}

double dot(const std::vector<double>& row, const uint16_t* x) {
  double sum = 0;
  for (size_t l = 0; l < row.size(); ++l) sum += row[l] * double{bf16_to_float(x[l])};
  return sum;
}

// The two largest of what is added.
struct TwoLargest {
  double first = 0, second = 0;
  void add(double v) {
    second = std::max(second, std::min(first, v));
    first = std::max(first, v);
  }
};

}  // namespace

HiddenSteps::HiddenSteps(const MoeShape& shape, const std::vector<ExpertWeights>& experts,
                         const Routing& routing, const uint16_t* x)
    : experts_(experts) {
  std::map<std::pair<int32_t, int64_t>, double> weights;  // slots of one token and expert together
  for (int64_t slot = 0; slot < int64_t{routing.num_tokens} * shape.top_k; ++slot) {
    const int32_t id = routing.topk_ids[slot];
    if (id >= 0 && id < shape.num_experts && routing.topk_weights[slot] != 0)
      weights[{id, slot / shape.top_k}] += double{routing.topk_weights[slot]};
  }
  int32_t decoded = -1;
  Matrix gate, up;
  for (const auto& [key, weight] : weights) {
    const auto [expert, token] = key;
    const ExpertWeights& stored = experts[static_cast<size_t>(expert)];
    if (expert != decoded) {
      gate = shape.activation.gated() ? decode(stored.gate) : Matrix();
      up = decode(stored.up);
      decoded = expert;
    }
    Pair pair{token, expert, weight, std::vector<double>(up.size())};
    for (size_t f = 0; f < up.size(); ++f) {
      const uint16_t* row = x + token * shape.hidden;
      const double g = gate.empty() ? 0 : dot(gate[f], row);
      pair.hidden[f] = activate(shape.activation, g, dot(up[f], row));
    }
    pairs_.push_back(std::move(pair));
  }
}

double HiddenSteps::of_element(int64_t t, int64_t l) const {
  TwoLargest steps;
  for (const Pair& pair : pairs_) {
    if (pair.token != t) continue;
    std::vector<double> row(pair.hidden.size());
    decode_row(experts_[static_cast<size_t>(pair.expert)].down, l, row.data());
    for (size_t f = 0; f < row.size(); ++f)
      steps.add(kStep * std::fabs(pair.weight * pair.hidden[f] * row[f]));
  }
  return steps.first + steps.second;
}

double HiddenSteps::of_all() const {
  TwoLargest squares;
  int32_t decoded = -1;
  std::vector<double> column_squares;
  for (const Pair& pair : pairs_) {
    if (pair.expert != decoded) {
      column_squares.assign(pair.hidden.size(), 0);
      for (const auto& row : decode(experts_[static_cast<size_t>(pair.expert)].down))
        for (size_t f = 0; f < row.size(); ++f) column_squares[f] += row[f] * row[f];
      decoded = pair.expert;
    }
    for (size_t f = 0; f < column_squares.size(); ++f) {
      const double step = kStep * pair.weight * pair.hidden[f];
      squares.add(step * step * column_squares[f]);
    }
  }
  return std::sqrt(squares.first + squares.second);
}

}  // namespace halfbyte::testing_moe

#include "moe/draw_routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "halfbyte/error.h"

namespace halfbyte {
namespace {

constexpr std::array<std::pair<RoutingKind, const char*>, 3> kNames = {
    {{RoutingKind::kUniform, "uniform"}, {RoutingKind::kZipf, "zipf"}, {RoutingKind::kOne, "one"}}};

// Draws one token's choices into `out`, all different while there are experts left.
class Drawer {
 public:
  Drawer(RoutingKind kind, int num_experts, std::mt19937_64& random)
      : kind_(kind), random_(random), experts_(static_cast<size_t>(num_experts)) {
    std::iota(experts_.begin(), experts_.end(), 0);
    std::shuffle(experts_.begin(), experts_.end(), random_);
    if (kind_ != RoutingKind::kZipf) return;
    double sum = 0;
    for (size_t rank = 0; rank < experts_.size(); ++rank)
      cumulative_.push_back(sum += 1.0 / static_cast<double>(rank + 1));
    used_.resize(experts_.size());
  }

  void draw(int32_t* out, size_t count) {
    const size_t different = std::min(count, experts_.size());
    if (kind_ == RoutingKind::kZipf)
      draw_zipf(out, different);
    else
      draw_uniform(out, different);
    for (size_t k = different; k < count; ++k) out[k] = out[k - different];
  }

 private:
  void draw_uniform(int32_t* out, size_t count) {
    for (size_t k = 0; k < count; ++k) {
      std::uniform_int_distribution<size_t> rest(k, experts_.size() - 1);
      std::swap(experts_[k], experts_[rest(random_)]);
      out[k] = experts_[k];
    }
  }

  // One after the other by weight; a rank that is taken is drawn again.
  void draw_zipf(int32_t* out, size_t count) {
    std::uniform_real_distribution<double> point(0, cumulative_.back());
    std::vector<size_t> ranks;
    while (ranks.size() < count) {
      const auto found =
          std::upper_bound(cumulative_.begin(), cumulative_.end() - 1, point(random_));
      const auto rank = static_cast<size_t>(found - cumulative_.begin());
      if (used_[rank]) continue;
      used_[rank] = true;
      out[ranks.size()] = experts_[rank];
      ranks.push_back(rank);
    }
    for (size_t rank : ranks) used_[rank] = false;
  }

  RoutingKind kind_;
  std::mt19937_64& random_;
  std::vector<int32_t> experts_;  // by rank
  std::vector<double> cumulative_;
  std::vector<bool> used_;
};

}  // namespace

const char* name_of(RoutingKind kind) {
  for (const auto& [known, name] : kNames)
    if (known == kind) return name;
  return "?";
}

RoutingKind parse_routing_kind(std::string_view name) {
  for (const auto& [kind, known] : kNames)
    if (name == known) return kind;
  throw Error(ErrorKind::kInput, "routing",
              fmt::format("\"{}\": expected uniform, zipf or one", name));
}

DrawnRouting draw_routing(RoutingKind kind, int num_tokens, int top_k, int num_experts,
                          int num_local, std::mt19937_64& random) {
  DrawnRouting routing;
  routing.num_tokens = num_tokens;
  const auto choices = static_cast<size_t>(top_k);
  routing.ids.resize(static_cast<size_t>(num_tokens) * choices);
  routing.weights.assign(routing.ids.size(), 1.0f / static_cast<float>(top_k));
  if (kind == RoutingKind::kOne) {
    std::uniform_int_distribution<int32_t> local(0, num_local - 1);
    std::fill(routing.ids.begin(), routing.ids.end(), local(random));
    return routing;
  }
  Drawer drawer(kind, num_experts, random);
  for (size_t t = 0; t < static_cast<size_t>(num_tokens); ++t)
    drawer.draw(routing.ids.data() + t * choices, choices);
  for (int32_t& id : routing.ids)
    if (id >= num_local) id = -1;
  return routing;
}

}  // namespace halfbyte

// What becomes of each tensor of a checkpoint when it is converted to ModelOpt's NVFP4 layout.
//
//   routed experts  BF16, F32 or MXFP4 -> NVFP4; gate and up of an expert share the global scale
//   attention       BF16 or F32 projections -> block FP8, unless only the experts are converted
//   everything else as stored; router rows are cut when experts are dropped
//
// Attention projections: q, k, v, g, o, b, f_a, f_b, q_a, q_b, kv_a_proj_with_mqa, kv_b
// (`self_attn.*_proj`). Tensors of dropped layers and experts are left out. The plan holds views:
// it must not outlive the checkpoint.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/config.h"
#include "formats/checkpoint.h"
#include "halfbyte/tensor.h"

namespace halfbyte {

struct RecipeOptions {
  bool experts_only = false;
  std::optional<int> num_layers;    // keep the first
  std::optional<int> keep_experts;  // keep the first
};

// A piece of work: it reads a few tensors and makes a few.
struct Unit {
  enum class Kind { kCopy, kFp8, kExpert };
  Kind kind = Kind::kCopy;
  std::string name;  // kCopy: the tensor; kFp8, kExpert: the module ("...experts.3")

  // kCopy, kFp8. A copy may take only the first `rows` of dimension 0.
  const StoredTensor* tensor = nullptr;
  int64_t rows = 0;

  // kExpert: gate, up, down.
  struct Projection {
    std::string_view name;  // "w1", "gate_proj", ...
    MatrixView matrix;
    const StoredTensor* values = nullptr;
    const StoredTensor* scales = nullptr;  // MXFP4
  };
  std::array<Projection, 3> projections;

  int64_t bytes_in() const;
};

// The tensors that a unit makes. kFp8: weight, weight_scale. kExpert: for each projection weight,
// weight_scale, weight_scale_2, input_scale.
inline constexpr size_t kOutputsPerProjection = 4;
std::vector<TensorSpec> outputs_of(const Unit& unit);
int64_t bytes_of(const TensorSpec& tensor);

// Tensors of the source that the result does not have.
struct LeftOut {
  int64_t tensors = 0, bytes = 0;
};

struct Recipe {
  std::vector<Unit> units;  // by name, numbers in their order
  LeftOut layers;           // beyond --num-layers, or num_hidden_layers
  LeftOut experts;          // beyond --keep-experts
  ConfigChanges changes;    // all but the producer's version
};

// Throws Error{kInput} or Error{kUnsupported} with the tensor's name: an expert or a projection is
// missing, shapes do not fit, weights are already quantised, options ask for more than there is.
Recipe plan_recipe(const Checkpoint& checkpoint, const ModelFacts& facts,
                   const RecipeOptions& options);

}  // namespace halfbyte

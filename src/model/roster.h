// Which tensors a checkpoint of a model must hold, by name and shape: the one list that loading and
// inspecting share.
//
// Names are those of the official checkpoints without the "language_model." that K3 puts in front;
// a checkpoint may have it or not (text-only exports drop it).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint.h"
#include "model/config.h"

namespace halfbyte {

enum class TensorRole {
  kMatrix,     // `name` is a module: any stored WeightFormat, (rows, cols)
  kExpert,     // the same, of a routed expert
  kVector,     // `name` is a tensor: BF16 or F32, rows values ([1, rows] is the same)
  kEmbedding,  // `name` is a tensor: BF16 or F32 (rows, cols)
  kLogDecay,   // `name` is a tensor: F32 or BF16, `rows` live values, then only zeros
};

struct RosterEntry {
  std::string name;
  TensorRole role;
  int64_t rows = 0;
  int64_t cols = 1;
};

// In the order of the network.
std::vector<RosterEntry> make_roster(const ModelConfig& config);

// "language_model." or "": what stands in front of every name of this checkpoint.
std::string_view name_prefix(const Checkpoint& checkpoint);

// Names of one expert's matrices: gate, up, down.
std::string expert_module(int layer, int expert, const char* which);  // "w1", "w3", "w2"

// Everything that keeps a checkpoint from being loaded as `config` says: tensors that are missing
// or have another shape or dtype, and tensors under "experts." that nobody would read (a weight
// under an unknown name must not go unnoticed). Ignored: vision_tower., mm_projector., layers
// beyond num_layers, activation scales. Looks at shapes and dtypes, not at values. `report` is
// called with each; it may throw to stop at the first.
void check_roster(const Checkpoint& checkpoint, const ModelConfig& config,
                  const std::function<void(const Error&)>& report);

// Tensors that nobody reads and that are no fault, e.g. of the vision tower.
std::vector<const StoredTensor*> unread_tensors(const Checkpoint& checkpoint,
                                                const ModelConfig& config);

}  // namespace halfbyte

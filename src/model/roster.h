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
#include "formats/quant_config.h"
#include "model/config.h"

namespace halfbyte {

enum class TensorRole {
  kMatrix,     // `name` is a module: any stored WeightFormat, (rows, cols)
  kExpert,     // the same, of a routed expert
  kVector,     // `name` is a tensor: BF16 or F32, rows x cols values; extents of 1 do not count
  kEmbedding,  // `name` is a tensor: BF16 or F32 (rows, cols)
  kLogDecay,   // `name` is a tensor: F32 or BF16, `rows` live values, then only zeros
};

struct RosterEntry {
  std::string name;  // as this checkpoint spells it
  TensorRole role;
  int64_t rows = 0;
  int64_t cols = 1;
};

// In the order of the network; `prefix` is put in front of every name.
std::vector<RosterEntry> make_roster(const ModelConfig& config, std::string_view prefix);

// "language_model." or "": what stands in front of every name of this checkpoint.
std::string_view name_prefix(const Checkpoint& checkpoint);

// Names of one expert's matrices: gate, up, down.
std::string expert_module(int layer, int expert, const char* which);  // "w1", "w3", "w2"

// Throws Error if what `entry` asks for is missing or has another shape or dtype. Looks at shapes,
// dtypes and global scales, not at values.
void check_entry(const Checkpoint& checkpoint, const RosterEntry& entry);

// Throws Error if the configs claim another format than `stored`, the one of the entry's matrix.
// Configs speak of the experts of a layer together, so only the first is compared: is_compared.
bool is_compared(const RosterEntry& entry);
QuantClaim check_claim(const QuantConfig& claims, const RosterEntry& entry, WeightFormat stored);

// Tensors that no entry reads. Scales of activations belong to the matrix they stand beside, and
// are not among them.
enum class UnreadKind {
  kVision,      // vision_tower., mm_projector.
  kOtherLayer,  // of a layer beyond num_layers
  kHarmless,    // anything else that changes no result, e.g. scales of a KV cache
  kUnknown,     // under "experts.", a bias, a weight of a layer: would change results if read
};
struct UnreadTensor {
  const StoredTensor* tensor;
  UnreadKind kind;
};
std::vector<UnreadTensor> unread_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                                         const std::vector<RosterEntry>& roster);
Error unknown_tensor_error(const StoredTensor& tensor);

// Everything that keeps a checkpoint from being loaded as `config` says: what check_entry finds,
// and unknown tensors. `report` is called with each; it may throw to stop at the first.
void check_roster(const Checkpoint& checkpoint, const ModelConfig& config,
                  const std::function<void(const Error&)>& report);

// The values of a kVector or kLogDecay tensor as fp32. Throws Error unless all are finite.
std::vector<float> read_values(const StoredTensor& tensor);
// The same of A_log: one value a head, then zeros up to some width. A tail that is not zero means
// that the tensor is something else than we think: Error.
std::vector<float> read_log_decay(const StoredTensor& tensor, int heads);

}  // namespace halfbyte

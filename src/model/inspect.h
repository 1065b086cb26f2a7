// What a checkpoint is, and whether halfbyte could run it: every reason against it, not only the
// first.
//
// Reads the headers of all shards, the configs, every scale byte and the values of every vector;
// codes and BF16 matrices are not read. Several threads. 500,000 tensors take about a second where
// there are no scales to read. Checked: tests/unit/model/inspect_test.cpp breaks good checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/quant_config.h"
#include "formats/stored_matrix.h"
#include "halfbyte/error.h"
#include "model/config.h"

namespace halfbyte {

struct InspectOptions {
  bool read_values = true;  // false: headers, configs and global scales only
};

// Tensors of one kind that are stored alike.
struct TensorGroup {
  std::string name;           // "routed experts", "KDA attention", ...
  std::string stored;         // a WeightFormat's name; of vectors, the dtype
  std::string claimed = "-";  // by the quantisation config: a WeightFormat's name, "-" for none
  int64_t count = 0;          // matrices or vectors
  int64_t values = 0;         // weights
  int64_t bytes = 0;          // with their scales
  ScaleCounts scales;
};

struct Inspection {
  std::filesystem::path directory;
  int64_t num_files = 0, num_tensors = 0, bytes = 0;
  std::optional<ModelConfig> config;                          // none: config.json cannot be read
  std::string quant_method, quant_algorithm, quant_kv_cache;  // claimed; "" for none
  int num_kda = 0, num_mla = 0, num_dense = 0, num_moe = 0;   // layers
  std::vector<TensorGroup> groups;                            // in the order of the network
  std::vector<TensorGroup> unread;                            // tensors that nobody reads
  bool values_read = false;

  // NVFP4 experts whose gate and up have different global scales. Legal: both are kept.
  int64_t gate_up_pairs = 0, gate_up_differing = 0;
  double gate_up_largest_ratio = 1;

  std::vector<std::string> notes;  // worth knowing, no reason against it
  std::vector<Error> problems;     // empty: halfbyte could run it
};

// Throws only if there is no checkpoint at all.
Inspection inspect_checkpoint(const std::filesystem::path& directory,
                              const InspectOptions& options = {});

// For people; `max_problems` lines of reasons, then how many more there are.
std::string inspection_table(const Inspection& inspection, int max_problems);
std::string inspection_json(const Inspection& inspection);

}  // namespace halfbyte

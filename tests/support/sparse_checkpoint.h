// Checkpoints of any size that take no room: real headers and an index, data that is a hole.
//
// Every tensor that a model needs, after the roster; experts in the official MXFP4 layout, the rest
// BF16, A_log F32. All values read as 0, which is legal. One shard a layer, one for the rest.
#pragma once

#include <filesystem>
#include <string>

namespace halfbyte {

// The configuration of Kimi-K3 as specified, or with fewer layers and experts.
std::string k3_config_json(int layers = 93, int experts = 896);

// Writes config.json, the shards and their index. Returns the number of tensors.
int64_t write_sparse_checkpoint(const std::filesystem::path& directory,
                                const std::string& config_json);

}  // namespace halfbyte

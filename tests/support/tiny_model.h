// Whole checkpoints with random weights: any configuration, small enough for a test. And copies of
// checkpoints with something changed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

namespace halfbyte {

// config.json of a golden model, to be changed and written elsewhere.
nlohmann::ordered_json golden_config(const std::string& folder);

// Writes config.json and one model.safetensors: every tensor of the roster, BF16 matrices scaled by
// 1 / sqrt(columns) and the gains of the golden recipe, so that every part changes the logits.
void write_tiny_model(const std::filesystem::path& directory, const nlohmann::ordered_json& config,
                      uint32_t seed);

// Copies a directory of checkpoint files.
void copy_checkpoint(const std::filesystem::path& from, const std::filesystem::path& to);
// Changes the bytes of a stored tensor in place. Throws std::out_of_range if there is none.
void patch_tensor(const std::filesystem::path& directory, const std::string& name,
                  const std::function<void(std::span<uint8_t>)>& change);

// Removes the tensors that the directory's configuration does not ask for, so that a feature can be
// turned off there. Of checkpoints of one file.
void drop_unread_tensors(const std::filesystem::path& directory);

}  // namespace halfbyte

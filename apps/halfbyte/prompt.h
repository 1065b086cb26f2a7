// Prompts of the commands: text or token ids, checked against a checkpoint before it is loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "text/tokenizer.h"

namespace halfbyte {

// Nothing if the directory has no tokenizer. Throws Error{kInput} if the tokenizer has more ids
// than the model.
std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& directory,
                                          const ModelConfig& config);

// Throws Error{kInput} at `where`: no tokenizer, text that is empty or not UTF-8.
std::vector<int32_t> encode_prompt(const Tokenizer* tokenizer, std::string_view text,
                                   const std::string& where);

// "1,2,3", spaces around the numbers allowed. Throws Error{kInput} at `where`; `what` is one of
// them in words.
std::vector<int64_t> parse_ids(std::string_view text, const std::string& where,
                               std::string_view what = "token id");

// Throws Error{kInput} at `where`: no ids, an id outside the vocabulary.
void check_ids(const std::vector<int64_t>& ids, const ModelConfig& config,
               const std::string& where);

}  // namespace halfbyte

#include "prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "halfbyte/error.h"

namespace halfbyte {

std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& directory,
                                          const ModelConfig& config) {
  if (!Tokenizer::is_in(directory)) return nullptr;
  auto tokenizer = std::make_unique<Tokenizer>(directory);
  if (tokenizer->vocab_size() > config.vocab_size)
    throw Error(ErrorKind::kInput, (directory / "tiktoken.model").string(),
                fmt::format("has {} ids with the reserved ones, the model's vocabulary {}",
                            tokenizer->vocab_size(), config.vocab_size));
  return tokenizer;
}

std::vector<int32_t> encode_prompt(const Tokenizer* tokenizer, std::string_view text,
                                   const std::string& where) {
  if (tokenizer == nullptr)
    throw Error(ErrorKind::kInput, where,
                "text needs a tokenizer, and the model's directory has no tiktoken.model; token "
                "ids work");
  if (text.empty()) throw Error(ErrorKind::kInput, where, "is empty");
  return tokenizer->encode(text);
}

std::vector<int64_t> parse_ids(std::string_view text, const std::string& where,
                               std::string_view what) {
  constexpr const char* kSpace = " \t\r\n";
  if (text.find_first_not_of(kSpace) == std::string_view::npos)
    throw Error(ErrorKind::kInput, where, "is empty, expected numbers as in 1,2,3");
  std::vector<int64_t> ids;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string_view word = text.substr(begin, end - begin);
    word.remove_prefix(std::min(word.find_first_not_of(kSpace), word.size()));
    word = word.substr(0, word.find_last_not_of(kSpace) + 1);
    int64_t id = 0;
    const auto [rest, status] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (status != std::errc() || rest != word.data() + word.size())
      throw Error(ErrorKind::kInput, where,
                  fmt::format("\"{}\" at place {} is no {}, expected numbers as in 1,2,3", word,
                              ids.size(), what));
    ids.push_back(id);
    begin = end + 1;
  }
  return ids;
}

void check_ids(const std::vector<int64_t>& ids, const ModelConfig& config,
               const std::string& where) {
  if (ids.empty()) throw Error(ErrorKind::kInput, where, "is empty, expected token ids");
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= config.vocab_size)
      throw Error(ErrorKind::kInput, where,
                  fmt::format("id {} at place {} is outside the vocabulary, expected 0 to {}",
                              ids[i], i, config.vocab_size - 1));
}

}  // namespace halfbyte

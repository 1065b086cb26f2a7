// Text <-> token ids for a checkpoint directory with tiktoken.model and tokenizer_config.json.
//
// Ids: the ranks of tiktoken.model (text/bpe.h), then 256 reserved slots: special tokens, named in
// tokenizer_config.json's added_tokens_decoder, the others `<|reserved_token_ID|>`. Nothing else is
// ever produced: entries of added_tokens_decoder past the slots are ignored.
// Text is cut into slices and pieces (text/splitter.h); no normalisation, no added tokens. Decoding
// joins the bytes; what is not UTF-8 becomes U+FFFD.
// Const functions may be called from several threads. Checked against tiktoken.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.h"
#include "text/utf8.h"

namespace halfbyte {

class Tokenizer {
 public:
  static constexpr int32_t kReservedSlots = 256;
  // "special" of added_tokens_decoder: dropped when special tokens are skipped. <|open|>, <|close|>
  // and <|sep|> are not.
  struct SpecialToken {
    std::string name;
    bool special = true;
  };

  static bool is_in(const std::filesystem::path& directory);  // is there a tiktoken.model
  // tokenizer_config.json may be missing: all slots then have their reserved names.
  // Throws Error{kInput} with file and line or key.
  explicit Tokenizer(const std::filesystem::path& directory);
  // `names_file` is where `named` comes from, for messages.
  Tokenizer(BytePairEncoding ranks, const std::map<int32_t, SpecialToken>& named,
            const std::string& names_file = "tokenizer_config.json");

  int32_t vocab_size() const { return ranks_.size() + kReservedSlots; }
  bool is_special(int32_t id) const { return id >= ranks_.size(); }
  std::optional<int32_t> find_special(std::string_view name) const;
  // Throws Error{kInput} that lists what is there.
  int32_t get_special(std::string_view name) const;

  // Throws Error{kInput} when `text` is not UTF-8.
  std::vector<int32_t> encode(std::string_view text) const;                // ordinary text only
  std::vector<int32_t> encode_with_specials(std::string_view text) const;  // names become their ids

  // The bytes of a token, or the name of a special one. Throws Error{kInput} outside [0, vocab).
  std::string_view bytes_of(int32_t id) const;
  struct DecodeOptions {
    bool skip_special_tokens = false;
  };
  std::string decode(std::span<const int32_t> ids, DecodeOptions options) const;
  std::string decode(std::span<const int32_t> ids) const { return decode(ids, {}); }

 private:
  friend class TokenStream;
  void encode_ordinary(std::string_view slice, std::vector<int32_t>& ids) const;

  std::string names_where_;  // "DIR/tokenizer_config.json: added_tokens_decoder"
  BytePairEncoding ranks_;
  std::vector<SpecialToken> specials_;  // (kReservedSlots)
  std::map<std::string, int32_t, std::less<>> special_ids_;
};

// Token ids in, text out as soon as its characters are complete. The tokenizer must outlive it.
class TokenStream {
 public:
  explicit TokenStream(const Tokenizer& tokenizer, Tokenizer::DecodeOptions options = {})
      : tokenizer_(&tokenizer), options_(options) {}
  std::string push(int32_t id);
  std::string finish() { return utf8_.finish(); }

 private:
  const Tokenizer* tokenizer_;
  Tokenizer::DecodeOptions options_;
  Utf8Stream utf8_;
};

}  // namespace halfbyte

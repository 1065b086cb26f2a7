#include "text/tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "halfbyte/error.h"
#include "text/splitter.h"

namespace halfbyte {
namespace fs = std::filesystem;

namespace {

std::map<int32_t, Tokenizer::SpecialToken> read_added_tokens(const fs::path& path) {
  std::map<int32_t, Tokenizer::SpecialToken> named;
  if (!fs::exists(path)) return named;
  const JsonDocument config = JsonDocument::from_file(path);
  const auto added = config.root().find_value("added_tokens_decoder");
  if (!added) return named;
  added->for_each_member([&](std::string_view key, Json token) {
    int32_t id = -1;
    const auto [rest, status] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (status != std::errc() || rest != key.data() + key.size() || id < 0)
      token.fail("the key is not a token id");
    const std::string_view name = token.get("content").string();
    if (name.empty()) token.fail("content is empty");
    const auto special = token.find_value("special");
    named[id] = {std::string(name), special ? special->boolean() : true};
  });
  return named;
}

}  // namespace

bool Tokenizer::is_in(const fs::path& directory) {
  return fs::exists(directory / "tiktoken.model");
}

Tokenizer::Tokenizer(const fs::path& directory)
    : Tokenizer(BytePairEncoding::parse(read_text(directory / "tiktoken.model"),
                                        (directory / "tiktoken.model").string()),
                read_added_tokens(directory / "tokenizer_config.json"),
                (directory / "tokenizer_config.json").string()) {}

Tokenizer::Tokenizer(BytePairEncoding ranks, const std::map<int32_t, SpecialToken>& named,
                     const std::string& names_file)
    : names_where_(names_file + ": added_tokens_decoder"),
      ranks_(std::move(ranks)),
      specials_(kReservedSlots) {
  const auto fail = [&](const std::string& message) {
    throw Error(ErrorKind::kInput, names_where_, message);
  };
  if (!named.empty() && named.begin()->first < ranks_.size())
    fail(fmt::format("id {} ({}) is one of the {} ranks of tiktoken.model", named.begin()->first,
                     named.begin()->second.name, ranks_.size()));
  for (int32_t slot = 0; slot < kReservedSlots; ++slot) {
    const int32_t id = ranks_.size() + slot;
    const auto found = named.find(id);
    specials_[slot] = found != named.end()
                          ? found->second
                          : SpecialToken{fmt::format("<|reserved_token_{}|>", id), true};
    const auto [same, is_new] = special_ids_.emplace(specials_[slot].name, id);
    if (!is_new) fail(fmt::format("ids {} and {} are both {}", same->second, id, same->first));
  }
}

std::optional<int32_t> Tokenizer::find_special(std::string_view name) const {
  const auto found = special_ids_.find(name);
  if (found == special_ids_.end()) return std::nullopt;
  return found->second;
}

int32_t Tokenizer::get_special(std::string_view name) const {
  if (const auto id = find_special(name)) return *id;
  std::vector<std::string_view> names;
  for (const SpecialToken& token : specials_)
    if (!token.name.starts_with("<|reserved_token_")) names.push_back(token.name);
  throw Error(ErrorKind::kInput, names_where_,
              fmt::format("{} is missing; there is: {}", name,
                          names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, " "))));
}

void Tokenizer::encode_ordinary(std::string_view slice, std::vector<int32_t>& ids) const {
  for_each_piece(slice, [&](std::string_view piece) { ranks_.encode(piece, ids); });
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  for_each_slice(text, [&](std::string_view slice) { encode_ordinary(slice, ids); });
  return ids;
}

std::vector<int32_t> Tokenizer::encode_with_specials(std::string_view text) const {
  // The longest special token that `text` begins with.
  const auto special_at =
      [&](std::string_view rest) -> const std::pair<const std::string, int32_t>* {
    const std::pair<const std::string, int32_t>* longest = nullptr;
    // In byte order a name stands before all that it begins; so all candidates share rest[0].
    for (auto it = special_ids_.lower_bound(rest.substr(0, 1));
         it != special_ids_.end() && it->first[0] == rest[0]; ++it)
      if (rest.starts_with(it->first) && (!longest || it->first.size() > longest->first.size()))
        longest = &*it;
    return longest;
  };
  std::array<bool, 256> starts_special{};
  for (const auto& [name, id] : special_ids_) starts_special[static_cast<uint8_t>(name[0])] = true;

  std::vector<int32_t> ids;
  // NOTE: slices come first: a name that lies across a cut is ordinary text, as in the reference.
  for_each_slice(text, [&](std::string_view slice) {
    size_t begin = 0;
    for (size_t i = 0; i < slice.size();) {
      const auto* special =
          starts_special[static_cast<uint8_t>(slice[i])] ? special_at(slice.substr(i)) : nullptr;
      if (special == nullptr) {
        ++i;
        continue;
      }
      encode_ordinary(slice.substr(begin, i - begin), ids);
      ids.push_back(special->second);
      begin = i += special->first.size();
    }
    encode_ordinary(slice.substr(begin), ids);
  });
  return ids;
}

std::string_view Tokenizer::bytes_of(int32_t id) const {
  if (id < 0 || id >= vocab_size())
    throw Error(ErrorKind::kInput, "ids",
                fmt::format("{} is outside the vocabulary [0, {})", id, vocab_size()));
  return is_special(id) ? std::string_view(specials_[id - ranks_.size()].name) : ranks_.token(id);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, DecodeOptions options) const {
  TokenStream stream(*this, options);
  std::string text;
  for (const int32_t id : ids) text += stream.push(id);
  return text += stream.finish();
}

std::string TokenStream::push(int32_t id) {
  const std::string_view bytes = tokenizer_->bytes_of(id);
  const bool skipped = options_.skip_special_tokens && tokenizer_->is_special(id) &&
                       tokenizer_->specials_[id - tokenizer_->ranks_.size()].special;
  return utf8_.push(skipped ? std::string_view() : bytes);
}

}  // namespace halfbyte

#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "halfbyte/error.h"
#include "support/craft.h"

namespace halfbyte {
namespace {

using Ids = std::vector<int32_t>;
const std::filesystem::path kDirectory = HALFBYTE_TEST_DATA "/tokenizer";

BytePairEncoding ranks() {
  return BytePairEncoding::parse(read_text(kDirectory / "tiktoken.model"), "tiktoken.model");
}

TEST(Tokenizer, ReservedSlotsFollowTheRanks) {
  const Tokenizer tokenizer(kDirectory);
  const int32_t base = ranks().size();
  EXPECT_EQ(tokenizer.vocab_size(), base + 256);
  EXPECT_EQ(tokenizer.get_special("<|open|>"), base + 3);
  EXPECT_EQ(tokenizer.bytes_of(base + 8), "<|reserved_token_" + std::to_string(base + 8) + "|>");
  EXPECT_TRUE(tokenizer.is_special(base));
  EXPECT_FALSE(tokenizer.is_special(base - 1));
  // Named past the slots in the file: no id.
  EXPECT_FALSE(tokenizer.find_special("<|im_end|>"));
  EXPECT_THROW(tokenizer.get_special("<|im_end|>"), Error);
  EXPECT_THROW(tokenizer.bytes_of(base + 256), Error);
  EXPECT_THROW(tokenizer.bytes_of(-1), Error);
}

TEST(Tokenizer, OrdinaryTextCannotForgeASpecialToken) {
  const Tokenizer tokenizer(kDirectory);
  const std::string text = "a <|open|> b [BOS] c";
  for (const int32_t id : tokenizer.encode(text)) EXPECT_FALSE(tokenizer.is_special(id));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  const Ids ids = tokenizer.encode_with_specials(text);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer.get_special("<|open|>")), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer.get_special("[BOS]")), 1);
  EXPECT_EQ(tokenizer.decode(ids), text);
}

TEST(Tokenizer, TheLongestSpecialNameWins) {
  const int32_t base = ranks().size();
  const Tokenizer tokenizer(ranks(), {{base, {"<a>", true}}, {base + 1, {"<a><b>", true}}});
  EXPECT_EQ(tokenizer.encode_with_specials("<a><b><a>"), (Ids{base + 1, base}));
}

TEST(Tokenizer, SkippingDropsOnlyWhatIsFlaggedSpecial) {
  const Tokenizer tokenizer(kDirectory);
  const Ids ids = tokenizer.encode_with_specials("[BOS]<|open|>x<|end_of_msg|>");
  EXPECT_EQ(tokenizer.decode(ids, {.skip_special_tokens = true}), "<|open|>x");
  EXPECT_EQ(tokenizer.decode(ids), "[BOS]<|open|>x<|end_of_msg|>");
}

TEST(TokenStream, GivesWholeCharactersOnly) {
  const Tokenizer tokenizer(kDirectory);
  const std::string text = "héllo 🙂 漢字 𪚥!";
  TokenStream stream(tokenizer);
  std::string all;
  for (const int32_t id : tokenizer.encode(text)) {
    const std::string part = stream.push(id);
    EXPECT_EQ(part.find("\xEF\xBF\xBD"), std::string::npos);
    all += part;
  }
  EXPECT_EQ(all + stream.finish(), text);
}

TEST(Tokenizer, BadNamesAreRefused) {
  const int32_t base = ranks().size();
  EXPECT_THROW(Tokenizer(ranks(), {{5, {"<x>", true}}}), Error);
  EXPECT_THROW(Tokenizer(ranks(), {{base, {"<x>", true}}, {base + 1, {"<x>", true}}}), Error);
  const auto directory = std::filesystem::path(testing::TempDir()) / "halfbyte_bad_tokenizer";
  std::filesystem::create_directories(directory);
  write_text(directory / "tiktoken.model", read_text(kDirectory / "tiktoken.model"));
  EXPECT_NO_THROW(Tokenizer{directory});
  for (const std::string bad :
       {R"({"added_tokens_decoder": {"x": {"content": "a"}}})",
        R"({"added_tokens_decoder": {"2200": {"content": ""}}})",
        R"({"added_tokens_decoder": {"2200": {}}})", R"({"added_tokens_decoder": 3})", "{"}) {
    write_text(directory / "tokenizer_config.json", bad);
    EXPECT_THROW(Tokenizer{directory}, Error) << bad;
  }
  // Ids that do not go with the ranks: the message names the file with its directory.
  const std::string place = (directory / "tokenizer_config.json").string();
  write_text(place, R"({"added_tokens_decoder": {"5": {"content": "<x>"}}})");
  EXPECT_NE(message_of([&] {
              Tokenizer{directory};
            }).find(place + ": added_tokens_decoder: id 5 (<x>) is one of the"),
            std::string::npos);
  write_text(place, "{}");
  EXPECT_NE(message_of([&] {
              Tokenizer(directory).get_special("<|absent|>");
            }).find(place + ": added_tokens_decoder: <|absent|> is missing"),
            std::string::npos);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace halfbyte

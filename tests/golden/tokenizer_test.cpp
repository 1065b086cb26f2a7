// Ids and texts of tests/golden/tokenizer, made by tiktoken, must be equal; and, where K3's own
// rank file is at hand, the ids that the published tokenizer gives.
#include "text/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "text/bpe.h"

namespace halfbyte {
namespace {

using Ids = std::vector<int32_t>;
const std::string kDirectory = HALFBYTE_TEST_DATA "/tokenizer";

Ids ids_of(const Json& list) {
  Ids ids;
  for (const Json& id : list.elements()) ids.push_back(static_cast<int32_t>(id.integer()));
  return ids;
}

class TokenizerGolden : public testing::Test {
 protected:
  std::vector<std::vector<Json>> cases(const char* name) const {
    std::vector<std::vector<Json>> all;
    for (const Json& one : expected.root().get(name).elements()) all.push_back(one.elements());
    return all;
  }
  const Tokenizer tokenizer{std::filesystem::path(kDirectory)};
  const JsonDocument expected = JsonDocument::from_file(kDirectory + "/expected.json");
};

TEST_F(TokenizerGolden, OrdinaryText) {
  const auto all = cases("ordinary");
  ASSERT_GT(all.size(), 4000u);
  for (const auto& one : all) {
    const std::string text(one[0].string());
    EXPECT_EQ(tokenizer.encode(text), ids_of(one[1])) << testing::PrintToString(text);
    EXPECT_EQ(tokenizer.decode(ids_of(one[1])), text);
  }
}

// Every byte and, in scrambled order, every pair of bytes (reference.py, pair_tokens): nearly any
// mistake about where a piece begins or ends changes ids.
Tokenizer pair_tokenizer() {
  std::string file;
  auto add = [&, rank = 0](std::string_view bytes) mutable {
    constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint32_t a = static_cast<uint8_t>(bytes[0]);
    const uint32_t b = bytes.size() > 1 ? static_cast<uint8_t>(bytes[1]) : 0;
    fmt::format_to(std::back_inserter(file), "{}{}{}= {}\n", kDigits[a >> 2],
                   kDigits[(a & 3) << 4 | b >> 4], bytes.size() > 1 ? kDigits[(b & 15) << 2] : '=',
                   rank++);
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (uint32_t k = 0; k < 65536; ++k) {
    const uint32_t pair = (k * 40503 + 12345) % 65536;
    add(std::string{static_cast<char>(pair >> 8), static_cast<char>(pair & 255)});
  }
  return {BytePairEncoding::parse(file, "pairs"), {}};
}

TEST_F(TokenizerGolden, BordersOfPieces) {
  const Tokenizer pairs = pair_tokenizer();
  const auto all = cases("pairs");
  ASSERT_EQ(all.size(), 1500u);
  for (const auto& one : all)
    EXPECT_EQ(pairs.encode(one[0].string()), ids_of(one[1]))
        << testing::PrintToString(std::string(one[0].string()));
}

TEST_F(TokenizerGolden, TextWithSpecialTokens) {
  for (const auto& one : cases("specials"))
    EXPECT_EQ(tokenizer.encode_with_specials(one[0].string()), ids_of(one[1])) << one[0].string();
}

TEST_F(TokenizerGolden, BytesThatAreNotUtf8) {
  for (const auto& one : cases("decode")) {
    const Ids ids = ids_of(one[0]);
    EXPECT_EQ(tokenizer.decode(ids), one[1].string()) << testing::PrintToString(ids);
  }
}

// Texts and ids are stored as runs: [what, times]...
TEST_F(TokenizerGolden, LongTextIsCutAsTheReferenceCutsIt) {
  for (const auto& one : cases("long")) {
    std::string text;
    for (const Json& part : one[0].elements())
      for (int64_t i = 0; i < part.elements()[1].integer(); ++i)
        text += part.elements()[0].string();
    Ids ids;
    for (const Json& run : one[1].elements())
      ids.insert(ids.end(), static_cast<size_t>(run.elements()[1].integer()),
                 static_cast<int32_t>(run.elements()[0].integer()));
    EXPECT_TRUE(tokenizer.encode(text) == ids) << text.substr(0, 20);
  }
}

// Teeth: a tokenizer that is slightly wrong does not get through OrdinaryText.
TEST_F(TokenizerGolden, TwoSwappedRanksOrAMissingSplitAreCaught) {
  std::string file = read_text(kDirectory + "/tiktoken.model");
  const auto line = [&](int rank) {
    const size_t end = file.find(fmt::format(" {}\n", rank));
    const size_t begin = file.rfind('\n', end) + 1;
    return std::pair(begin, end - begin);
  };
  const std::string a = file.substr(line(256).first, line(256).second);
  const std::string b = file.substr(line(257).first, line(257).second);
  file.replace(line(257).first, b.size(), a);
  file.replace(line(256).first, a.size(), b);
  const Tokenizer swapped(BytePairEncoding::parse(file, "swapped"), {});
  const BytePairEncoding unsplit_ranks =
      BytePairEncoding::parse(read_text(kDirectory + "/tiktoken.model"), "unsplit");
  int swapped_wrong = 0, unsplit_wrong = 0;
  for (const auto& one : cases("ordinary")) {
    swapped_wrong += swapped.encode(one[0].string()) != ids_of(one[1]);
    Ids unsplit;
    unsplit_ranks.encode(one[0].string(), unsplit);
    unsplit_wrong += unsplit != ids_of(one[1]);
  }
  EXPECT_GT(swapped_wrong, 0);
  EXPECT_GT(unsplit_wrong, 10);
}

TEST(TokenizerK3, GoldenIds) {
  const char* directory = std::getenv("HALFBYTE_K3_TOKENIZER");
  if (directory == nullptr)
    GTEST_SKIP() << "set HALFBYTE_K3_TOKENIZER to a directory with Kimi-K3's tiktoken.model and "
                    "tokenizer_config.json to test the published ids";
  const Tokenizer tokenizer{std::filesystem::path(directory)};
  EXPECT_EQ(tokenizer.vocab_size(), 163840);
  const std::vector<std::pair<std::string, Ids>> published = {
      {"The capital of France is", {1008, 10484, 318, 15383, 387}},
      {"Hello, world!", {19180, 11, 2695, 0}},
      {"Hello\n\nworld  ", {19180, 382, 23617, 256}},
      {"I'M we're they'LL 1234567", {40, 103645, 13810, 1129, 6, 5847, 220, 6694, 12972, 22}},
      {"你好，世界！漢字", {33845, 378, 2243, 856, 1435, 95, 1855}},
      {"Привет — café naïve", {159025, 63694, 4275, 70591, 7915, 44187, 367}},
      {"Tabs\tand\r\nlines\u00a0end", {46154, 58443, 462, 11541, 5406, 517}},
      {"a <|open|> b [BOS] c", {64, 22652, 4454, 91, 29, 291, 793, 33, 4110, 60, 275}},
  };
  for (const auto& [text, ids] : published) EXPECT_EQ(tokenizer.encode(text), ids) << text;
  EXPECT_EQ(tokenizer.encode_with_specials("a <|open|> b [BOS] c"),
            (Ids{64, 220, 163587, 291, 220, 163584, 275}));
}

}  // namespace
}  // namespace halfbyte

#include "text/bpe.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/file.h"
#include "halfbyte/error.h"

namespace halfbyte {
namespace {

using Ids = std::vector<int32_t>;

const std::string& rank_file() {
  static const std::string text = read_text(HALFBYTE_TEST_DATA "/tokenizer/tiktoken.model");
  return text;
}

const BytePairEncoding& small() {
  static const BytePairEncoding bpe = BytePairEncoding::parse(rank_file(), "tiktoken.model");
  return bpe;
}

// The definition: look at all neighbours, merge the leftmost of those with the lowest rank, repeat.
Ids plain(const BytePairEncoding& bpe, std::string_view piece) {
  if (const int32_t id = bpe.find(piece); id >= 0) return {id};
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  for (;;) {
    int32_t best = -1;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i)
      if (const int32_t id = bpe.find(parts[i] + parts[i + 1]);
          id >= 0 && (best < 0 || id < best)) {
        best = id;
        at = i;
      }
    if (best < 0) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<int64_t>(at) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(bpe.find(part));
  return ids;
}

RC_GTEST_PROP(Bpe, MergesAsThePlainLoop, ()) {
  // Tokens of the file side by side, cut at any byte: full of pairs that compete.
  std::string text;
  for (const int32_t id : *rc::gen::container<Ids>(rc::gen::inRange<int32_t>(0, small().size())))
    text += small().token(id);
  const auto begin = *rc::gen::inRange<size_t>(0, text.size() + 1);
  const std::string piece = text.substr(begin);
  RC_PRE(!piece.empty());
  Ids ids;
  small().encode(piece, ids);
  RC_ASSERT(ids == plain(small(), piece));
}

TEST(Bpe, RepeatedBytesMergeFromTheLeft) {
  for (const char c : {'a', ' ', '=', '\n'})
    for (size_t n = 1; n < 200; ++n) {
      Ids ids;
      small().encode(std::string(n, c), ids);
      ASSERT_EQ(ids, plain(small(), std::string(n, c))) << n;
    }
}

TEST(Bpe, ALongPieceTakesNearlyLinearTime) {
  std::string piece;
  while (piece.size() < 1'000'000) piece += "therethenofand";
  Ids ids;
  small().encode(piece, ids);  // n^2 would be hours
  std::string back;
  for (const int32_t id : ids) back += small().token(id);
  EXPECT_EQ(back, piece);
}

std::string message_of(const std::string& file) {
  try {
    BytePairEncoding::parse(file, "tiktoken.model");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    return error.what();
  }
  return "accepted";
}

TEST(Bpe, BadFilesAreRefusedWithTheirLine) {
  const auto contains = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_EQ(message_of(rank_file()), "accepted");
  EXPECT_PRED2(contains, message_of(""), "no token for the single byte 0x00");
  EXPECT_PRED2(contains, message_of("IQ==0\n"), "tiktoken.model:1: expected `base64 rank`");
  EXPECT_PRED2(contains, message_of("IQ== 0\nIg== x\n"), "tiktoken.model:2: the rank is not");
  EXPECT_PRED2(contains, message_of("IQ== 0\nIg== 2\n"), "tiktoken.model:2: rank 2 where 1");
  EXPECT_PRED2(contains, message_of("IQ== -1\n"), "rank -1 where 0");
  EXPECT_PRED2(contains, message_of("IQ== 99999999999999\n"), "the rank is not");
  for (const std::string bad : {"IQ=", "IQ", "I===", "I!==", "IR==", "=IQ=", "", "IQ==IQ=="})
    EXPECT_PRED2(contains, message_of(bad + " 0\n"), "the token is not base64") << bad;
  EXPECT_PRED2(contains, message_of("IQ== 0\nIQ== 1\n"), "ranks 0 and 1 are the same token");
  const std::string cut = rank_file().substr(0, rank_file().size() - 4);
  EXPECT_PRED2(contains, message_of(cut), ": ");
}

}  // namespace
}  // namespace halfbyte

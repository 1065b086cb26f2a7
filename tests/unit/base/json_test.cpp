#include "base/json.h"

#include <gtest/gtest.h>

#include <limits>

#include "halfbyte/error.h"
#include "support/craft.h"

namespace halfbyte {
namespace {

JsonDocument parse(std::string_view text) { return JsonDocument::from_text(text, "c.json"); }

TEST(Json, ReadsEveryTypeExactly) {
  const JsonDocument document = parse(
      R"({"a": null, "b": true, "c": -9223372036854775808, "d": 9223372036854775807, "e": 0.1,
          "f": "x\u00e9\n", "g": [1, [2], {}], "h": {"i": {"j": 16777217}}})");
  const Json root = document.root();
  EXPECT_TRUE(root.get("a").is_null());
  EXPECT_TRUE(root.get("b").boolean());
  EXPECT_EQ(root.get("c").integer(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(root.get("d").integer(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(root.get("e").number(), 0.1);
  EXPECT_EQ(root.get("f").string(), "x\xc3\xa9\n");
  ASSERT_EQ(root.get("g").elements().size(), 3u);
  EXPECT_EQ(root.get("g").elements()[1].elements()[0].integer(), 2);
  EXPECT_EQ(root.get("h").get("i").get("j").integer(), 16777217);
  EXPECT_EQ(root.get("h").get("i").get("j").number(), 16777217.0);
}

TEST(Json, MembersComeInOrder) {
  const JsonDocument document = parse(R"({"z": [1, 2, {"q": 0}], "a": {"b": 1}, "m": 3})");
  std::string keys;
  document.root().for_each_member([&](std::string_view key, const Json&) { keys += key; });
  EXPECT_EQ(keys, "zam");
}

TEST(Json, MessagesNameFileAndPath) {
  const JsonDocument document =
      parse(R"({"a": {"b": [0, {"c": 1.5}]}, "big": 9223372036854775808})");
  const Json a = document.root().get("a");
  EXPECT_EQ(message_of([&] { a.get("x"); }), "c.json: a.x: missing");
  EXPECT_EQ(message_of([&] { document.root().get("x"); }), "c.json: x: missing");
  EXPECT_EQ(message_of([&] { a.get("b").elements()[1].get("c").integer(); }),
            "c.json: a.b[1].c: is a real number, expected an integer");
  EXPECT_EQ(message_of([&] { a.get("b").string(); }),
            "c.json: a.b: is an array, expected a string");
  EXPECT_EQ(message_of([&] { document.root().get("big").integer(); }),
            "c.json: big: 9223372036854775808 is above 2^63 - 1");
}

TEST(Json, NullIsFoundButNotAValue) {
  const JsonDocument document = parse(R"({"a": null})");
  EXPECT_TRUE(document.root().find("a").has_value());
  EXPECT_FALSE(document.root().find_value("a").has_value());
  EXPECT_FALSE(document.root().find("b").has_value());
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"", " ", "{", "{\"a\":}", "[1,]", "{\"a\":1} x", "NaN", "{\"a\": 1e999}",
                           "{\"a\": 18446744073709551616}", "\"\xff\""})
    EXPECT_THROW(parse(text), Error) << text;
  // Depth is bounded: deep nesting is an error, not a crash.
  EXPECT_NO_THROW(parse(std::string(60, '[') + std::string(60, ']')));
  EXPECT_THROW(parse(std::string(100000, '[') + std::string(100000, ']')), Error);
}

TEST(Json, RefusesAKeyGivenTwice) {
  EXPECT_EQ(message_of([] { parse(R"({"a": {"k": 1, "m": 2, "k": 1}})"); }),
            "c.json: a.k: given twice");
  EXPECT_NO_THROW(parse(R"({"a": {"k": 1}, "b": {"k": 1}})"));
}

}  // namespace
}  // namespace halfbyte

#include "text/utf8.h"

#include <gtest/gtest.h>

#include "halfbyte/error.h"

namespace halfbyte {
namespace {

TEST(Utf8, EveryScalarValueGoesThereAndBack) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Unit unit = next_utf8(text);
    ASSERT_EQ(unit.kind, Utf8Unit::Kind::kValid) << std::hex << static_cast<uint32_t>(c);
    ASSERT_EQ(unit.code_point, c);
    ASSERT_EQ(static_cast<size_t>(unit.bytes), text.size());
  }
}

TEST(Utf8, IllFormedTextIsRefusedWithByteAndOffset) {
  for (const std::string bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE4\xBD", "\xF0\x9F\x99"}) {
    try {
      decode_utf8("ab" + bad, "prompt");
      ADD_FAILURE() << "accepted " << testing::PrintToString(bad);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      EXPECT_NE(std::string(error.what()).find("prompt: is not UTF-8: byte 0x"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("at offset 2"), std::string::npos);
    }
  }
}

TEST(Utf8Stream, HoldsBackWhatIsNotCompleteYet) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0"), "a");
  EXPECT_EQ(stream.push("\x9F"), "");
  EXPECT_EQ(stream.push("\x99\x82!"), "\xF0\x9F\x99\x82!");
  EXPECT_EQ(stream.push("\xE4\xBD"), "");
  EXPECT_EQ(stream.push("x"), "\xEF\xBF\xBDx");
  EXPECT_EQ(stream.push("\xE4"), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace halfbyte

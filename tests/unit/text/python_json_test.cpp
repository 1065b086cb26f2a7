#include "text/python_json.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "halfbyte/error.h"

namespace halfbyte {
namespace {

std::string dump(const std::string& text, PythonJsonStyle style = {}) {
  return to_python_json(JsonDocument::from_text(text, "test").root(), style);
}

// Pairs written by Python 3.11: json.loads of the first, json.dumps of that.
TEST(PythonJson, NumbersAreSpelledAsPythonSpellsThem) {
  const std::pair<const char*, const char*> cases[] = {
      {"0", "0"},
      {"-7", "-7"},
      {"9223372036854775807", "9223372036854775807"},
      {"0.0", "0.0"},
      {"-0.0", "-0.0"},
      {"1.0", "1.0"},
      {"1e0", "1.0"},
      {"-2.25", "-2.25"},
      {"0.1", "0.1"},
      {"0.0001", "0.0001"},
      {"0.00012345", "0.00012345"},
      {"0.00001", "1e-05"},
      {"9.999e-5", "9.999e-05"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"123456789012345680.0", "1.2345678901234568e+17"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"5e-324", "5e-324"},
      {"9007199254740993.0", "9007199254740992.0"},
      {"9999999999999998.0", "9999999999999998.0"},
      {"99999999999999990.0", "9.999999999999998e+16"},
      {"1e22", "1e+22"},
      {"1e100", "1e+100"},
      {"100.0", "100.0"},
      {"123.456", "123.456"},
      {"12345678.9", "12345678.9"},
  };
  for (const auto& [from, to] : cases) EXPECT_EQ(dump(from), to) << from;
  EXPECT_THROW(dump("9223372036854775808"), Error);
}

TEST(PythonJson, StringsKeepWhatIsNotAscii) {
  EXPECT_EQ(dump(R"("é漢\ud83d\ude42 \"\\\/\b\f\n\r\t\u0001\u007f")"),
            "\"é漢🙂 \\\"\\\\/\\b\\f\\n\\r\\t\\u0001\x7f\"");
}

TEST(PythonJson, TwoStyles) {
  const std::string text = R"({"b":[1,{"z":null,"a":true}],"a":{},"é":[],"Z":"x"})";
  EXPECT_EQ(dump(text), R"({"b": [1, {"z": null, "a": true}], "a": {}, "é": [], "Z": "x"})");
  EXPECT_EQ(dump(text, kSortedCompactJson),
            R"({"Z":"x","a":{},"b":[1,{"a":true,"z":null}],"é":[]})");
}

}  // namespace
}  // namespace halfbyte

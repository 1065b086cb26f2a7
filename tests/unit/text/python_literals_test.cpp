#include "text/python_literals.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace halfbyte {
namespace {

using Texts = std::vector<std::string>;

TEST(PythonLiterals, AdjacentLiteralsAreOne) {
  EXPECT_EQ(python_literals("f(\"a\" 'b'\n  # a comment \"no\"\n  \"c\", \"d\")"),
            (Texts{"abc", "d"}));
  EXPECT_EQ(python_literals("x = \"a\" \\\n \"b\"\ny = 'c'"), (Texts{"ab", "c"}));
  EXPECT_EQ(python_literals("\"a\" + \"b\""), (Texts{"a", "b"}));
}

TEST(PythonLiterals, QuotesPrefixesAndEscapes) {
  EXPECT_EQ(python_literals(R"("it's" '"' """a"b
c""" '''d''')"),
            (Texts{"it's\"a\"b\ncd"}));
  EXPECT_EQ(python_literals(R"(x("a\tb\\\"\x41\u00e9\U0001f642\101\
z\q"))"),
            (Texts{"a\tb\\\"Aé🙂Az\\q"}));
  EXPECT_EQ(python_literals(R"(r"a\n\"" )"), (Texts{"a\\n\\\""}));
  EXPECT_EQ(python_literals("b'x', Rb'y', not_a_prefix'z'"), (Texts{"x", "y", "z"}));
}

TEST(PythonLiterals, FormattedTextHasPlaceholders) {
  const std::string hole(1, kPlaceholder);
  EXPECT_EQ(python_literals("f\"a{x!r}b{{c}}\" \"{d}\""), (Texts{"a" + hole + "b{c}{d}"}));
}

TEST(PythonLiterals, WhatIsNotPythonGivesLess) {
  for (const std::string bad : {"\"", "'''", "\"\\", "f\"{", "\"\\x4\"", "\"\\N{DASH}\"",
                                "\"\\ud800\"", "\"a\nb", "r\"\\", "#"})
    EXPECT_NO_THROW(python_literals(bad)) << bad;
}

}  // namespace
}  // namespace halfbyte

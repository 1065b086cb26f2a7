// The splitter against its plain twin: the eight alternatives written down as a list of steps and
// matched by trying everything, as a backtracking engine does.
#include "text/splitter.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "halfbyte/error.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace halfbyte {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(std::string_view text) {
  Pieces pieces;
  for_each_piece(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

Pieces slices(std::string_view text, SliceLimits limits) {
  Pieces parts;
  for_each_slice(
      text, [&](std::string_view slice) { parts.emplace_back(slice); }, limits);
  return parts;
}

// ---- The twin.

using Accepts = std::function<bool(char32_t)>;
struct Step {
  Accepts accepts;
  size_t least, most;
};
struct Alternative {
  std::vector<Step> steps;
  bool suffix = false;  // then (?i:'s|'t|'re|'ve|'m|'ll|'d)?
};
constexpr size_t kMany = ~size_t{0};

Accepts in(int bits) {
  return [bits](char32_t c) { return (char_class(c) & bits) != 0; };
}
Accepts one_of(std::u32string set) {
  return [set](char32_t c) { return set.find(c) != std::u32string::npos; };
}

// 1 to 6; the twin does 7 and 8, which look ahead, itself.
const std::vector<Alternative>& alternatives() {
  static const Accepts prefix = [](char32_t c) {
    return c != '\r' && c != '\n' && !(char_class(c) & (kLetter | kNumber));
  };
  static const Accepts other = [](char32_t c) {
    return !(char_class(c) & (kSpace | kLetter | kNumber));
  };
  static const std::vector<Alternative> all = {
      {{{in(kHan), 1, kMany}}},
      {{{prefix, 0, 1}, {in(kUpper), 0, kMany}, {in(kLower), 1, kMany}}, true},
      {{{prefix, 0, 1}, {in(kUpper), 1, kMany}, {in(kLower), 0, kMany}}, true},
      {{{in(kNumber), 1, 3}}},
      {{{one_of(U" "), 0, 1}, {other, 1, kMany}, {one_of(U"\r\n"), 0, kMany}}},
      {{{in(kSpace), 0, kMany}, {one_of(U"\r\n"), 1, kMany}}},
  };
  return all;
}

size_t after_suffix(const std::u32string& text, size_t at) {
  for (const std::u32string suffix : {U"'s", U"'t", U"'re", U"'ve", U"'m", U"'ll", U"'d"}) {
    size_t same = 0;
    while (same < suffix.size() && at + same < text.size()) {
      const char32_t c = text[at + same] == 0x17F ? U's' : text[at + same];
      if (c != suffix[same] && !(c >= 'A' && c <= 'Z' && c + 32 == suffix[same])) break;
      ++same;
    }
    if (same == suffix.size()) return at + same;
  }
  return at;
}

// Greedy with backtracking: one past the first match that a regex engine would find, or 0.
size_t match(const std::u32string& text, size_t at, const Alternative& wanted, size_t step = 0) {
  if (step == wanted.steps.size()) return wanted.suffix ? after_suffix(text, at) : at;
  const auto& [accepts, least, most] = wanted.steps[step];
  size_t count = 0;
  while (count < most && at + count < text.size() && accepts(text[at + count])) ++count;
  for (; count >= least; --count) {
    if (const size_t end = match(text, at + count, wanted, step + 1)) return end;
    if (count == 0) break;
  }
  return 0;
}

Pieces twin(const std::string& text8) {
  const std::u32string text = decode_utf8(text8, "text");
  Pieces pieces;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = 0;
    for (const Alternative& alternative : alternatives())
      if ((end = match(text, begin, alternative)) > 0) break;
    if (end == 0) {
      size_t run = begin;
      while (run < text.size() && (char_class(text[run]) & kSpace)) ++run;
      EXPECT_GT(run, begin) << "nothing matches";
      end = run == text.size() || run == begin + 1 ? run : run - 1;
    }
    std::string piece;
    for (; begin < end; ++begin) append_utf8(piece, text[begin]);
    pieces.push_back(piece);
  }
  return pieces;
}

rc::Gen<std::string> texts() {
  static const std::u32string kAlphabet =
      U"aAzsStTrReEvVmlLdD'' \t\n\r\u00a0.!1\u00bd\u0661\u4f60\u3005\u3007\u2e80\u02b0\u00aa\u01c5"
      U"\u0301\u017f\u212a\u3042\U0001f642\x1c";
  return rc::gen::map(rc::gen::container<std::vector<char32_t>>(rc::gen::elementOf(kAlphabet)),
                      [](const std::vector<char32_t>& points) {
                        std::string text;
                        for (const char32_t c : points) append_utf8(text, c);
                        return text;
                      });
}

RC_GTEST_PROP(Splitter, SplitsAsItsPlainTwin, ()) {
  const std::string text = *texts();
  RC_ASSERT(split(text) == twin(text));
}

// ---- By hand.

TEST(Splitter, EachAlternative) {
  EXPECT_EQ(split("I'M we're they'LL 1234567"),
            (Pieces{"I'M", " we're", " they'LL", " ", "123", "456", "7"}));
  EXPECT_EQ(split("Hello\n\nworld  "), (Pieces{"Hello", "\n\n", "world", "  "}));
  EXPECT_EQ(split("a   b"), (Pieces{"a", "  ", " b"}));
  EXPECT_EQ(split("a   1"), (Pieces{"a", "  ", " ", "1"}));
  EXPECT_EQ(split(" \n \n  x"), (Pieces{" \n \n", " ", " x"}));
  EXPECT_EQ(split("ok!?\r\n\nx"), (Pieces{"ok", "!?\r\n\n", "x"}));
  EXPECT_EQ(split("漢字kana"), (Pieces{"漢字", "kana"}));
  EXPECT_EQ(split("McCAFÉ"), (Pieces{"Mc", "CAFÉ"}));
  EXPECT_EQ(split("ABあCD"), (Pieces{"ABあ", "CD"}));  // U* gives back
  EXPECT_EQ(split(""), Pieces{});
}

TEST(Splitter, SuffixesFoldTheLongS) {
  EXPECT_EQ(split("it'ſ"), Pieces{"it'ſ"});
  EXPECT_EQ(split("it'x"), (Pieces{"it", "'x"}));
}

TEST(Splitter, TextThatIsNotUtf8IsRefused) {
  EXPECT_THROW(split("a\xFF"), Error);
  EXPECT_THROW(slices("a\xFF", {}), Error);
}

TEST(Splitter, SlicesByLengthAndByRun) {
  EXPECT_EQ(slices("abcdefgh", {.code_points = 3, .run = 100}), (Pieces{"abc", "def", "gh"}));
  EXPECT_EQ(slices("äöüäöü", {.code_points = 4, .run = 100}), (Pieces{"äöüä", "öü"}));
  EXPECT_EQ(slices("abcdef gh", {.code_points = 100, .run = 3}), (Pieces{"abc", "def gh"}));
  EXPECT_EQ(slices("ab     c", {.code_points = 100, .run = 3}), (Pieces{"ab   ", "  c"}));
  EXPECT_EQ(slices("a\x1c\x1c\x1cz", {.code_points = 100, .run = 2}),
            (Pieces{"a\x1c\x1c", "\x1cz"}));
  // A cut by length begins a new run.
  EXPECT_EQ(slices("abcdef", {.code_points = 4, .run = 3}), (Pieces{"abc", "d", "ef"}));
  EXPECT_EQ(slices("", {}), Pieces{});
}

// Runs that make a backtracking engine quadratic: 400,000 code points of each take milliseconds
// here, minutes if one of them costs n^2.
TEST(Splitter, LongRunsTakeLinearTime) {
  const auto began = std::chrono::steady_clock::now();
  for (const std::string unit : {"A", "\u0301A", "あA", " ", "\n ", " \n", "\u0301", "!", "!\u0301",
                                 "'", "a'", "1", "漢", "\u02b0", "A\u0301!"}) {
    std::string text;
    while (text.size() < 400'000) text += unit;
    for (const std::string& tail : {std::string(), std::string("x"), std::string("1")}) {
      std::string all;
      for_each_piece(text + tail, [&](std::string_view piece) { all += piece; });
      EXPECT_EQ(all, text + tail);
    }
  }
  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_LT(std::chrono::duration<double>(took).count(), 20.0);
}

}  // namespace
}  // namespace halfbyte

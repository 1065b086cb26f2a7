#include "text/splitter.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace halfbyte {

namespace {

constexpr uint8_t kOther = kSpace | kLetter | kNumber;  // none of these: alternative 5

// The code points of one slice with their classes; `end` functions return one past the match, or 0.
class Matcher {
 public:
  explicit Matcher(std::u32string text) : text_(std::move(text)), classes_(text_.size()) {
    std::transform(text_.begin(), text_.end(), classes_.begin(), char_class);
  }

  size_t size() const { return text_.size(); }
  char32_t operator[](size_t i) const { return text_[i]; }

  // One past the piece that begins at `begin`.
  size_t piece_end(size_t begin) const {
    for (const auto alternative : {&Matcher::han, &Matcher::word, &Matcher::number,
                                   &Matcher::punctuation, &Matcher::white_space})
      if (const size_t end = (this->*alternative)(begin)) return end;
    HB_CHECK(!"every code point is a letter, a number, white space or something else");
  }

 private:
  bool is(size_t i, uint8_t bits) const { return i < size() && (classes_[i] & bits) != 0; }
  bool is_newline(size_t i) const { return i < size() && (text_[i] == '\r' || text_[i] == '\n'); }
  size_t run(size_t begin, uint8_t bits) const {
    while (is(begin, bits)) ++begin;
    return begin;
  }

  // Alternative 1.
  size_t han(size_t begin) const { return is(begin, kHan) ? run(begin, kHan) : 0; }

  // Alternatives 2 and 3, each with the optional first character, then without.
  size_t word(size_t begin) const {
    const bool prefix = !is(begin, kLetter | kNumber) && !is_newline(begin);
    if (prefix)
      if (const size_t end = lower_word(begin + 1)) return contraction(end);
    if (const size_t end = lower_word(begin)) return contraction(end);
    if (prefix)
      if (const size_t end = upper_word(begin + 1)) return contraction(end);
    if (const size_t end = upper_word(begin)) return contraction(end);
    return 0;
  }

  // U* L+
  size_t lower_word(size_t begin) const {
    const size_t uppers = run(begin, kUpper);
    if (is(uppers, kLower)) return run(uppers, kLower);
    // U* gives back until L+ can begin: at the last of its characters that is in L too. L+ ends
    // there, because what follows is in U alone.
    for (size_t i = uppers; i > begin; --i)
      if (is(i - 1, kLower)) return i;
    return 0;
  }

  // U+ L*
  size_t upper_word(size_t begin) const {
    return is(begin, kUpper) ? run(run(begin, kUpper), kLower) : 0;
  }

  // One past 's 't 're 've 'm 'll 'd at `begin`, in either case, or `begin` itself.
  size_t contraction(size_t begin) const {
    if (begin >= size() || text_[begin] != '\'') return begin;
    const auto folded = [&](size_t i) -> char32_t {
      if (i >= size()) return 0;
      if (text_[i] == 0x017F)
        return 's';  // the one letter outside ASCII that folds to one of these
      return text_[i] >= 'A' && text_[i] <= 'Z' ? text_[i] + 32 : text_[i];
    };
    const char32_t first = folded(begin + 1), second = folded(begin + 2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return begin + 2;
    const bool pair = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                      (first == 'l' && second == 'l');
    return pair ? begin + 3 : begin;
  }

  // Alternative 4.
  size_t number(size_t begin) const {
    size_t end = begin;
    while (end < begin + 3 && is(end, kNumber)) ++end;
    return end > begin ? end : 0;
  }

  // Alternative 5.
  size_t punctuation(size_t begin) const {
    const size_t first = text_[begin] == ' ' ? begin + 1 : begin;
    size_t end = first;
    while (end < size() && !is(end, kOther)) ++end;
    if (end == first) return 0;
    while (is_newline(end)) ++end;
    return end;
  }

  // Alternatives 6, 7 and 8: up to the last newline of the run if it has one; else all of it at the
  // end of the text; else all but its last character, unless that is all there is.
  size_t white_space(size_t begin) const {
    const size_t end = run(begin, kSpace);
    for (size_t i = end; i > begin; --i)
      if (is_newline(i - 1)) return i;
    return end == size() || end <= begin + 1 ? end : end - 1;
  }

  std::u32string text_;
  std::vector<uint8_t> classes_;
};

size_t utf8_bytes(char32_t code_point) {
  return code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
}

}  // namespace

void for_each_slice(std::string_view text, const std::function<void(std::string_view)>& visit,
                    SliceLimits limits) {
  const std::u32string code_points = decode_utf8(text, "text");
  size_t begin_byte = 0, byte = 0, run = 0;
  bool run_is_space = false;
  for (size_t i = 0; i < code_points.size(); ++i) {
    const bool is_space = (char_class(code_points[i]) & kPythonSpace) != 0;
    const bool first = i % limits.code_points == 0;
    run = !first && is_space == run_is_space ? run + 1 : 1;
    run_is_space = is_space;
    if (first || run > limits.run) {
      if (byte > begin_byte) visit(text.substr(begin_byte, byte - begin_byte));
      begin_byte = byte;
      run = 1;
    }
    byte += utf8_bytes(code_points[i]);
  }
  if (byte > begin_byte) visit(text.substr(begin_byte));
}

void for_each_piece(std::string_view slice, const std::function<void(std::string_view)>& visit) {
  const Matcher matcher(decode_utf8(slice, "text"));
  size_t byte = 0;
  for (size_t begin = 0; begin < matcher.size();) {
    const size_t end = matcher.piece_end(begin);
    size_t bytes = 0;
    for (; begin < end; ++begin) bytes += utf8_bytes(matcher[begin]);
    visit(slice.substr(byte, bytes));
    byte += bytes;
  }
}

}  // namespace halfbyte

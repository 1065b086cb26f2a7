#include "text/python_literals.h"

#include <cctype>
#include <charconv>
#include <optional>

#include "text/utf8.h"

namespace halfbyte {

namespace {

class Scanner {
 public:
  explicit Scanner(std::string_view source) : source_(source) {}

  std::vector<std::string> run() {
    while (at_ < source_.size()) {
      const char c = source_[at_];
      if (c == '#') {
        skip_comment();
      } else if (c == '"' || c == '\'') {
        literal("");
      } else if (std::isalnum(static_cast<uint8_t>(c)) || c == '_') {
        word();
      } else {
        if (!std::isspace(static_cast<uint8_t>(c)) && c != '\\') adjacent_ = false;
        ++at_;
      }
    }
    return std::move(literals_);
  }

 private:
  char peek(size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\n';
  }
  void skip_comment() {
    while (at_ < source_.size() && source_[at_] != '\n') ++at_;
  }

  // A name or a number; or the prefix of a literal.
  void word() {
    const size_t begin = at_;
    while (std::isalnum(static_cast<uint8_t>(peek())) || peek() == '_') ++at_;
    const std::string_view text = source_.substr(begin, at_ - begin);
    const bool quoted = peek() == '"' || peek() == '\'';
    if (quoted && text.size() <= 2 && text.find_first_not_of("rRbBuUfF") == std::string_view::npos)
      literal(text);
    else
      adjacent_ = false;
  }

  void literal(std::string_view prefix) {
    const bool raw = prefix.find_first_of("rR") != std::string_view::npos;
    const bool formatted = prefix.find_first_of("fF") != std::string_view::npos;
    const char quote = peek();
    const bool triple = peek(1) == quote && peek(2) == quote;
    at_ += triple ? 3 : 1;
    std::string text;
    for (;;) {
      if (at_ >= source_.size() || (!triple && peek() == '\n')) return abandon();
      if (peek() == quote && (!triple || (peek(1) == quote && peek(2) == quote))) break;
      if (peek() == '\\' && raw) {
        text += source_.substr(at_, 2);
        at_ += 2;
      } else if (peek() == '\\') {
        if (!escape(text)) return abandon();
      } else if (formatted && (peek() == '{' || peek() == '}') && peek(1) == peek()) {
        text += peek();
        at_ += 2;
      } else if (formatted && peek() == '{') {
        const size_t end = source_.find('}', at_);
        if (end == std::string_view::npos) return abandon();
        text += kPlaceholder;
        at_ = end + 1;
      } else {
        text += source_[at_++];
      }
    }
    at_ += triple ? 3 : 1;
    if (adjacent_)
      literals_.back() += text;
    else
      literals_.push_back(std::move(text));
    adjacent_ = true;
  }

  void abandon() { adjacent_ = false; }

  // The escape at `at_`. False if it cannot be decoded.
  bool escape(std::string& text) {
    static constexpr std::string_view kFrom = "abfnrtv\\'\"\n", kTo = "\a\b\f\n\r\t\v\\'\"";
    const char kind = peek(1);
    at_ += 2;
    if (kind == 'x') return code_point(text, 2, 16);
    if (kind == 'u') return code_point(text, 4, 16);
    if (kind == 'U') return code_point(text, 8, 16);
    if (kind == 'N') return false;
    if (kind >= '0' && kind <= '7') {
      --at_;
      size_t digits = 1;
      while (digits < 3 && peek(digits) >= '0' && peek(digits) <= '7') ++digits;
      return code_point(text, digits, 8);
    }
    const size_t known = kFrom.find(kind);
    if (known == std::string_view::npos)
      (text += '\\') += kind;
    else if (known < kTo.size())  // a newline continues the line
      text += kTo[known];
    return true;
  }

  bool code_point(std::string& text, size_t digits, int base) {
    uint32_t value = 0;
    const std::string_view number = source_.substr(std::min(at_, source_.size()), digits);
    const auto [end, status] =
        std::from_chars(number.data(), number.data() + number.size(), value, base);
    if (status != std::errc() || end != number.data() + digits || value > 0x10FFFF ||
        (value >= 0xD800 && value < 0xE000))
      return false;
    append_utf8(text, value);
    at_ += digits;
    return true;
  }

  std::string_view source_;
  size_t at_ = 0;
  bool adjacent_ = false;  // nothing but white space and comments since the last literal
  std::vector<std::string> literals_;
};

}  // namespace

std::vector<std::string> python_literals(std::string_view source) { return Scanner(source).run(); }

}  // namespace halfbyte

// UTF-8: one code point at a time, and decoding that never fails.
//
// Well-formed as in the Unicode Standard, table 3-7: no overlong forms, no surrogates, nothing
// above U+10FFFF. Ill-formed bytes are replaced as Python's errors="replace" does and the standard
// recommends: one U+FFFD for each longest prefix of a well-formed sequence, else for each byte.
// Checked against Python in tests/golden/tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace halfbyte {

// What stands at the beginning of a byte string.
struct Utf8Unit {
  enum class Kind {
    kValid,       // `code_point`, in `bytes` bytes
    kInvalid,     // `bytes` bytes that no continuation can make well-formed
    kIncomplete,  // the string ends inside a sequence that is well-formed so far
  };
  Kind kind = Kind::kInvalid;
  char32_t code_point = 0;
  int bytes = 0;
};

Utf8Unit next_utf8(std::string_view bytes);  // `bytes` is not empty

void append_utf8(std::string& text, char32_t code_point);  // a Unicode scalar value

// Throws Error{kInput} at `where` with the offset and value of the first byte that is not UTF-8.
std::u32string decode_utf8(std::string_view text, const std::string& where);

// Bytes in pieces -> text in pieces: holds back a sequence that is not complete yet.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string finish();  // what was held back, as U+FFFD; the stream may be used again

 private:
  std::string held_;  // at most 3 bytes
};

}  // namespace halfbyte

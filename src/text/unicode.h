// Character classes of K3's split rule, one bit each (specs of the rule: text/splitter.h).
//
// Unicode 16, as tiktoken's regex engine has it; tables by scripts/make_unicode_tables.py.
#pragma once

#include <cstdint>

namespace halfbyte {

enum CharClass : uint8_t {
  kHan = 1,           // \p{Han}
  kUpper = 2,         // \p{Lu} \p{Lt} \p{Lm} \p{Lo} \p{M}, without \p{Han}
  kLower = 4,         // \p{Ll} \p{Lm} \p{Lo} \p{M}, without \p{Han}
  kLetter = 8,        // \p{L}
  kNumber = 16,       // \p{N}
  kSpace = 32,        // \s: White_Space
  kPythonSpace = 64,  // str.isspace: White_Space and U+001C..U+001F
};

uint8_t char_class(char32_t code_point);  // 0 above U+10FFFF

}  // namespace halfbyte

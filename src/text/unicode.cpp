#include "text/unicode.h"

namespace halfbyte {

namespace {
#include "text/unicode_tables.inc"
}

uint8_t char_class(char32_t code_point) {
  if (code_point > 0x10FFFF) return 0;
  const int block = kUnicodeIndex[code_point / kUnicodeBlock];
  return kUnicodeBlocks[block * kUnicodeBlock + static_cast<int>(code_point % kUnicodeBlock)];
}

}  // namespace halfbyte

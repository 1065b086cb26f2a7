// The string literals of a Python source file, without running it.
//
// Literals that stand side by side are one, as in Python. Prefixes r b u f and their pairs, all
// four quotes, all escapes but \N{...}. An f-string's {expression} becomes kPlaceholder. Text that
// is not well-formed Python gives fewer literals, never an error.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace halfbyte {

inline constexpr char kPlaceholder = '\0';

std::vector<std::string> python_literals(std::string_view source);

}  // namespace halfbyte

// JSON out as Python's json.dumps(..., ensure_ascii=False) writes it, byte for byte: prompts hold
// JSON, and models were trained on Python's spelling of it.
//
// Real numbers are written as Python's repr (shortest digits; an exponent below 1e-4 and from
// 1e16). Integers outside int64 are refused (base/json.h). Checked against Python's own output.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace halfbyte {

struct PythonJsonStyle {
  bool sorted_keys = false;  // at every level, by code point
  std::string_view comma = ", ";
  std::string_view colon = ": ";
};
inline constexpr PythonJsonStyle kSortedCompactJson = {true, ",", ":"};

std::string to_python_json(const Json& value, PythonJsonStyle style = {});
std::string python_json_string(std::string_view text);  // quoted and escaped

}  // namespace halfbyte

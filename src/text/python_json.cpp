#include "text/python_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

namespace halfbyte {

namespace {

void append_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20)
          fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
        else
          out += c;
    }
  out += '"';
}

// repr(value): d.ddde[+-]xx from to_chars, moved into Python's layout.
void append_real(std::string& out, double value) {
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<size_t>(end.ptr - buffer));
  if (text.starts_with('-')) {
    out += '-';
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  const char* digits_begin = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits_begin, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out += text.substr(0, e);
    fmt::format_to(std::back_inserter(out), "e{}{:02}", exponent < 0 ? '-' : '+',
                   std::abs(exponent));
    return;
  }
  std::string digits(text.substr(0, 1));
  if (e > 2) digits += text.substr(2, e - 2);
  if (exponent < 0) {
    out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
    return;
  }
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) digits.append(whole - digits.size(), '0').append("0");
  out += digits.substr(0, whole) + "." + digits.substr(whole);
}

void append(std::string& out, const Json& value, const PythonJsonStyle& style) {
  switch (value.type()) {
    case Json::Type::kNull:
      out += "null";
      break;
    case Json::Type::kBool:
      out += value.boolean() ? "true" : "false";
      break;
    case Json::Type::kInteger:
      fmt::format_to(std::back_inserter(out), "{}", value.integer());
      break;
    case Json::Type::kReal:
      append_real(out, value.number());
      break;
    case Json::Type::kString:
      append_string(out, value.string());
      break;
    case Json::Type::kArray: {
      out += '[';
      bool first = true;
      for (const Json& element : value.elements()) {
        if (!std::exchange(first, false)) out += style.comma;
        append(out, element, style);
      }
      out += ']';
      break;
    }
    case Json::Type::kObject: {
      std::vector<std::pair<std::string_view, Json>> members;
      value.for_each_member(
          [&](std::string_view key, Json member) { members.emplace_back(key, member); });
      // NOTE: UTF-8 sorts by bytes as it sorts by code points.
      if (style.sorted_keys)
        std::sort(members.begin(), members.end(),
                  [](const auto& a, const auto& b) { return a.first < b.first; });
      out += '{';
      bool first = true;
      for (const auto& [key, member] : members) {
        if (!std::exchange(first, false)) out += style.comma;
        append_string(out, key);
        out += style.colon;
        append(out, member, style);
      }
      out += '}';
      break;
    }
  }
}

}  // namespace

std::string to_python_json(const Json& value, PythonJsonStyle style) {
  std::string out;
  append(out, value, style);
  return out;
}

std::string python_json_string(std::string_view text) {
  std::string out;
  append_string(out, text);
  return out;
}

}  // namespace halfbyte

#include "text/utf8.h"

#include <fmt/format.h>

#include <utility>

#include "halfbyte/error.h"

namespace halfbyte {

Utf8Unit next_utf8(std::string_view bytes) {
  using Kind = Utf8Unit::Kind;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Kind::kValid, lead, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Kind::kInvalid, 0, 1};

  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // NOTE: only the second byte has bounds of its own; they keep out overlong forms and surrogates.
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  char32_t code_point = lead & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Kind::kIncomplete, 0, static_cast<int>(i)};
    if (byte(i) < low || byte(i) > high) return {Kind::kInvalid, 0, static_cast<int>(i)};
    code_point = code_point << 6 | (byte(i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Kind::kValid, code_point, static_cast<int>(length)};
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  const auto tail = [&](int shift) { put(0x80 | (code_point >> shift & 0x3F)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6), tail(0);
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12), tail(6), tail(0);
  } else {
    put(0xF0 | code_point >> 18), tail(12), tail(6), tail(0);
  }
}

std::u32string decode_utf8(std::string_view text, const std::string& where) {
  std::u32string code_points;
  code_points.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = next_utf8(text.substr(i));
    if (unit.kind != Utf8Unit::Kind::kValid)
      throw Error(ErrorKind::kInput, where,
                  fmt::format("is not UTF-8: byte 0x{:02X} at offset {}",
                              static_cast<uint8_t>(text[i]), i));
    code_points.push_back(unit.code_point);
    i += static_cast<size_t>(unit.bytes);
  }
  return code_points;
}

namespace {
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
}

std::string Utf8Stream::push(std::string_view bytes) {
  const std::string joined = std::exchange(held_, {}).append(bytes);
  const std::string_view all = joined;
  std::string text;
  for (size_t i = 0; i < all.size();) {
    const Utf8Unit unit = next_utf8(all.substr(i));
    if (unit.kind == Utf8Unit::Kind::kIncomplete) {
      held_ = all.substr(i);
      break;
    }
    const size_t length = static_cast<size_t>(unit.bytes);
    text += unit.kind == Utf8Unit::Kind::kValid ? all.substr(i, length) : kReplacement;
    i += length;
  }
  return text;
}

std::string Utf8Stream::finish() {
  return std::string(std::exchange(held_, {}).empty() ? std::string_view() : kReplacement);
}

}  // namespace halfbyte

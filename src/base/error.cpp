#include "halfbyte/error.h"

#include <utility>

namespace halfbyte {

namespace {
std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  return text;
}
}  // namespace

Error::Error(ErrorKind kind, std::string where, std::string message)
    : std::runtime_error(one_line(where.empty() ? message : where + ": " + message)),
      kind_(kind),
      where_(one_line(std::move(where))),
      message_(one_line(std::move(message))) {}

}  // namespace halfbyte

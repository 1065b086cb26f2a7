// The one exception type of the library.
//
// Thrown when something is opened, planned, packed, bound or submitted; never from a running step.
// `message` is one line: the field, what came, what was expected and, where it helps, what would
// work. `where` names the file, tensor or argument, and may be empty.
#pragma once

#include <stdexcept>
#include <string>

namespace halfbyte {

enum class ErrorKind {
  kInput,        // a file, a configuration or an argument is wrong
  kUnsupported,  // valid, but not something this build or this device can run
  kResource,     // memory, disk or a device is missing or full
  kInternal,     // our own mistake (HB_CHECK)
};

class Error : public std::runtime_error {
 public:
  // Control characters, which names out of files may hold, become '?'.
  Error(ErrorKind kind, std::string where, std::string message);

  ErrorKind kind() const { return kind_; }
  const std::string& where() const { return where_; }
  const std::string& message() const { return message_; }

 private:
  ErrorKind kind_;
  std::string where_;
  std::string message_;
};

}  // namespace halfbyte

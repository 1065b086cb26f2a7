// Runs the binary under test and keeps what it says.
#pragma once

#include <string>
#include <vector>

namespace halfbyte {

struct ProcessResult {
  int status = -1;  // the exit status; 128 + the signal that killed it
  std::string out, err;
};

enum class Streams { kApart, kTogether };

// HALFBYTE_BINARY with these arguments and `input` as its standard input. Together: both outputs go
// into one file, `out`.
ProcessResult run_halfbyte(const std::vector<std::string>& arguments, const std::string& input = {},
                           Streams streams = Streams::kApart);

}  // namespace halfbyte

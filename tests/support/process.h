// Runs the binary under test and keeps what it says.
#pragma once

#include <string>
#include <vector>

namespace halfbyte {

struct ProcessResult {
  int status = -1;  // the exit status; 128 + the signal that killed it
  std::string out, err;
};

// HALFBYTE_BINARY with these arguments and `input` as its standard input.
ProcessResult run_halfbyte(const std::vector<std::string>& arguments,
                           const std::string& input = {});

}  // namespace halfbyte

// A fuzz target is a function of bytes: FUZZ_TARGET(name) { ... use `data` ... }, one in a file
// fuzz_NAME.cpp. Two programs are made of it: with libFuzzer (preset fuzz, ./check fuzz), and one
// that replays the files of tests/fuzz/corpus/NAME in every test run (replay.cpp).
//
// Input may be refused, with an Error of kind kInput or kUnsupported and a message of one line.
// Whatever else happens is a fault and ends the program: another exception, another kind, a crash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "halfbyte/error.h"

template <class Target>
void refuse_or_finish(const Target& target, std::string_view data) {
  using halfbyte::ErrorKind;
  try {
    target(data);
  } catch (const halfbyte::Error& error) {
    const bool input = error.kind() == ErrorKind::kInput || error.kind() == ErrorKind::kUnsupported;
    const bool one_line = error.message().find('\n') == std::string::npos;
    if (input && one_line) return;
    std::fprintf(stderr, "not how input is refused: %s\n", error.what());
    std::abort();
  }
}

#define FUZZ_TARGET(name)                                                    \
  static void fuzz_##name(std::string_view data);                            \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) { \
    const char* text = reinterpret_cast<const char*>(bytes);                 \
    refuse_or_finish(fuzz_##name, std::string_view(text, size));             \
    return 0;                                                                \
  }                                                                          \
  static void fuzz_##name(std::string_view data)

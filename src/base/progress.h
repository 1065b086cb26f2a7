// One line that shows how far a long piece of work is: bytes done and in all, speed, time left.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>

namespace halfbyte {

std::string format_bytes(int64_t bytes);     // "512 B", "4.10 GB": powers of 1000
std::string format_seconds(double seconds);  // "9 s", "3:07", "2:05:09"

// The line for `done` of `total` bytes after `seconds`, at most `width` columns.
std::string progress_line(const std::string& label, int64_t done, int64_t total, double seconds,
                          int width);

// Draws that line on a terminal, at most ten times a second, and removes it at the end. Does
// nothing if `out` is no terminal. `set` may be called from any thread.
class Progress {
 public:
  Progress(std::string label, std::FILE* out);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  void set(int64_t done, int64_t total);

 private:
  std::string label_;
  std::FILE* out_;
  bool visible_;
  std::chrono::steady_clock::time_point began_, drawn_;
  std::mutex mutex_;
};

}  // namespace halfbyte

#include "base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace halfbyte {
namespace {

constexpr int kDefaultWidth = 80;
constexpr int kBarWidth = 24;
constexpr auto kRedrawAfter = std::chrono::milliseconds(100);

int terminal_width(std::FILE* out) {
  winsize size{};
  if (::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kDefaultWidth;
}

}  // namespace

std::string format_bytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  const int digits = value < 9.995 ? 2 : (value < 99.95 ? 1 : 0);
  return fmt::format("{:.{}f} {}", value, digits, kUnits[unit]);
}

std::string format_seconds(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string progress_line(const std::string& label, int64_t done, int64_t total, double seconds,
                          int width) {
  const double part =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0)
                : 1.0;
  const auto filled = static_cast<size_t>(part * kBarWidth);
  std::string line =
      fmt::format("{} [{}{}] {} of {}", label, std::string(filled, '#'),
                  std::string(kBarWidth - filled, ' '), format_bytes(done), format_bytes(total));
  if (done > 0 && seconds > 0) {
    const double speed = static_cast<double>(done) / seconds;
    line += fmt::format(", {}/s, {} left", format_bytes(static_cast<int64_t>(speed)),
                        format_seconds(static_cast<double>(total - done) / speed));
  }
  return line.substr(0, static_cast<size_t>(std::max(width, 0)));
}

Progress::Progress(std::string label, std::FILE* out)
    : label_(std::move(label)),
      out_(out),
      visible_(::isatty(::fileno(out)) == 1),
      began_(std::chrono::steady_clock::now()),
      drawn_(began_) {}

Progress::~Progress() {
  if (!visible_) return;
  std::fputs("\r\033[K", out_);
  std::fflush(out_);
}

void Progress::set(int64_t done, int64_t total) {
  if (!visible_) return;
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (now - drawn_ < kRedrawAfter) return;
  drawn_ = now;
  const double seconds = std::chrono::duration<double>(now - began_).count();
  fmt::print(out_, "\r{}\033[K",
             progress_line(label_, done, total, seconds, terminal_width(out_) - 1));
  std::fflush(out_);
}

}  // namespace halfbyte

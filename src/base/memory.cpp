#include "base/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "base/progress.h"
#include "halfbyte/error.h"

namespace halfbyte {

namespace fs = std::filesystem;

namespace {

// The number after a word, in files such as /proc/meminfo; an empty word: the first number.
std::optional<double> number_in(const fs::path& path, std::string_view name) {
  std::ifstream file(path);
  std::string word;
  double number = 0;
  if (name.empty()) return file >> number ? std::optional(number) : std::nullopt;
  while (file >> word)
    if (word == name) return file >> number ? std::optional(number) : std::nullopt;
  return std::nullopt;
}

// What a control group leaves; nothing: no limit.
std::optional<double> left_in(const fs::path& group) {
  const auto most = number_in(group / "memory.max", "");  // or the word "max"
  const auto used = number_in(group / "memory.current", "");
  if (!most || !used) return std::nullopt;
  const double reclaimable = number_in(group / "memory.stat", "inactive_file").value_or(0);
  return std::max(0.0, *most - *used + reclaimable);
}

}  // namespace

std::optional<double> available_memory(const fs::path& proc, const fs::path& cgroup) {
  std::optional<double> available = number_in(proc / "meminfo", "MemAvailable:");
  if (available) *available *= 1024;
  const auto limit = [&](const fs::path& group) {
    const auto left = left_in(group);
    if (left) available = std::min(available.value_or(*left), *left);
  };
  // The group is named as 0::/its/path; every group above it has a limit of its own.
  std::string name;
  std::ifstream groups(proc / "self" / "cgroup");
  for (std::string line; std::getline(groups, line);)
    if (line.starts_with("0::/")) name = line.substr(4);
  for (fs::path group = name; !group.empty(); group = group.parent_path()) limit(cgroup / group);
  limit(cgroup);
  return available;
}

void require_memory(const std::string& where, double bytes, std::string_view mends) {
  const std::optional<double> available = available_memory();
  if (!available || bytes <= *available) return;
  throw Error(ErrorKind::kResource, where,
              fmt::format("needs {} of memory, {} are available: {} would work",
                          format_bytes(static_cast<int64_t>(std::min(bytes, 9e18))),
                          format_bytes(static_cast<int64_t>(*available)), mends));
}

}  // namespace halfbyte

// How much memory this process can still have.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace halfbyte {

// Bytes: what the kernel calls available, or less where a control group leaves less (version 2;
// pages that it can take back count as free). `proc` and `cgroup` are for tests.
std::optional<double> available_memory(const std::filesystem::path& proc = "/proc",
                                       const std::filesystem::path& cgroup = "/sys/fs/cgroup");

// Throws Error{kResource} at `where` if fewer than `bytes` are available; `mends` says what would
// work.
void require_memory(const std::string& where, double bytes, std::string_view mends);

}  // namespace halfbyte

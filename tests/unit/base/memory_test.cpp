#include "base/memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/file.h"
#include "halfbyte/error.h"
#include "support/temp_directory.h"

namespace halfbyte {
namespace {

class AvailableMemory : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(proc() / "self");
    std::filesystem::create_directories(cgroup() / "a/b");
    write_text(proc() / "meminfo", "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:  2000 kB\n");
    write_text(proc() / "self/cgroup", "1:name=old:/else\n0::/a/b\n");
  }
  void group(const std::string& name, const std::string& max, const std::string& current,
             const std::string& inactive = "0") {
    write_text(cgroup() / name / "memory.max", max + "\n");
    write_text(cgroup() / name / "memory.current", current + "\n");
    write_text(cgroup() / name / "memory.stat", "anon 7\ninactive_file " + inactive + "\n");
  }
  std::filesystem::path proc() const { return directory / "proc"; }
  std::filesystem::path cgroup() const { return directory / "cgroup"; }
  std::optional<double> available() const { return available_memory(proc(), cgroup()); }

  TempDirectory directory;
};

TEST_F(AvailableMemory, IsWhatTheKernelSays) { EXPECT_EQ(available(), 2000 * 1024); }

TEST_F(AvailableMemory, OrWhatTheTightestGroupLeaves) {
  group("a/b", "max", "5");
  EXPECT_EQ(available(), 2000 * 1024);
  group("a/b", "900000", "500000", "100000");
  EXPECT_EQ(available(), 500000);
  group("a", "700000", "600000");
  EXPECT_EQ(available(), 100000);
  group(".", "50", "70");
  EXPECT_EQ(available(), 0);
}

TEST_F(AvailableMemory, MayBeUnknown) {
  EXPECT_EQ(available_memory("/nowhere", "/nowhere"), std::nullopt);
}

TEST(RequireMemory, RefusesWhatNoMachineHas) {
  require_memory("a", 4096, "less");
  try {
    require_memory("a", 1e17, "less");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    EXPECT_NE(std::string(error.what()).find("a: needs 100"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace halfbyte

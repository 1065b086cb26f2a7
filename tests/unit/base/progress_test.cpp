#include "base/progress.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "support/temp_directory.h"

namespace halfbyte {
namespace {

TEST(Progress, FormatsBytesAndTimes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "1.00 kB");
  EXPECT_EQ(format_bytes(9'999), "10.0 kB");
  EXPECT_EQ(format_bytes(999'600), "1.00 MB");
  EXPECT_EQ(format_bytes(74'600'000'000), "74.6 GB");
  EXPECT_EQ(format_bytes(1'560'000'000'000'000), "1560 TB");
  EXPECT_EQ(format_seconds(8.6), "9 s");
  EXPECT_EQ(format_seconds(187), "3:07");
  EXPECT_EQ(format_seconds(7509), "2:05:09");
}

TEST(Progress, LineSaysHowFarHowFastHowLong) {
  EXPECT_EQ(progress_line("converting", 2'000'000'000, 8'000'000'000, 10, 200),
            "converting [######                  ] 2.00 GB of 8.00 GB, 200 MB/s, 30 s left");
  EXPECT_EQ(progress_line("x", 0, 8'000, 0, 200), "x [                        ] 0 B of 8.00 kB");
  EXPECT_EQ(progress_line("converting", 1, 2, 1, 10), "converting");
  EXPECT_EQ(progress_line("x", 5, 0, 0, 200), "x [########################] 5 B of 0 B");
}

TEST(Progress, IsQuietOnWhatIsNoTerminal) {
  TempDirectory directory;
  const std::string path = (directory / "log").string();
  std::FILE* file = std::fopen(path.c_str(), "w");
  {
    Progress progress("converting", file);
    progress.set(1, 2);
  }
  std::fclose(file);
  EXPECT_EQ(std::filesystem::file_size(path), 0u);
}

}  // namespace
}  // namespace halfbyte

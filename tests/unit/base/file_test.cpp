#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "halfbyte/error.h"
#include "support/craft.h"
#include "support/temp_directory.h"

namespace halfbyte {
namespace {

TEST(AtomicFile, KeepsTheOrderOfSmallAndLargePieces) {
  TempDirectory directory;
  std::string expected;
  {
    AtomicFile file(directory / "f");
    for (const size_t bytes : {1u, 70'000u, 0u, 200'000u, 3u, 1'000'000u, 262'143u, 262'144u, 5u}) {
      const std::string piece(bytes, static_cast<char>('a' + bytes % 26));
      file.write(piece.data(), piece.size());
      expected += piece;
    }
    EXPECT_FALSE(std::filesystem::exists(directory / "f"));
    file.commit();
  }
  EXPECT_EQ(read_text(directory / "f"), expected);
  EXPECT_FALSE(std::filesystem::exists(directory / "f.partial"));
}

TEST(AtomicFile, WritesAtPlacesInAnyOrderBesideTheStream) {
  TempDirectory directory;
  AtomicFile file(directory / "f");
  file.write("head", 4);
  file.write_at(7, "xyz", 3);
  file.write_at(4, "abc", 3);
  file.commit();
  EXPECT_EQ(read_text(directory / "f"), "headabcxyz");
}

TEST(AtomicFile, WithoutCommitTheOldFileStays) {
  TempDirectory directory;
  write_text(directory / "f", "old");
  { AtomicFile(directory / "f").write("new", 3); }
  EXPECT_EQ(read_text(directory / "f"), "old");
  EXPECT_FALSE(std::filesystem::exists(directory / "f.partial"));
}

TEST(AtomicFile, SaysWhyItCannotWrite) {
  TempDirectory directory;
  EXPECT_NE(message_of([&] {
              AtomicFile(directory / "absent/f");
            }).find("absent/f.partial: cannot be created: No such file or directory"),
            std::string::npos);
  // A device that is always full stands for a full disk.
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP();
  std::filesystem::create_symlink("/dev/full", directory / "f.partial");
  AtomicFile file(directory / "f");
  const std::string piece(1 << 20, 'x');
  EXPECT_NE(message_of([&] { file.write(piece.data(), piece.size()); }).find("No space left"),
            std::string::npos);
}

// A rename would put a file in place of /dev/null.
TEST(AtomicFile, ReplacesNothingButFiles) {
  TempDirectory directory;
  std::filesystem::create_directory(directory / "folder");
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/null", directory / "link");
  for (const char* name : {"folder", "pipe", "link", ""})
    EXPECT_NE(message_of([&] { AtomicFile(directory / name); }).find("is no place for a file"),
              std::string::npos)
        << name;
  EXPECT_EQ(message_of([] { AtomicFile(""); }), "\"\": is no place for a file");
  EXPECT_FALSE(std::filesystem::exists(directory / "pipe.partial"));
}

TEST(MappedFile, DoesNotWaitForAPipe) {
  TempDirectory directory;
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  EXPECT_NE(message_of([&] { MappedFile(directory / "pipe"); }).find("is not a regular file"),
            std::string::npos);
}

TEST(MappedFile, MapsWholeFilesAndEmptyOnes) {
  TempDirectory directory;
  write_text(directory / "f", "abc");
  MappedFile file(directory / "f");
  const MappedFile moved = std::move(file);
  ASSERT_EQ(moved.bytes().size(), 3u);
  EXPECT_EQ(static_cast<char>(moved.bytes()[2]), 'c');
  write_text(directory / "empty", "");
  EXPECT_EQ(MappedFile(directory / "empty").bytes().size(), 0u);
  EXPECT_EQ(read_text(directory / "empty"), "");
  EXPECT_THROW(MappedFile(directory.path()), Error);
  EXPECT_THROW(MappedFile(directory / "absent"), Error);
}

}  // namespace
}  // namespace halfbyte

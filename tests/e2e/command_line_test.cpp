// What the command line says when it is not understood: one line that names what came.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "support/process.h"
#include "support/temp_directory.h"

namespace halfbyte {
namespace {

using Words = std::vector<std::string>;

void expect_line(const Words& words, int status, const std::string& part) {
  const ProcessResult result = run_halfbyte(words);
  EXPECT_EQ(result.status, status) << result.err;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  EXPECT_NE(result.err.find("halfbyte: " + part), std::string::npos)
      << result.err << "expected: " << part;
}

TEST(CommandLine, UnknownCommandsAreNamedWithThoseThatThereAre) {
  const std::string all = "run, compare, inspect, logits, convert, tokenize, moe, bench";
  expect_line({"foo"}, 2, "\"foo\" is no command, expected " + all);
  expect_line({"foo", "--bar"}, 2, "\"foo\" is no command, expected " + all);
  expect_line({"--bar"}, 2, "\"--bar\" is no command, expected " + all);
  expect_line({}, 2, "a command is needed: one of " + all);
  expect_line({"inspect", "a", "b"}, 2, "The following argument was not expected: b");
}

TEST(CommandLine, EmptyPlacesAreNamedByTheirOption) {
  const std::string model = HALFBYTE_TEST_DATA "/k3-tiny-bf16";
  const std::string moe = HALFBYTE_TEST_DATA "/moe-op/swiglu_t1.safetensors";
  expect_line({"run", "--model-path", "", "--ids", "1"}, 2, "--model-path: is empty");
  expect_line({"tokenize", "--model-path", "", "--text", "a"}, 2, "--model-path: is empty");
  expect_line({"logits", "--model-path", "", "--ids", "1", "--out", "x"}, 2,
              "--model-path: is empty");
  expect_line({"logits", "--model-path", model, "--ids", "1", "--out", ""}, 2, "--out: is empty");
  expect_line({"compare", "--model-path", model, "--ids-file", ""}, 2, "--ids-file: is empty");
  expect_line({"moe", "--case", "", "--out", "x"}, 2, "--case: is empty");
  expect_line({"moe", "--case", moe, "--out", ""}, 2, "--out: is empty");
  expect_line({"inspect", ""}, 2, "directory: is empty");
  expect_line({"convert", "", "x"}, 2, "in: is empty");
  expect_line({"convert", model, ""}, 2, "out: is empty");
}

TEST(CommandLine, ALoopOfLinksIsOneLine) {
  TempDirectory directory;
  const std::string loop = (directory / "loop").string();
  std::filesystem::create_directory_symlink("loop", loop);
  expect_line({"inspect", loop}, 1, loop + ": Too many levels of symbolic links\n");
  expect_line({"tokenize", "--model-path", loop, "--text", "a"}, 1, loop + "/");
  expect_line({"moe", "--case", loop, "--out", "x"}, 1,
              loop + ": cannot be opened: Too many levels of symbolic links\n");
}

TEST(CommandLine, MoreTokensThanAnyContextHoldsAreRefused) {
  const ProcessResult result =
      run_halfbyte({"run", "--model-path", HALFBYTE_TEST_DATA "/k3-tiny-bf16", "--ids", "1",
                    "--max-new-tokens", "2000000000"});
  EXPECT_EQ(result.status, 2);
  for (const char* part : {"--max-new-tokens", "2000000000", "1048576"})
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

}  // namespace
}  // namespace halfbyte

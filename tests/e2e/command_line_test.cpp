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
  expect_line({"inspect", "a", "b"}, 2, "inspect: \"b\" is not expected");
}

TEST(CommandLine, UnknownOptionsAreNamedWithTheNearest) {
  const std::string model = HALFBYTE_TEST_DATA "/k3-tiny-bf16";
  const std::string meant = "run has no option --max_new_tokens: is --max-new-tokens meant?";
  expect_line({"run", "--model-path", model, "--ids", "1", "--max_new_tokens", "3"}, 2, meant);
  expect_line({"run", "--max_new_tokens=3", "--model-path", model, "--ids", "1"}, 2, meant);
  expect_line({"run", "--max_new_tokens", "3", "--model-path", model, "--ids", "1"}, 2, meant);
  expect_line({"run", "--modelpath", model}, 2,
              "run has no option --modelpath: is --model-path meant?");
  expect_line({"run", model, "--abacus"}, 2, "run has no option --abacus (");
  expect_line({"run", model, "--ids", "1", "--ids", "2"}, 2, "--ids: is given more than once");
}

TEST(CommandLine, TheModelByNameOrByPlace) {
  const std::string model = HALFBYTE_TEST_DATA "/k3-tiny-bf16";
  const Words tail = {"--ids", "1", "--max-new-tokens", "2"};
  Words by_place = {"run", model}, by_name = {"run", "--model-path", model};
  by_place.insert(by_place.end(), tail.begin(), tail.end());
  by_name.insert(by_name.end(), tail.begin(), tail.end());
  EXPECT_EQ(run_halfbyte(by_place).status, 0);
  EXPECT_EQ(run_halfbyte(by_place).out, run_halfbyte(by_name).out);
  EXPECT_EQ(run_halfbyte({"inspect", model}).out,
            run_halfbyte({"inspect", "--model-path", model}).out);
}

TEST(CommandLine, WhatIsNoCheckpointsDirectoryIsSaidInTheSameWords) {
  TempDirectory directory;
  const std::string out = (directory / "out").string(), file = HALFBYTE_BINARY;
  for (const std::string& place : {std::string("/nowhere"), file}) {
    const std::string message = place + ": is not a directory; expected a checkpoint's directory";
    expect_line({"run", place, "--ids", "1"}, 1, message);
    expect_line({"inspect", place}, 1, message);
    expect_line({"tokenize", place, "--text", "a"}, 1, message);
    expect_line({"logits", place, "--ids", "1", "--out", out}, 1, message);
    expect_line({"compare", place, "--ids-file", out}, 1, message);
    expect_line({"convert", place, out}, 1, message);
  }
  expect_line({"convert", HALFBYTE_TEST_DATA "/k3-tiny-bf16", "/proc/x"}, 1,
              "/proc/x: cannot be made a directory: ");
}

TEST(CommandLine, MoreThreadsThanProcessorsAreToldOnce) {
  const Words words = {"moe",   "--case",      HALFBYTE_TEST_DATA "/moe-op/swiglu_t1.safetensors",
                       "--out", "/dev/null/x", "--threads"};
  const auto with = [&](const std::string& threads) {
    Words all = words;
    all.push_back(threads);
    return run_halfbyte(all).err;
  };
  const std::string warning = "--threads 1024: more than the processors here";
  const std::string err = with("1024");
  EXPECT_NE(err.find(warning), std::string::npos) << err;
  EXPECT_EQ(err.find(warning), err.rfind(warning)) << err;
  EXPECT_EQ(with("1").find("more than the processors"), std::string::npos);
  EXPECT_NE(with("1025").find("not in range 0 to 1024"), std::string::npos);
  EXPECT_EQ(run_halfbyte({"bench", "roof", "--threads", "1025"}).status, 2);
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
  expect_line({"inspect", ""}, 2, "--model-path: is empty");
  expect_line({"convert", "", "x"}, 2, "in: is empty");
  expect_line({"convert", model, ""}, 2, "out: is empty");
}

TEST(CommandLine, ALoopOfLinksIsOneLine) {
  TempDirectory directory;
  const std::string loop = (directory / "loop").string();
  std::filesystem::create_directory_symlink("loop", loop);
  expect_line({"inspect", loop}, 1, loop + ": Too many levels of symbolic links\n");
  expect_line({"tokenize", "--model-path", loop, "--text", "a"}, 1, loop + ": Too many levels");
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

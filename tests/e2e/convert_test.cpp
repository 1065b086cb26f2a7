// `halfbyte convert` as a user runs it, and as a user kills it.
#include "support/convert.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "support/craft.h"
#include "support/process.h"
#include "support/temp_directory.h"

namespace halfbyte {
namespace {

TEST(ConvertCommand, ConvertsReportsAndInspectsClean) {
  TempDirectory directory;
  const std::string out = (directory / "out").string();
  const ProcessResult converted =
      run_halfbyte({"convert", HALFBYTE_TEST_DATA "/k3-tiny-mxfp4", out, "--to", "modelopt-nvfp4"});
  EXPECT_EQ(converted.status, 0) << converted.err;
  EXPECT_NE(converted.out.find("exact, codes unchanged"), std::string::npos) << converted.out;
  // No bar where there is no terminal.
  EXPECT_EQ((converted.out + converted.err).find('\r'), std::string::npos);
  const auto report = nlohmann::json::parse(read_text(out + ".report.json"));
  EXPECT_EQ(report["summary"]["mxfp4_blocks_of_16"]["exact"], 24576);
  EXPECT_EQ(report["matrices"].size(), 192u + 66u);
  const ProcessResult inspected = run_halfbyte({"inspect", out});
  EXPECT_EQ(inspected.status, 0) << inspected.out;
  // Again into the same place: refused, in one line.
  const ProcessResult again = run_halfbyte({"convert", HALFBYTE_TEST_DATA "/k3-tiny-mxfp4", out});
  EXPECT_EQ(again.status, 1);
  EXPECT_EQ(std::ranges::count(again.err, '\n'), 1) << again.err;
}

TEST(ConvertCommand, SaysWhatIsWrongInOneLine) {
  TempDirectory directory;
  const std::string out = (directory / "out").string();
  ProcessResult result = run_halfbyte({"convert", (directory / "absent").string(), out});
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("absent/config.json"), std::string::npos) << result.err;
  result = run_halfbyte({"convert", HALFBYTE_TEST_DATA "/k3-tiny-nvfp4", out});
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("quantised already"), std::string::npos) << result.err;
  const std::string in = HALFBYTE_TEST_DATA "/k3-tiny-bf16";
  result = run_halfbyte({"convert", in, out, "--scale", "best"});
  EXPECT_NE(result.status, 0);
  EXPECT_NE(result.err.find("four-over-six"), std::string::npos) << result.err;
  result = run_halfbyte({"convert", in, out, "--report", "/nowhere/report.json"});
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.err, "halfbyte: --report: /nowhere/report.json is no place for a file\n");
  EXPECT_FALSE(std::filesystem::exists(out));
}

// A checkpoint that takes about a second with one thread and --scale mse: six layers of eight
// experts, 64 x 512 each matrix.
void write_slow_checkpoint(const std::filesystem::path& directory) {
  std::filesystem::create_directory(directory);
  write_text(directory / "config.json",
             R"({"num_hidden_layers": 6, "num_experts": 8, "num_experts_per_token": 2})");
  std::mt19937 random(5);
  std::vector<CraftedTensor> tensors;
  for (int layer = 0; layer < 6; ++layer)
    for (int expert = 0; expert < 8; ++expert)
      for (const std::string name : {"w1", "w2", "w3"}) {
        CraftedTensor tensor{"model.layers." + std::to_string(layer) +
                                 ".block_sparse_moe.experts." + std::to_string(expert) + "." +
                                 name + ".weight",
                             DType::kBf16,
                             {name == "w2" ? 512 : 64, name == "w2" ? 64 : 512},
                             ""};
        for (int i = 0; i < 512 * 64; ++i) {
          const auto bits = static_cast<uint16_t>(0x3C00 + random() % 0x300 + (random() % 2 << 15));
          tensor.bytes += static_cast<char>(bits & 255);
          tensor.bytes += static_cast<char>(bits >> 8);
        }
        tensors.push_back(std::move(tensor));
      }
  write_safetensors(directory / "model.safetensors", tensors);
}

pid_t start_converting(const std::string& in, const std::string& out) {
  const pid_t child = fork();
  if (child != 0) return child;
  const int null = open("/dev/null", O_WRONLY);
  dup2(null, 1);
  dup2(null, 2);
  execl(HALFBYTE_BINARY, "halfbyte", "convert", in.c_str(), out.c_str(), "--threads", "1",
        "--scale", "mse", "--max-shard-size", "600000", static_cast<char*>(nullptr));
  _exit(127);
}

TEST(ConvertCommand, KilledAtAnyTimeItLeavesNoCheckpointAndTheNextRunIsWhole) {
  TempDirectory directory;
  write_slow_checkpoint(directory / "in");
  const std::string in = (directory / "in").string(), out = (directory / "out").string();
  int killed_midway = 0;
  for (const int shards_before : {0, 1, 2, 4}) {
    const pid_t child = start_converting(in, out);
    const auto finished_shards = [&] {
      int count = 0;
      std::error_code gone;
      for (const auto& entry : std::filesystem::directory_iterator(out + ".partial", gone))
        count += entry.path().extension() == ".safetensors";
      return count;
    };
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!(std::filesystem::exists(out + ".partial") && finished_shards() >= shards_before) &&
           std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    killed_midway += WIFSIGNALED(status);
    EXPECT_FALSE(std::filesystem::exists(out));
    // What is left is named for what it is, and does not open.
    EXPECT_NE(message_of([&] { Checkpoint checkpoint(out + ".partial"); }), "");
    EXPECT_FALSE(std::filesystem::exists(out + ".partial/config.json"));
  }
  EXPECT_EQ(killed_midway, 4);  // else the test did not test

  for (const std::string& place : {out, out + "2"})
    EXPECT_EQ(
        run_halfbyte({"convert", in, place, "--max-shard-size", "600000", "--scale", "mse"}).status,
        0);
  EXPECT_TRUE(bytes_of_directory(out) == bytes_of_directory(out + "2"));
  EXPECT_FALSE(std::filesystem::exists(out + ".partial"));
}

// Two at once into the same place: the second one is refused and harms nothing.
TEST(ConvertCommand, ASecondConversionIntoTheSamePlaceIsRefused) {
  TempDirectory directory;
  write_slow_checkpoint(directory / "in");
  const std::string in = (directory / "in").string(), out = (directory / "out").string();
  const pid_t child = start_converting(in, out);
  const auto has_begun = [&] {
    std::error_code absent;
    for (const auto& entry : std::filesystem::directory_iterator(out + ".partial", absent))
      if (entry.path().filename().string().starts_with("model-")) return true;
    return std::filesystem::exists(out);
  };
  while (!has_begun()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const ProcessResult second = run_halfbyte({"convert", in, out});
  EXPECT_EQ(second.status, 1);
  EXPECT_NE(second.err.find("another conversion writes here"), std::string::npos) << second.err;
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(expert_modules(Checkpoint(out)).size(), 144u);
}

}  // namespace
}  // namespace halfbyte

// `halfbyte convert` as a user runs it, and as a user kills it.
#include "support/convert.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/craft.h"
#include "support/edited_model.h"
#include "support/process.h"
#include "support/temp_directory.h"
#include "support/tiny_model.h"

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
  EXPECT_NE(result.err.find("absent: is not a directory"), std::string::npos) << result.err;
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

// A conversion succeeds only if `inspect` has nothing against the result; else nothing is written,
// not even the folders above it.
TEST(ConvertCommand, RefusesWhatInspectWouldRefuseAfterwards) {
  const std::string layer = "language_model.model.layers.3.";
  const auto expect = [](auto&& change, const std::string& part) {
    EditedModel model("k3-tiny-bf16");
    change(model);
    const std::string in = model.write().string();
    TempDirectory directory;
    const std::string out = (directory / "new/folder/out").string();
    const std::string report = (directory / "report.json").string();
    const ProcessResult result = run_halfbyte({"convert", in, out, "--report", report});
    EXPECT_EQ(result.status, 1) << part;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err << "expected: " << part;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << part;
  };
  expect([&](EditedModel& m) { m.erase(layer + "self_attn.o_proj.weight"); },
         "tensor " + layer + "self_attn.o_proj.weight is missing\n");
  expect(
      [](EditedModel& m) {
        std::erase_if(m.tensors, [](const CraftedTensor& tensor) {
          return tensor.name.find(".experts.") != std::string::npos;
        });
      },
      "has no routed experts");
  expect([](EditedModel& m) { m.config["text_config"]["num_experts_per_token"] = 9; },
         "num_experts_per_token: is 9, more than num_experts = 8");
  for (const std::string name : {"self_attn.q_a_proj.weight", "block_sparse_moe.gate.weight",
                                 "block_sparse_moe.experts.1.w2.weight"})
    expect([&](EditedModel& m) { m.at(layer + name).dtype = DType::kF16; },
           "tensor " + layer + name + ": is F16; halfbyte runs");
  // Found only while it is written.
  expect([&](EditedModel& m) { m.set<uint16_t>(layer + "self_attn.q_a_proj.weight", 9, 0x7F80); },
         "the value [0, 9] is inf");
}

// F32 experts cannot be run as they are; NVFP4 ones can.
TEST(ConvertCommand, ConvertsF32ExpertsAndSaysWhatItLeavesOut) {
  EditedModel model("k3-tiny-bf16");
  for (CraftedTensor& tensor : model.tensors) {
    if (tensor.name.find(".experts.") == std::string::npos) continue;
    std::string wide;
    for (size_t i = 0; i < tensor.bytes.size(); i += 2) {
      wide.append(2, '\0');
      wide.append(tensor.bytes, i, 2);
    }
    tensor.bytes = wide;
    tensor.dtype = DType::kF32;
  }
  model.tensors.push_back(
      {"language_model.model.layers.9.self_attn.q_proj.weight", DType::kBf16, {2, 2}, ""});
  const std::string in = model.write().string();
  TempDirectory directory;
  const std::string out = (directory / "out").string();
  const ProcessResult result = run_halfbyte({"convert", in, out, "--keep-experts", "4"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("layers left out                  1             8 B"),
            std::string::npos)
      << result.out;
  const auto report = nlohmann::json::parse(read_text(out + ".report.json"));
  EXPECT_EQ(report["summary"]["layers_left_out"]["tensors"], 1);
  EXPECT_EQ(report["summary"]["layers_left_out"]["bytes"], 8);
  EXPECT_EQ(report["summary"]["experts_left_out"]["tensors"], 8 * 4 * 3);
  EXPECT_EQ(report["summary"]["experts_left_out"]["bytes"], 8 * 4 * 3 * 64 * 32 * 4);
  const ProcessResult inspected = run_halfbyte({"inspect", out});
  EXPECT_EQ(inspected.status, 0) << inspected.out;
}

// A checkpoint that takes about a second with one thread and --scale mse: six layers of eight
// experts, 64 x 512 each matrix.
void write_slow_checkpoint(const std::filesystem::path& directory) {
  nlohmann::ordered_json config = golden_config("kimi-linear-tiny");
  config["moe_intermediate_size"] = 512;
  write_tiny_model(directory, config, 5);
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

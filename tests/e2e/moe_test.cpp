// `halfbyte moe` and `halfbyte bench` as a user runs them.
#include "support/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "halfbyte/device.h"
#include "support/process.h"
#include "support/temp_directory.h"

namespace halfbyte {
namespace {

const std::string kCases = HALFBYTE_TEST_DATA "/moe-op/";

std::vector<float> floats(const StoredTensor& tensor) {
  return {tensor.as<float>(), tensor.as<float>() + tensor.elements()};
}

TEST(MoeCommand, WritesWhatTheGoldenCaseExpectsOnEveryDevice) {
  TempDirectory directory;
  for (const std::string& device : available_devices()) {
    const std::string out = (directory.path() / "y.safetensors").string();
    const ProcessResult result =
        run_halfbyte({"moe", "--case", kCases + "situ_unequal_t33.safetensors", "--device", device,
                      "--out", out, "--threads", "2"});
    ASSERT_EQ(result.status, 0) << result.err;
    const SafetensorsFile written(out), golden(kCases + "situ_unequal_t33.safetensors");
    EXPECT_EQ(written.get("y").shape, (std::vector<int64_t>{33, 144}));
    EXPECT_LE(
        testing_moe::relative_l2(floats(written.get("y")), floats(golden.get("expected_h_bf16"))),
        2e-4)
        << device;
  }
}

TEST(MoeCommand, BadInputIsOneLine) {
  TempDirectory directory;
  const std::string out = (directory.path() / "y.safetensors").string();
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"moe", "--case", "missing.safetensors", "--out", out},
        {"moe", "--case", kCases + "swiglu_t1.safetensors", "--out", out, "--device", "tpu"},
        {"moe", "--case", kCases + "swiglu_t1.safetensors", "--out", out, "--device", "cuda:255"},
        {"moe", "--case", kCases + "swiglu_t1.safetensors", "--out", out, "--backend", "tpu"},
        {"moe", "--case", kCases + "swiglu_t1.safetensors", "--out", out, "--device", "ref",
         "--backend", "cpu"},
        {"moe", "--case", HALFBYTE_TEST_DATA "/k3-tiny-bf16/expected.safetensors", "--out", out},
        {"bench", "moe", "--shape", "k4"}}) {
    const ProcessResult result = run_halfbyte(arguments);
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.err.rfind("halfbyte: ", 0), 0u) << result.err;
  }
}

TEST(BenchCommand, WhatCannotBeMeasuredIsRefusedBeforeItIsAllocated) {
  const auto expect_refused = [](const std::vector<std::string>& words, const std::string& part) {
    const ProcessResult result = run_halfbyte(words);
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  };
  expect_refused({"bench", "moe", "--shape", "k3", "--experts", "10000000"},
                 "bench moe: needs 186 TB of memory");
  expect_refused({"bench", "dense", "--shape", "10000000x1000000"}, "bench dense: needs");
  expect_refused({"bench", "moe", "--tokens", "1,,2"}, "--tokens: \"\" at place 1 is no number");
  expect_refused({"bench", "moe", "--tokens", "1,65537"},
                 "--tokens: is 65537, expected 1 to 65536");
}

TEST(BenchCommand, JsonRecordsCarryDeviceVersionAndTheRoof) {
  const ProcessResult result =
      run_halfbyte({"bench", "moe", "--shape", "64x32x4x2", "--tokens", "1,3", "--repetitions", "3",
                    "--json", "--threads", "1"});
  ASSERT_EQ(result.status, 0) << result.err;
  std::vector<nlohmann::json> records;
  for (size_t at = 0; at < result.out.size();) {
    const size_t end = result.out.find('\n', at);
    records.push_back(nlohmann::json::parse(result.out.substr(at, end - at)));
    at = end + 1;
  }
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1]["tokens"], 3);
  for (const nlohmann::json& record : records) {
    EXPECT_GT(record["seconds"].get<double>(), 0);
    EXPECT_GT(record["probe_bytes_per_s"].get<double>(), 0);
    EXPECT_TRUE(record["busy"].is_boolean());
    EXPECT_GT(record["peak_flops_per_s"].get<double>(), 0);
    EXPECT_FALSE(record["version"].get<std::string>().empty());
    EXPECT_NE(record["device"].get<std::string>().find("1 thread"), std::string::npos);
  }
}

}  // namespace
}  // namespace halfbyte

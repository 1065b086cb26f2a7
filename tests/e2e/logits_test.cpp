// `halfbyte logits` as a user runs it.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "formats/safetensors.h"
#include "support/golden_model.h"
#include "support/temp_directory.h"

namespace halfbyte {
namespace {

struct Outcome {
  int status = -1;
  std::string out;
};

Outcome logits(const std::string& arguments) {
  Outcome outcome;
  FILE* pipe =
      popen((std::string(HALFBYTE_BINARY) + " logits " + arguments + " 2>&1").c_str(), "r");
  char buffer[4096];
  while (const size_t got = fread(buffer, 1, sizeof buffer, pipe)) outcome.out.append(buffer, got);
  const int raw = pclose(pipe);
  outcome.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : -1;
  return outcome;
}

std::string model(const std::string& folder) {
  return "--model-path " HALFBYTE_TEST_DATA "/" + folder + " ";
}

TEST(LogitsCommand, WritesLogitsAndTraceOfEveryGoldenModel) {
  TempDirectory directory;
  const std::string out = (directory / "logits.safetensors").string();
  const std::string trace = (directory / "trace.safetensors").string();
  for (const std::string& folder : kGoldenModels) {
    const GoldenModel golden(folder);
    const GoldenPrompt& prompt = golden.prompt("len5");
    const Outcome outcome =
        logits(fmt::format("{} --device ref --chunk 2 --ids {} --out {} --trace {}", model(folder),
                           fmt::join(prompt.ids, ","), out, trace));
    ASSERT_EQ(outcome.status, 0) << outcome.out;
    const SafetensorsFile file{std::filesystem::path(out)};
    const StoredTensor& written = file.get("logits");
    EXPECT_EQ(written.dtype, DType::kF32);
    EXPECT_EQ(written.shape.front(), 5);
    EXPECT_LE(max_abs_difference(f32_values(written), golden.logits(prompt)),
              golden.tolerances.fp32_logits_max_abs);
    const SafetensorsFile ours{std::filesystem::path(trace)};
    EXPECT_EQ(ours.tensors().size(), golden.trace.tensors().size());
    for (const StoredTensor& expected : golden.trace.tensors()) {
      const StoredTensor& tensor = ours.get(std::string(expected.name).substr(5));  // "len5."
      EXPECT_EQ(tensor.shape, expected.shape) << expected.name;
      EXPECT_EQ(tensor.dtype, expected.dtype) << expected.name;
    }
  }
}

TEST(LogitsCommand, LastIsOneRow) {
  TempDirectory directory;
  const std::string out = (directory / "logits.safetensors").string();
  const Outcome outcome =
      logits(model("k3-tiny-mxfp4") + "--device cpu --ids 5,6,7 --last --out " + out);
  ASSERT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_EQ(SafetensorsFile{std::filesystem::path(out)}.get("logits").shape,
            (std::vector<int64_t>{1, 512}));
}

TEST(LogitsCommand, SaysWhatIsWrongInOneLine) {
  TempDirectory directory;
  const std::string out = " --out " + (directory / "logits.safetensors").string();
  const auto expect = [&](const std::string& arguments, const std::string& part) {
    const Outcome outcome = logits(arguments + out);
    EXPECT_EQ(outcome.status, 1) << arguments;
    EXPECT_NE(outcome.out.find(part), std::string::npos) << outcome.out;
    EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 1) << outcome.out;
    EXPECT_FALSE(std::filesystem::exists(directory / "logits.safetensors"));
  };
  expect(model("k3-tiny-bf16") + "--ids 5,512", "id 512");
  expect(model("k3-tiny-bf16") + "--ids 5 --device gpu", "unknown device");
  expect(model("moe-op") + "--ids 5", "config.json");
}

}  // namespace
}  // namespace halfbyte

#include "moe/case_file.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "formats/safetensors.h"
#include "support/craft.h"
#include "support/temp_directory.h"

namespace halfbyte {
namespace {

// A BF16 case, all zeros: one token, one slot, L = F = 2, the experts whose numbers are given.
struct CaseParts {
  std::vector<int> experts = {0, 1, 2};
  std::vector<std::string> more = {};  // further tensors, BF16 [2, 2]
  std::string meta = R"({"activation": "situ", "params": {"beta": 4.0, "linear_beta": null}})";
};

std::string refusal(const CaseParts& parts) {
  std::vector<TensorSpec> specs = {{"topk_ids", DType::kI32, {1, 1}},
                                   {"topk_weights", DType::kF32, {1, 1}},
                                   {"hidden", DType::kBf16, {1, 2}}};
  for (const int e : parts.experts)
    for (const char* name : {"w1", "w3", "w2"})
      specs.push_back(
          {"experts." + std::to_string(e) + "." + name + ".weight", DType::kBf16, {2, 2}});
  for (const std::string& name : parts.more) specs.push_back({name, DType::kBf16, {2, 2}});
  TempDirectory directory;
  const auto path = directory.path() / "case.safetensors";
  SafetensorsWriter writer(path, specs, {{"case", parts.meta}});
  for (const TensorSpec& spec : specs) {
    const std::string zeros(spec.dtype == DType::kBf16 && spec.shape[0] == 2 ? 8 : 4, '\0');
    writer.write(zeros.data(), zeros.size());
  }
  writer.commit();
  return message_of([&] { MoeCase loaded(path); });
}

TEST(CaseFile, WholeOnesAreRead) { EXPECT_EQ(refusal({}), ""); }

TEST(CaseFile, AHoleInTheExpertsIsNotTheirEnd) {
  const std::string message = refusal({.experts = {0, 1, 3}});
  EXPECT_NE(message.find("experts.3.w1.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("none of the experts 0 to 1"), std::string::npos) << message;
}

TEST(CaseFile, TensorsOfExpertsThatNobodyReadsAreRefused) {
  for (const char* name : {"experts.1.w4.weight", "experts.1.gate_proj.weight",
                           "experts.2.w1x.weight", "experts.02.w1.weight", "experts.bias"}) {
    const std::string message = refusal({.more = {name}});
    EXPECT_NE(message.find(name), std::string::npos) << name << ": " << message;
  }
}

TEST(CaseFile, UnknownParametersAreRefused) {
  const std::string message =
      refusal({.meta = R"({"activation": "situ", "params": {"bta": 4.0}})"});
  EXPECT_NE(message.find("params.bta"), std::string::npos) << message;
}

TEST(CaseFile, OnlyLinearBetaMayBeNull) {
  for (const std::string key : {"beta", "alpha", "limit", "up_bias"}) {
    const std::string message =
        refusal({.meta = R"({"activation": "situ", "params": {")" + key + R"(": null}})"});
    EXPECT_NE(message.find("params." + key + ": is null, expected a number"), std::string::npos)
        << message;
  }
}

// A header of odd length, as early writers made them.
TEST(CaseFile, TensorsThatNobodyCouldReadInPlaceAreRefused) {
  TempDirectory directory;
  const auto path = directory / "case.safetensors";
  std::string bytes = read_text(HALFBYTE_TEST_DATA "/moe-op/swiglu_t1.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  bytes = bytes.substr(0, 8 + length) + ' ' + bytes.substr(8 + length);
  ++length;
  std::memcpy(bytes.data(), &length, 8);
  write_bytes(path, bytes);
  const std::string message = message_of([&] { MoeCase loaded(path); });
  EXPECT_NE(message.find("any current safetensors writer mends it"), std::string::npos) << message;
}

}  // namespace
}  // namespace halfbyte

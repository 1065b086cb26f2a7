// A prompt in pieces gives what it gives in one piece; twins and threads.
//
// On "ref" within the fp32 tolerance of the golden files. On the CPU pieces of up to 3 tokens take
// other forms (recurrence, absorbed attention) than longer ones (chunks, direct attention), so the
// bf16 tolerance holds, and the router may choose otherwise between near-equal experts.
#include <gtest/gtest.h>

#include "model/model.h"
#include "support/golden_model.h"

namespace halfbyte {
namespace {

std::vector<float> logits_in_pieces(Model& model, const std::vector<int32_t>& ids, size_t piece) {
  Sequence sequence = model.new_sequence(static_cast<int64_t>(ids.size()));
  std::vector<float> all;
  for (size_t begin = 0; begin < ids.size(); begin += piece) {
    const size_t count = std::min(piece, ids.size() - begin);
    const auto logits = model.forward({ids.data() + begin, count}, sequence, LogitRows::kAll);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  EXPECT_EQ(sequence.length(), static_cast<int64_t>(ids.size()));
  return all;
}

using Case = std::tuple<std::string, std::string>;  // folder, device
class PromptInPieces : public ::testing::TestWithParam<Case> {};

TEST_P(PromptInPieces, Agree) {
  const auto& [folder, device_name] = GetParam();
  const GoldenModel golden(folder);
  const auto device = open_device(device_name);
  const auto model = Model::open(golden.directory, *device);
  const double tolerance = device_name == "ref" ? golden.tolerances.fp32_logits_max_abs
                                                : golden.tolerances.bf16_logits_max_abs;
  const std::vector<int32_t>& ids = golden.prompt("len130").ids;
  const std::vector<float> whole = logits_in_pieces(*model, ids, ids.size());
  for (const size_t piece : {1, 7, 64}) {
    const std::vector<float> pieces = logits_in_pieces(*model, ids, piece);
    EXPECT_LE(max_abs_difference(pieces, whole), tolerance) << "pieces of " << piece;
    EXPECT_LE(relative_l2(pieces, whole),
              device_name == "ref" ? 1e-5 : golden.tolerances.bf16_last_rel_l2)
        << "pieces of " << piece;
  }

  // The same through the option that `halfbyte logits --chunk` sets, with logits of the last only.
  const auto chunked = Model::open(golden.directory, *device, {.max_chunk = 7});
  Sequence sequence = chunked->new_sequence(130);
  const auto last = chunked->forward(ids, sequence, LogitRows::kLast);
  EXPECT_LE(
      max_abs_difference({last.begin(), last.end()}, golden.last_logits(golden.prompt("len130"))),
      tolerance);
}

std::string test_name(const std::string& folder, const std::string& device) {
  std::string name = folder + "_" + device;
  for (char& c : name)
    if (c == '-' || c == '.') c = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(, PromptInPieces,
                         ::testing::Combine(::testing::ValuesIn(kGoldenModels),
                                            ::testing::ValuesIn(available_devices())),
                         [](const auto& info) {
                           return test_name(std::get<0>(info.param), std::get<1>(info.param));
                         });

class EveryDevice : public ::testing::TestWithParam<std::string> {};

// MXFP4 weights decode to the BF16 twin's exactly. "ref" sums in double: the same bits.
TEST_P(EveryDevice, Bf16AndMxfp4TwinsAgree) {
  const auto device = open_device(GetParam());
  const GoldenModel plain("k3-tiny-bf16"), packed("k3-tiny-mxfp4");
  const auto a = Model::open(plain.directory, *device), b = Model::open(packed.directory, *device);
  for (const GoldenPrompt& prompt : plain.prompts) {
    const std::vector<float> ours = logits_in_pieces(*a, prompt.ids, 64);
    const std::vector<float> twin = logits_in_pieces(*b, prompt.ids, 64);
    if (GetParam() == "ref") {
      EXPECT_EQ(ours, twin) << prompt.name;
    } else {
      // Sums of a group's products are scaled once instead of product by product: fp32 roundings,
      // which now and then end in another BF16.
      EXPECT_LE(relative_l2(ours, twin), plain.tolerances.bf16_last_rel_l2_median) << prompt.name;
    }
  }
}

TEST_P(EveryDevice, AnyNumberOfThreadsGivesTheSameBits) {
  const GoldenModel golden("k3-tiny-nvfp4");
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 5}) {
    const auto device = open_device(GetParam(), {.threads = threads});
    const auto model = Model::open(golden.directory, *device);
    results.push_back(logits_in_pieces(*model, golden.prompt("len130").ids, 100));
    const std::vector<float> steps = logits_in_pieces(*model, golden.prompt("len16").ids, 1);
    results.back().insert(results.back().end(), steps.begin(), steps.end());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// Several sequences taking turns are strangers to each other.
TEST_P(EveryDevice, SequencesTakeTurns) {
  const GoldenModel golden("k3-tiny-bf16");
  const auto device = open_device(GetParam());
  const auto model = Model::open(golden.directory, *device);
  const std::vector<int32_t> a = golden.prompt("len16").ids, b = golden.prompt("len17").ids;
  const std::vector<float> alone = logits_in_pieces(*model, a, 1);
  Sequence first = model->new_sequence(16), second = model->new_sequence(17);
  std::vector<float> turns;
  for (size_t t = 0; t < a.size(); ++t) {
    const auto logits = model->forward({&a[t], 1}, first, LogitRows::kAll);
    turns.insert(turns.end(), logits.begin(), logits.end());
    model->forward({&b[t], 1}, second, LogitRows::kNone);
  }
  EXPECT_EQ(turns, alone);
}

INSTANTIATE_TEST_SUITE_P(, EveryDevice, ::testing::ValuesIn(available_devices()),
                         [](const auto& info) { return test_name("on", info.param); });

}  // namespace
}  // namespace halfbyte

#include "model/generate.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "base/file.h"
#include "halfbyte/error.h"
#include "support/golden_model.h"
#include "support/temp_directory.h"

namespace halfbyte {
namespace {

using Ids = std::vector<int32_t>;

TEST(Generate, StopTokensComeFromEitherConfig) {
  const TempDirectory directory;
  ModelConfig config;
  config.vocab_size = 100;
  EXPECT_EQ(read_stop_tokens(directory.path(), config), Ids{});
  config.eos_token = 7;
  EXPECT_EQ(read_stop_tokens(directory.path(), config), Ids{7});
  write_text(directory / "generation_config.json", R"({"eos_token_id": null})");
  EXPECT_EQ(read_stop_tokens(directory.path(), config), Ids{7});
  write_text(directory / "generation_config.json", R"({"eos_token_id": 8})");
  EXPECT_EQ(read_stop_tokens(directory.path(), config), Ids{8});
  write_text(directory / "generation_config.json", R"({"eos_token_id": [8, 99]})");
  EXPECT_EQ(read_stop_tokens(directory.path(), config), (Ids{8, 99}));
  for (const char* bad : {R"({"eos_token_id": 100})", R"({"eos_token_id": "x"})", "{"}) {
    write_text(directory / "generation_config.json", bad);
    EXPECT_THROW(read_stop_tokens(directory.path(), config), Error) << bad;
  }
}

class GenerateGolden : public testing::Test {
 protected:
  Ids generated(const Ids& prompt, const GenerateOptions& options) {
    Ids ids;
    last = generate(*model, prompt, options, [&](int32_t id) { ids.push_back(id); });
    return ids;
  }
  Ids generated(const GoldenPrompt& prompt, const GenerateOptions& options) {
    return generated(prompt.ids, options);
  }
  const GoldenModel golden{"k3-tiny-bf16"};
  const std::unique_ptr<Device> device = open_device("ref");
  const std::unique_ptr<Model> model = Model::open(golden.directory, *device);
  GenerateStats last;
};

TEST_F(GenerateGolden, GreedyIsTheGoldenContinuation) {
  for (const char* name : {"len1", "len17"}) {
    const GoldenPrompt& prompt = golden.prompt(name);
    EXPECT_EQ(generated(prompt, {.max_new_tokens = 16}), prompt.greedy);
    EXPECT_EQ(last.prompt_tokens, static_cast<int64_t>(prompt.ids.size()));
    EXPECT_EQ(last.new_tokens, 16);
    EXPECT_EQ(last.decode_steps, 15);
  }
}

TEST_F(GenerateGolden, EndsAtAStopToken) {
  const GoldenPrompt& prompt = golden.prompt("len1");
  const Ids whole = generated(prompt, {.max_new_tokens = 16});
  const int32_t stop = whole[4];
  const Ids expected(whole.begin(), std::find(whole.begin(), whole.end(), stop));
  EXPECT_EQ(generated(prompt, {.max_new_tokens = 16, .stop_tokens = {511, stop}}), expected);
  EXPECT_EQ(generated(prompt, {.max_new_tokens = 16, .stop_tokens = {whole[0]}}), Ids{});
}

TEST_F(GenerateGolden, SamplingIsReproducible) {
  const GoldenPrompt& prompt = golden.prompt("len5");
  GenerateOptions options{.max_new_tokens = 24, .sampling = {.temperature = 1, .seed = 5}};
  const Ids first = generated(prompt, options);
  EXPECT_EQ(generated(prompt, options), first);
  options.sampling.seed = 6;
  EXPECT_NE(generated(prompt, options), first);
}

// A prompt that begins with what was computed gives what a new sequence gives; another one, too.
TEST_F(GenerateGolden, AGeneratorComputesOnlyWhatIsNew) {
  const GoldenPrompt& first = golden.prompt("len17");
  const GenerateOptions options{.max_new_tokens = 8};
  Generator generator(*model);
  Ids said;
  const auto run = [&](const Ids& prompt) {
    said.clear();
    last = generator.generate(prompt, options, [&](int32_t id) {
      said.push_back(id);
      return true;
    });
    const GenerateStats stats = last;
    EXPECT_EQ(said, generated(prompt, options));
    last = stats;
  };
  Ids prompt = first.ids;
  run(prompt);
  EXPECT_EQ(last.reused_tokens, 0);
  for (int turn = 0; turn < 4; ++turn) {
    prompt.insert(prompt.end(), said.begin(), said.end());
    const auto held = static_cast<int64_t>(prompt.size()) - 1;  // the last one was not computed
    prompt.insert(prompt.end(), {3, 1, 4});
    run(prompt);
    // Every other turn needs more room: a new sequence, of twice the size.
    EXPECT_EQ(last.reused_tokens, turn % 2 == 0 ? 0 : held) << "turn " << turn;
  }
  run(prompt);  // not longer than what was computed
  EXPECT_EQ(last.reused_tokens, 0);
  prompt[0] ^= 1;
  prompt.push_back(2);
  run(prompt);
  EXPECT_EQ(last.reused_tokens, 0);
}

TEST_F(GenerateGolden, AGeneratorStopsWhenItIsTold) {
  const GoldenPrompt& prompt = golden.prompt("len17");
  Generator generator(*model);
  Ids said;
  const GenerateStats stats =
      generator.generate(prompt.ids, {.max_new_tokens = 16}, [&](int32_t id) {
        said.push_back(id);
        return said.size() < 3;
      });
  EXPECT_EQ(said, Ids(prompt.greedy.begin(), prompt.greedy.begin() + 3));
  EXPECT_EQ(stats.new_tokens, 3);
  EXPECT_EQ(stats.decode_steps, 2);
}

TEST_F(GenerateGolden, WhatCannotBeDoneIsRefusedBeforeWork) {
  const GoldenPrompt& prompt = golden.prompt("len5");
  EXPECT_THROW(generated(prompt, {.max_new_tokens = 0}), Error);
  EXPECT_THROW(generated(prompt, {.sampling = {.top_p = 0}}), Error);
  EXPECT_THROW(generate(*model, {}, {}, [](int32_t) {}), Error);
  EXPECT_THROW(generate(*model, Ids{512}, {}, [](int32_t) {}), Error);
}

}  // namespace
}  // namespace halfbyte

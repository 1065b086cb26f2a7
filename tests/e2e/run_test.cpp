// `halfbyte run`, `compare` and `tokenize` as a user calls them.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "halfbyte/device.h"
#include "support/golden_model.h"
#include "support/process.h"
#include "support/temp_directory.h"

namespace halfbyte {
namespace {

using Words = std::vector<std::string>;

const std::string kModel = HALFBYTE_TEST_DATA "/k3-tiny-bf16";
const std::string kTokenizer = HALFBYTE_TEST_DATA "/tokenizer";

// One line on stderr that holds `part`, nothing on stdout, status 1.
void expect_refused(const Words& arguments, const std::string& part) {
  const ProcessResult result = run_halfbyte(arguments);
  EXPECT_EQ(result.status, 1) << fmt::format("{}", arguments);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
}

TEST(RunCommand, GreedyIdsAreTheGoldenOnes) {
  const GoldenModel golden("k3-tiny-bf16");
  for (const char* name : {"len1", "len17"}) {
    const GoldenPrompt& prompt = golden.prompt(name);
    const ProcessResult result = run_halfbyte({"run", "--model-path", kModel, "--ids",
                                               fmt::format("{}", fmt::join(prompt.ids, ",")),
                                               "--max-new-tokens", "16", "--device", "ref"});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.out, fmt::format("{}\n", fmt::join(prompt.greedy, ",")));
    EXPECT_NE(result.err.find(fmt::format("prompt {} tokens", prompt.ids.size())),
              std::string::npos);
    EXPECT_NE(result.err.find("decode 16 tokens"), std::string::npos) << result.err;
  }
}

TEST(RunCommand, TheAnswerIsWholeBeforeTheSpeedAlsoInOneFile) {
  const ProcessResult result = run_halfbyte(
      {"run", kModel, "--ids", "1,2,3", "--max-new-tokens", "4"}, "", Streams::kTogether);
  EXPECT_EQ(result.status, 0);
  const size_t end = result.out.find('\n');
  EXPECT_EQ(result.out.find_first_not_of("0123456789,"), end) << result.out;
  EXPECT_EQ(result.out.compare(end + 1, 7, "prompt "), 0) << result.out;
}

TEST(RunCommand, TheSameSeedGivesTheSameIds) {
  const auto with_seed = [](const std::string& seed) {
    return run_halfbyte({"run", "--model-path", kModel, "--ids", "1,2,3", "--max-new-tokens", "12",
                         "--device", "ref", "--temperature", "1", "--top-p", "0.95", "--top-k",
                         "50", "--seed", seed})
        .out;
  };
  EXPECT_EQ(with_seed("1"), with_seed("1"));
  EXPECT_NE(with_seed("1"), with_seed("2"));
}

TEST(RunCommand, WhatIsWrongIsSaidInOneLine) {
  const Words run = {"run", "--model-path", kModel, "--device", "ref"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), run.begin(), run.end());
    return more;
  };
  expect_refused(run, "one of --prompt and --ids is needed");
  expect_refused(with({"--prompt", "x", "--ids", "1"}), "one of --prompt and --ids is needed");
  expect_refused(with({"--prompt", "x"}), "--prompt: text needs a tokenizer");
  expect_refused(with({"--ids", "1,512"}), "id 512 at place 1 is outside the vocabulary");
  expect_refused(with({"--ids", "-1"}), "id -1 at place 0 is outside the vocabulary");
  expect_refused(with({"--ids", ""}), "--ids: is empty, expected numbers");
  expect_refused(with({"--ids", "1,,2"}), "--ids: \"\" at place 1 is no token id");
  expect_refused(with({"--ids", "1,2,"}), "--ids: \"\" at place 2 is no token id");
  expect_refused(with({"--ids", "0x10"}), "--ids: \"0x10\" at place 0 is no token id");
  expect_refused(with({"--ids", "99999999999999999999"}), "is no token id");
  expect_refused(with({"--ids", "1", "--top-p", "0"}), "top-p: is 0, expected more than 0");
  expect_refused(with({"--ids", "1", "--temperature", "-1"}), "temperature: is -1");
  expect_refused({"run", "--model-path", kModel, "--ids", "1", "--device", "abacus"},
                 "unknown device");
  expect_refused({"run", "--model-path", "/nowhere", "--ids", "1"}, "/nowhere: is not a directory");
}

TEST(LogitsCommand, WhatIsWrongIsSaidBeforeTheWork) {
  const TempDirectory directory;
  const std::string out = (directory / "logits").string();
  const auto logits = [&](const std::string& ids, const std::string& to, Words more = {}) {
    Words words = {"logits", "--model-path", kModel, "--device", "ref", "--ids", ids, "--out", to};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  expect_refused(logits("1,512", out), "--ids: id 512 at place 1 is outside the vocabulary");
  expect_refused(logits("", out), "--ids: is empty");
  expect_refused(logits("1", "/nowhere/logits"), "/nowhere/logits.partial: cannot be created");
  expect_refused(logits("1", directory.path().string()), "is no place for a file");
  expect_refused(logits("1", out, {"--trace", "/nowhere/t"}), "/nowhere/t.partial");
  expect_refused(logits("1", out, {"--trace", out}), "--trace: " + out + " is --out already");
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(CommandLine, WhatIsNotUnderstoodIsOneLineAndStatus2) {
  for (const Words& words : std::vector<Words>{{},
                                               {"abacus"},
                                               {"inspect"},
                                               {"inspect", kModel, "--abacus"},
                                               {"run", "--model-path", kModel, "--threads", "-1"},
                                               {"convert", "a", "b", "--threads", "100000"},
                                               {"logits", "--chunk", "0"}}) {
    const ProcessResult result = run_halfbyte(words);
    EXPECT_EQ(result.status, 2) << fmt::format("{}", words);
    EXPECT_EQ(result.err.rfind("halfbyte: ", 0), 0u) << result.err;
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
    EXPECT_LT(result.err.size(), 200u) << result.err;
  }
  EXPECT_EQ(run_halfbyte({"--help"}).status, 0);
  EXPECT_EQ(run_halfbyte({"inspect", "/nowhere"}).status, 1);
}

// A model with a tokenizer: the tiny model's own ids cut down to fit would be another model, so the
// tokenizer is one of single bytes, 256 ids and 256 reserved: exactly the model's 512.
class WithTokenizer : public testing::Test {
 protected:
  void SetUp() override {
    for (const auto& entry : std::filesystem::directory_iterator(kModel))
      std::filesystem::create_symlink(std::filesystem::absolute(entry.path()),
                                      directory / entry.path().filename().string());
    const std::string all = read_text(kTokenizer + "/tiktoken.model");
    size_t end = 0;
    for (int line = 0; line < 256; ++line) end = all.find('\n', end) + 1;
    write_text(directory / "tiktoken.model", all.substr(0, end));
  }
  TempDirectory directory;
};

TEST_F(WithTokenizer, TextInTextOut) {
  const Words tail = {"--device", "ref", "--max-new-tokens", "16"};
  Words words = {"run", "--model-path", directory.path().string(), "--prompt", "Hi"};
  words.insert(words.end(), tail.begin(), tail.end());
  const ProcessResult text = run_halfbyte(words);
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.err.find("prompt 2 tokens"), std::string::npos) << text.err;

  // The same by ids, without a tokenizer, decoded afterwards.
  std::string ids =
      run_halfbyte({"tokenize", "--model-path", directory.path().string(), "--text", "Hi"}).out;
  ids.pop_back();
  words = {"run", "--model-path", kModel, "--ids", ids};
  words.insert(words.end(), tail.begin(), tail.end());
  std::string continuation = run_halfbyte(words).out;
  continuation.pop_back();
  std::string kept;  // reserved tokens are not shown
  for (size_t begin = 0; begin < continuation.size();) {
    const size_t end = std::min(continuation.find(',', begin), continuation.size());
    const std::string id = continuation.substr(begin, end - begin);
    if (std::stoi(id) < 256) kept += (kept.empty() ? "" : ",") + id;
    begin = end + 1;
  }
  ASSERT_FALSE(kept.empty());
  EXPECT_EQ(
      text.out,
      run_halfbyte({"tokenize", "--model-path", directory.path().string(), "--decode", kept}).out);
}

// What chat needs of a checkpoint.
void make_chatty(const TempDirectory& directory) {
  write_text(directory / "chat_format.json", R"({"effort": null})");
  write_text(directory / "tokenizer_config.json", R"({"added_tokens_decoder": {
    "258": {"content": "<|end_of_msg|>"}, "259": {"content": "<|open|>", "special": false},
    "260": {"content": "<|close|>", "special": false},
    "261": {"content": "<|sep|>", "special": false}}})");
}

TEST_F(WithTokenizer, TextThatIsEmptyOrNotUtf8IsRefused) {
  const std::string path = directory.path().string();
  expect_refused({"run", "--model-path", path, "--prompt", ""}, "--prompt: is empty");
  expect_refused({"run", "--model-path", path, "--prompt", "a\xFF"}, "is not UTF-8: byte 0xFF");
}

TEST_F(WithTokenizer, ChatWrapsThePromptAndShowsTheAnswer) {
  const std::string path = directory.path().string();
  const Words chat = {"run",    "--model-path", path, "--device",         "ref",
                      "--chat", "--prompt",     "Hi", "--max-new-tokens", "64"};
  expect_refused(chat, "the text thinking_effort_max is needed");
  write_text(directory / "chat_format.json", R"({"effort": null})");
  expect_refused(chat, "<|open|> is missing");
  make_chatty(directory);
  const std::string prompt =
      "<|open|>message role=\"user\"<|sep|>Hi<|close|>message<|sep|><|end_of_msg|>"
      "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>";
  const std::string ids =
      run_halfbyte({"tokenize", "--model-path", path, "--specials", "--text", prompt}).out;
  const size_t tokens = static_cast<size_t>(std::count(ids.begin(), ids.end(), ',')) + 1;
  const ProcessResult result = run_halfbyte(chat);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.err.find(fmt::format("prompt {} tokens", tokens)), std::string::npos)
      << result.err;

  // Without thinking the same prompt ends in `response`, and all text is answer.
  Words plain = chat;
  plain.push_back("--no-thinking");
  const ProcessResult answer = run_halfbyte(plain);
  EXPECT_NE(answer.err.find(fmt::format("prompt {} tokens", tokens + 3)), std::string::npos);
  EXPECT_TRUE(answer.err.starts_with("prompt ")) << "no reasoning";
  EXPECT_GT(answer.out.size(), 1u);
  expect_refused({"run", "--model-path", path, "--chat", "--ids", "1"},
                 "--chat goes with --prompt");
  expect_refused({"run", "--model-path", path, "--no-thinking", "--ids", "1"},
                 "--no-thinking with");
}

// Every line of the input is a message; the second answer knows the first one (the prompt grows).
TEST_F(WithTokenizer, AConversationIsALineAMessage) {
  make_chatty(directory);
  const std::string path = directory.path().string();
  const Words words = {"run",           "--model-path",     path, "--device", "ref", "--chat",
                       "--no-thinking", "--max-new-tokens", "8"};
  Words once = words;
  once.insert(once.end(), {"--prompt", "Hi"});
  const std::string answer = run_halfbyte(once).out;
  const ProcessResult one = run_halfbyte(words, "Hi\n");
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_EQ(one.out, answer);
  const ProcessResult two = run_halfbyte(words, "Hi\n\nHi");  // an empty line is none
  EXPECT_EQ(two.status, 0) << two.err;
  ASSERT_TRUE(two.out.starts_with(answer)) << two.out;
  EXPECT_NE(two.out.substr(answer.size()), answer);
  const ProcessResult bad = run_halfbyte(words, "\xff\nHi\n");
  EXPECT_EQ(bad.status, 0) << bad.err;
  EXPECT_EQ(bad.out, answer);
  EXPECT_NE(bad.err.find("is not UTF-8"), std::string::npos) << bad.err;
  EXPECT_EQ(run_halfbyte(words).out, "");
}

// The answer would take many minutes.
TEST_F(WithTokenizer, InterruptStopsTheAnswerAndNotTheProgram) {
  make_chatty(directory);
  const std::string path = directory.path().string();
  int in[2], out[2];
  ASSERT_EQ(pipe(in), 0);
  ASSERT_EQ(pipe(out), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    for (const int end : {in[0], in[1], out[0], out[1]}) close(end);
    execl(HALFBYTE_BINARY, "halfbyte", "run", "--model-path", path.c_str(), "--device", "ref",
          "--chat", "--no-thinking", "--max-new-tokens", "100000", static_cast<char*>(nullptr));
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  ASSERT_EQ(write(in[1], "Hi\n", 3), 3);
  char byte = 0;
  EXPECT_EQ(read(out[0], &byte, 1), 1);  // it answers
  kill(child, SIGINT);
  EXPECT_EQ(write(in[1], "\n", 1), 1);  // still there: an empty line is no message
  close(in[1]);                         // the end of the input ends the program
  while (read(out[0], &byte, 1) == 1) {
  }
  close(out[0]);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(RunCommand, ATokenizerLargerThanTheModelIsRefused) {
  const TempDirectory directory;
  for (const auto& entry : std::filesystem::directory_iterator(kModel))
    std::filesystem::create_symlink(std::filesystem::absolute(entry.path()),
                                    directory / entry.path().filename().string());
  write_text(directory / "tiktoken.model", read_text(kTokenizer + "/tiktoken.model"));
  expect_refused({"run", "--model-path", directory.path().string(), "--ids", "1"},
                 "has 2412 ids with the reserved ones, the model's vocabulary 512");
}

TEST(CompareCommand, EveryDeviceAgainstRef) {
  const GoldenModel golden("k3-tiny-bf16");
  for (const std::string& device : available_devices()) {
    const ProcessResult result =
        run_halfbyte({"compare", "--model-path", kModel, "--a", "ref", "--b", device, "--ids-file",
                      kModel + "/expected.json", "--json"});
    ASSERT_EQ(result.status, 0) << result.err;
    const JsonDocument document = JsonDocument::from_text(result.out, device);
    const Json all = document.root().get("all");
    const double max = all.get("max_abs_difference").number();
    EXPECT_LE(all.get("mean_abs_difference").number(), max);
    EXPECT_EQ(all.get("prompts").integer(), 9);
    EXPECT_EQ(all.get("logprobs").integer(), 305 - 9);
    if (device == "ref") {
      EXPECT_EQ(max, 0);
      EXPECT_EQ(all.get("first_tokens_agree").integer(), 9);
    } else {
      EXPECT_GT(max, 0);
      EXPECT_LE(max, golden.tolerances.bf16_logprob_max_abs) << device;
    }
    for (const Json& prompt : document.root().get("prompts").elements())
      EXPECT_EQ(prompt.get("first_token_a").integer(),
                golden.prompt(std::string(prompt.get("name").string())).greedy[0]);
  }
}

TEST(CompareCommand, TheTableAndTheFormsOfPrompts) {
  const TempDirectory directory;
  write_text(directory / "prompts.json", R"([[1, 2, 3], {"ids": [4], "name": "four"}])");
  const Words words = {"compare", "--model-path", kModel,
                       "--a",     "ref",          "--b",
                       "ref",     "--ids-file",   (directory / "prompts.json").string()};
  const ProcessResult result = run_halfbyte(words);
  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* part : {"\n0 ", "\nfour ", "first tokens agree: 2 of 2"})
    EXPECT_NE(result.out.find(part), std::string::npos) << result.out;
  for (const auto& [text, part] :
       std::vector<std::pair<std::string, std::string>>{{"[]", "is empty, expected prompts"},
                                                        {"[[]]", "is empty, expected token ids"},
                                                        {"[[600]]", "id 600 at place 0 is outside"},
                                                        {R"(["text"])", "text needs a tokenizer"},
                                                        {"[{}]", "text: missing"},
                                                        {"[", "is not valid JSON"}}) {
    write_text(directory / "prompts.json", text);
    expect_refused(words, part);
  }
}

TEST(TokenizeCommand, ThereAndBack) {
  const std::string text = "Hello <|open|> 你好 \n";
  const Words base = {"tokenize", "--model-path", kTokenizer};
  const auto with = [&](Words more) {
    more.insert(more.begin(), base.begin(), base.end());
    return more;
  };
  const ProcessResult ids = run_halfbyte(with({"--stdin"}), text);
  EXPECT_EQ(ids.status, 0) << ids.err;
  EXPECT_EQ(run_halfbyte(with({"--text", text})).out, ids.out);
  const std::string list = ids.out.substr(0, ids.out.size() - 1);
  EXPECT_EQ(run_halfbyte(with({"--decode", list})).out, text + "\n");
  EXPECT_NE(run_halfbyte(with({"--stdin", "--specials"}), text).out, ids.out);
  EXPECT_EQ(run_halfbyte(with({"--json-lines"}), "\"a\"\n\"\\u00e9\"\n").status, 0);
  expect_refused(base, "one of --text, --stdin, --json-lines and --decode is needed");
  expect_refused(with({"--text", "a", "--decode", "1"}), "--text and --decode cannot go together");
  expect_refused(with({"--decode", "99999"}), "99999 is outside the vocabulary");
}

}  // namespace
}  // namespace halfbyte

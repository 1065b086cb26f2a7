#include "formats/checkpoint.h"

#include <gtest/gtest.h>

#include "support/craft.h"
#include "support/temp_directory.h"

namespace halfbyte {
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

std::string index_of(const std::string& weight_map) {
  return R"({"metadata": {"total_size": 1}, "weight_map": {)" + weight_map + "}}";
}

class CheckpointTest : public testing::Test {
 protected:
  std::string open_message() {
    const std::string message = message_of([&] { Checkpoint{directory_.path()}; });
    const std::string prefix = directory_.path().string();
    if (message.empty()) return "";
    EXPECT_EQ(message.rfind(prefix, 0), 0u) << message;
    return message.substr(message[prefix.size()] == '/' ? prefix.size() + 1 : prefix.size());
  }
  void write(const std::string& file, const std::string& tensor, const std::string& bytes) {
    write_safetensors(directory_ / file,
                      {{tensor, DType::kU8, {static_cast<int64_t>(bytes.size())}, bytes}});
  }

  TempDirectory directory_;
};

// The same tensors as one file, as shards with an index and as shards without: the same checkpoint.
TEST_F(CheckpointTest, LoadsAlikeHoweverItIsCut) {
  const std::vector<std::string> names = {"a", "b", "c", "d", "e"};
  const auto contents = [&] {
    const Checkpoint checkpoint(directory_.path());
    std::string text;
    for (const StoredTensor* tensor : checkpoint.tensors()) {
      EXPECT_EQ(checkpoint.find(tensor->name), tensor);
      text += std::string(tensor->name) + "=" +
              std::string(tensor->as<char>(), tensor->bytes.size()) + " ";
    }
    return text;
  };

  std::vector<CraftedTensor> all;
  for (const auto& name : names) all.push_back({name, DType::kU8, {2}, name + "!"});
  write_safetensors(directory_ / "model.safetensors", all);
  const std::string one_file = contents();
  EXPECT_EQ(one_file, "a=a! b=b! c=c! d=d! e=e! ");

  std::filesystem::remove(directory_ / "model.safetensors");
  std::string map;
  for (size_t i = 0; i < 5; ++i) {
    const std::string file = "model-0000" + std::to_string(i + 1) + "-of-00005.safetensors";
    write(file, names[i], names[i] + "!");
    map += (i ? ", \"" : "\"") + names[i] + "\": \"" + file + "\"";
  }
  EXPECT_EQ(contents(), one_file);
  write_bytes(directory_ / kIndex, index_of(map));
  EXPECT_EQ(contents(), one_file);
}

TEST_F(CheckpointTest, WithoutAnIndexOnlyModelSafetensorsCountsIfItIsThere) {
  write("model.safetensors", "a", "1");
  write("expected.safetensors", "a", "2");
  EXPECT_EQ(*Checkpoint(directory_.path()).get("a").as<char>(), '1');
}

TEST_F(CheckpointTest, RefusesWhatIsMissing) {
  EXPECT_EQ(open_message(),
            ": has no tensors: neither model.safetensors.index.json nor *.safetensors");
  write("model-00001-of-00003.safetensors", "a", "1");
  write("model-00003-of-00003.safetensors", "c", "1");
  EXPECT_EQ(open_message(), "model-00002-of-00003.safetensors: shard is missing");
  write_bytes(directory_ / kIndex, index_of(R"("a": "model-00001-of-00003.safetensors",
      "b": "model-00002-of-00003.safetensors", "c": "model-00003-of-00003.safetensors")"));
  EXPECT_EQ(open_message(),
            "model-00002-of-00003.safetensors: shard is missing, but model.safetensors.index.json "
            "names it");
  EXPECT_NE(message_of([&] { Checkpoint{directory_ / "absent"}; }).find("is not a directory"),
            std::string::npos);
}

TEST_F(CheckpointTest, IndexAndShardsMustAgree) {
  write("x.safetensors", "a", "1");
  write("y.safetensors", "b", "1");
  write_bytes(directory_ / kIndex, index_of(R"("a": "y.safetensors", "b": "y.safetensors")"));
  EXPECT_EQ(
      open_message(),
      "y.safetensors: tensor a is missing, but model.safetensors.index.json says it is in this "
      "file");
  write_bytes(directory_ / kIndex, index_of(R"("a": "x.safetensors", "c": "y.safetensors")"));
  EXPECT_EQ(
      open_message(),
      "y.safetensors: tensor c is missing, but model.safetensors.index.json says it is in this "
      "file");
  write_safetensors(directory_ / "y.safetensors",
                    {{"b", DType::kU8, {1}, ""}, {"d", DType::kU8, {1}, ""}});
  write_bytes(directory_ / kIndex, index_of(R"("a": "x.safetensors", "b": "y.safetensors")"));
  EXPECT_EQ(
      open_message(),
      "y.safetensors: tensor d is not in model.safetensors.index.json: index and shards are not "
      "of one checkpoint");
}

TEST_F(CheckpointTest, OneNameInTwoFilesNeedsAnIndex) {
  write("x.safetensors", "a", "1");
  write("y.safetensors", "a", "2");
  EXPECT_EQ(
      open_message(),
      "y.safetensors: tensor a is also in x.safetensors; an index would say which one counts");
  write_bytes(directory_ / kIndex, index_of(R"("a": "y.safetensors")"));
  EXPECT_EQ(*Checkpoint(directory_.path()).get("a").as<char>(), '2');
}

TEST_F(CheckpointTest, RefusesABrokenIndex) {
  write("x.safetensors", "a", "1");
  write_bytes(directory_ / kIndex, "{");
  EXPECT_EQ(open_message().rfind("model.safetensors.index.json: is not valid JSON", 0), 0u);
  write_bytes(directory_ / kIndex, "{}");
  EXPECT_EQ(open_message(), "model.safetensors.index.json: weight_map: missing");
  write_bytes(directory_ / kIndex, index_of(R"("a": 1)"));
  EXPECT_EQ(open_message(),
            "model.safetensors.index.json: weight_map.a: is an integer, expected a string");
  for (const char* path : {"../x.safetensors", "/etc/passwd", "", "..", "sub/x.safetensors"}) {
    write_bytes(directory_ / kIndex, index_of(std::string(R"("a": ")") + path + "\""));
    EXPECT_NE(open_message().find("is not a file name"), std::string::npos) << path;
  }
  write_bytes(directory_ / kIndex,
              index_of(R"("a": "x.safetensors", "b": "x.safetensors", "a": "x.safetensors")"));
  EXPECT_EQ(open_message(), "model.safetensors.index.json: weight_map.a: given twice");
}

TEST_F(CheckpointTest, CollectsEveryProblemOnRequest) {
  write("x.safetensors", "a", "1");
  write_bytes(directory_ / "z.safetensors", "broken");
  write_bytes(directory_ / kIndex,
              index_of(R"("a": "x.safetensors", "b": "x.safetensors", "c": "y.safetensors",
                          "d": "z.safetensors")"));
  std::vector<Error> problems;
  const Checkpoint checkpoint(directory_.path(), &problems);
  EXPECT_NE(checkpoint.find("a"), nullptr);
  std::string all;
  for (const Error& problem : problems) all += std::string(problem.what()) + "\n";
  EXPECT_EQ(problems.size(), 3u) << all;
}

TEST_F(CheckpointTest, ABrokenIndexIsOneProblemOfSeveral) {
  write("x.safetensors", "a", "1");
  write_bytes(directory_ / "y.safetensors", "broken");
  for (const std::string& index : {std::string("{"), index_of(R"("a": "../x.safetensors")")}) {
    write_bytes(directory_ / kIndex, index);
    std::vector<Error> problems;
    const Checkpoint checkpoint(directory_.path(), &problems);
    EXPECT_NE(checkpoint.find("a"), nullptr);
    ASSERT_EQ(problems.size(), 2u);
    EXPECT_NE(problems[0].where().find(kIndex), std::string::npos) << problems[0].what();
    EXPECT_NE(problems[1].where().find("y.safetensors"), std::string::npos) << problems[1].what();
  }
}

TEST(CheckpointGolden, FollowsTheIndexAcrossShards) {
  const Checkpoint checkpoint(HALFBYTE_TEST_DATA "/k3-tiny-mxfp4");
  const std::string expert = "language_model.model.layers.1.block_sparse_moe.experts.1.w1.";
  // This fixture keeps the scales of some experts in another shard than their codes.
  EXPECT_NE(checkpoint.get(expert + "weight_packed").file,
            checkpoint.get(expert + "weight_scale").file);
  EXPECT_EQ(checkpoint.get(expert + "weight_packed").shape, (std::vector<int64_t>{64, 16}));
}

}  // namespace
}  // namespace halfbyte

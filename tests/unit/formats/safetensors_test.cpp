#include "formats/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/craft.h"
#include "support/temp_directory.h"

namespace halfbyte {
namespace {

class Safetensors : public testing::Test {
 protected:
  // What opening a file of exactly these bytes says, without the directory.
  std::string open_message(std::string_view bytes) {
    write_bytes(directory_ / "f", bytes);
    const std::string message = message_of([&] { SafetensorsFile{directory_ / "f"}; });
    const std::string prefix = directory_.path().string() + "/";
    EXPECT_TRUE(message.empty() || message.rfind(prefix, 0) == 0) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    return message.empty() ? "" : message.substr(prefix.size());
  }
  std::string open_message(std::string_view header, size_t data_bytes) {
    return open_message(safetensors_bytes(header, data_bytes));
  }

  TempDirectory directory_;
};

TEST_F(Safetensors, ReadsBackWhatItWrote) {
  write_safetensors(directory_ / "f", {{"b", DType::kF32, {2, 1}, "12345678"},
                                       {"empty", DType::kBf16, {0, 7}, ""},
                                       {"scalar", DType::kBf16, {}, "hi"},
                                       {"a.\"q\"", DType::kU8, {3}, "xyz"}});
  const SafetensorsFile file(directory_ / "f");
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.tensors()[0].name, "b");
  const StoredTensor& a = file.get("a.\"q\"");
  EXPECT_EQ(a.dtype, DType::kU8);
  EXPECT_EQ(std::string(a.as<char>(), 3), "xyz");
  EXPECT_EQ(file.get("b").shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(file.get("b").elements(), 2);
  EXPECT_EQ(file.get("empty").elements(), 0);
  EXPECT_TRUE(file.get("scalar").shape.empty());
  EXPECT_EQ(file.get("scalar").elements(), 1);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(message_of([&] { file.get("c"); }),
            (directory_ / "f").string() + ": tensor c is missing");
}

TEST_F(Safetensors, WritesTheSameBytesEveryTimeAndAlignsTheData) {
  for (const char* name : {"1", "2"})
    write_safetensors(directory_ / name,
                      {{"name", DType::kF32, {1}, "abcd"}, {"n", DType::kU8, {1}, "e"}});
  const std::string first = read_text(directory_ / "1");
  EXPECT_EQ(first, read_text(directory_ / "2"));
  uint64_t length = 0;
  std::memcpy(&length, first.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  const std::string header =
      R"({"name":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"n":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}})";
  EXPECT_EQ(first.substr(8, header.size()), header);
  EXPECT_EQ(first.substr(8 + length), "abcde");
}

TEST_F(Safetensors, AFileAppearsOnlyByCommit) {
  {
    SafetensorsWriter writer(directory_ / "f", {{"a", DType::kU8, {2}}});
    writer.write("xy", 2);
    EXPECT_FALSE(std::filesystem::exists(directory_ / "f"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
  SafetensorsWriter writer(directory_ / "f", {{"a", DType::kU8, {2}}});
  writer.write("x", 1);
  EXPECT_THROW(writer.commit(), Error);        // a byte short
  EXPECT_THROW(writer.write("yz", 2), Error);  // a byte too many
  writer.write("y", 1);
  writer.commit();
  EXPECT_EQ(SafetensorsFile(directory_ / "f").get("a").elements(), 2);
}

TEST_F(Safetensors, TheWriterTakesPiecesInAnyOrder) {
  const std::vector<TensorSpec> specs = {{"a", DType::kF32, {2}}, {"b", DType::kU8, {3}}};
  {
    SafetensorsWriter writer(directory_ / "f", specs);
    writer.write_at(1, 1, "yz", 2);
    writer.write_at(0, 0, "01234567", 8);
    EXPECT_THROW(writer.write_at(1, 2, "zz", 2), Error);  // beyond the tensor
    EXPECT_THROW(writer.commit(), Error);                 // a byte is missing
    writer.write_at(1, 0, "x", 1);
    writer.commit();
  }
  const SafetensorsFile file(directory_ / "f");
  EXPECT_EQ(std::memcmp(file.get("a").bytes.data(), "01234567", 8), 0);
  EXPECT_EQ(std::memcmp(file.get("b").bytes.data(), "xyz", 3), 0);
}

TEST_F(Safetensors, TheWriterRefusesMisalignedTensors) {
  EXPECT_THROW(
      SafetensorsWriter(directory_ / "f", {{"a", DType::kU8, {3}}, {"b", DType::kF32, {1}}}),
      Error);
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(Safetensors, KeepsMetadata) {
  {
    SafetensorsWriter writer(directory_ / "f", {}, {{"case", R"({"a": 1})"}, {"format", "pt"}});
    writer.commit();
  }
  const SafetensorsFile file(directory_ / "f");
  EXPECT_EQ(file.metadata().at("case"), R"({"a": 1})");
  EXPECT_EQ(file.metadata().size(), 2u);
  EXPECT_TRUE(file.tensors().empty());
}

TEST_F(Safetensors, RefusesWrongHeaderLengths) {
  EXPECT_EQ(open_message(""), "f: has 0 bytes, a safetensors file has at least 8");
  EXPECT_EQ(open_message("1234567"), "f: has 7 bytes, a safetensors file has at least 8");
  EXPECT_EQ(open_message("", 100), "f: header length is 0, expected a JSON header");
  EXPECT_EQ(open_message(std::string("\x03\0\0\0\0\0\0\0{}", 10)),
            "f: header length is 3, but only 2 bytes follow: truncated, or not safetensors");
  EXPECT_EQ(open_message(std::string(8, '\xff') + "{}"),
            "f: header length is 18446744073709551615, but only 2 bytes follow: truncated, or not "
            "safetensors");
  // Beyond the limit, in a sparse file that is long enough.
  const uint64_t length = SafetensorsFile::kMaxHeaderBytes + 1;
  write_bytes(directory_ / "f", std::string(reinterpret_cast<const char*>(&length), 8));
  std::filesystem::resize_file(directory_ / "f", length + 8);
  EXPECT_NE(message_of([&] { SafetensorsFile{directory_ / "f"}; }).find("the limit is 536870912"),
            std::string::npos);
}

TEST_F(Safetensors, RefusesHeadersThatAreNotWhatTheyShouldBe) {
  EXPECT_EQ(open_message("{x}", 0).rfind("f: header: is not valid JSON: ", 0), 0u);
  EXPECT_EQ(open_message("[1]", 0), "f: header: is an array, expected an object");
  EXPECT_EQ(open_message(R"({"a":1})", 0), "f: header: a: is an integer, expected an object");
  EXPECT_EQ(open_message(R"({"__metadata__":{"a":1}})", 0),
            "f: header: __metadata__.a: is an integer, expected a string");
  EXPECT_EQ(open_message(R"({"a":{"dtype":"U8","shape":[1]}})", 1),
            "f: header: a.data_offsets: missing");
  EXPECT_EQ(open_message(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1),
            "f: header: a.data_offsets: has 1 numbers, expected 2");
  EXPECT_EQ(open_message(R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1),
            "f: header: a.shape[0]: is a real number, expected an integer");
  EXPECT_EQ(open_message(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1),
            "f: header: a.shape[0]: -1 is negative");
  EXPECT_EQ(open_message(R"({"a":{"dtype":"Q4","shape":[1],"data_offsets":[0,1]}})", 1),
            "f: tensor a: dtype Q4 is unknown");
  EXPECT_EQ(open_message(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                             "a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                         2),
            "f: header: a: given twice");
}

TEST_F(Safetensors, RefusesWrongOffsetsAndSizes) {
  EXPECT_EQ(open_message(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1),
            "f: tensor a: data_offsets [1, 0] are not a range");
  EXPECT_EQ(open_message(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})", 1),
            "f: tensor a: data_offsets [-1, 0] are not a range");
  EXPECT_EQ(open_message(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}})", 4),
            "f: tensor a: data_offsets [0, 5] end past the file's 4 bytes of data: truncated?");
  EXPECT_EQ(
      open_message(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,9223372036854775807]}})", 1),
      "f: tensor a: data_offsets [0, 9223372036854775807] end past the file's 1 bytes of data: "
      "truncated?");
  EXPECT_EQ(open_message(
                R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551615]}})", 1),
            "f: header: a.data_offsets[1]: 18446744073709551615 is above 2^63 - 1");
  EXPECT_EQ(open_message(R"({"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,4]}})", 4),
            "f: tensor a: has 4 bytes, but shape [2, 2] of BF16 takes 8");
  EXPECT_EQ(open_message(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                             "b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                         3),
            "f: tensor b: begins at byte 1 of the data, but the tensor before it ends at 2: they "
            "overlap");
  EXPECT_EQ(open_message(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                             "b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
                         5),
            "f: tensor b: begins at byte 3 of the data, but the tensor before it ends at 2: there "
            "is a gap");
  EXPECT_EQ(open_message(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3),
            "f: tensor a: begins at byte 1 of the data, but the tensor before it ends at 0: there "
            "is a gap");
  EXPECT_EQ(open_message(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 3),
            "f: 1 bytes follow the last tensor, expected none");
}

TEST_F(Safetensors, RefusesShapesThatOverflow) {
  const auto with_shape = [&](const std::string& shape) {
    return open_message(
        fmt::format(R"({{"a":{{"dtype":"F32","shape":[{}],"data_offsets":[0,0]}}}})", shape), 0);
  };
  // Products that wrap to 0 in 64 bits.
  EXPECT_EQ(with_shape("4294967296,4294967296"),
            "f: tensor a: shape [4294967296, 4294967296] of F32 is larger than 2^63 bytes");
  EXPECT_EQ(with_shape("9223372036854775807"),
            "f: tensor a: shape [9223372036854775807] of F32 is larger than 2^63 bytes");
  EXPECT_EQ(with_shape("9223372036854775808"),
            "f: header: a.shape[0]: 9223372036854775808 is above 2^63 - 1");
  EXPECT_EQ(with_shape("4611686018427387904"),
            "f: tensor a: shape [4611686018427387904] of F32 is larger than 2^63 bytes");
  EXPECT_EQ(with_shape("9223372036854775807,9223372036854775807,0"), "");  // no elements: legal
}

TEST_F(Safetensors, ZeroElementTensorsAreLegalAnywhere) {
  EXPECT_EQ(open_message(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                             "e":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},
                             "m":{"dtype":"F32","shape":[3,0],"data_offsets":[2,2]},
                             "z":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                         3),
            "");
  EXPECT_EQ(open_message("{}", 0), "");
  EXPECT_EQ(open_message("{}        ", 0), "");
}

// Every prefix of a good file is refused: a download that broke off anywhere.
TEST_F(Safetensors, RefusesEveryTruncation) {
  write_safetensors(directory_ / "good",
                    {{"a", DType::kBf16, {3}, "abcdef"}, {"b", DType::kU8, {2}, "xy"}});
  const std::string good = read_text(directory_ / "good");
  ASSERT_EQ(open_message(good), "");
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_NE(open_message(std::string_view(good).substr(0, size)), "") << size;
}

// Headers around 100,000 bytes were cut off by another reader; ours has no such edge.
TEST_F(Safetensors, ReadsHeadersOfAnyLength) {
  const std::string entry = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  std::vector<size_t> lengths = {10'000'000};
  for (size_t length = 99'990; length <= 100'010; ++length) lengths.push_back(length);
  for (const size_t length : lengths) {
    // Padding inside a string and after the object: both must be read to the end.
    const std::string padded = entry + std::string(length - entry.size(), ' ');
    EXPECT_EQ(open_message(padded, 1), "") << length;
    const std::string head = R"({"__metadata__":{"pad":")", tail = "\"}," + entry.substr(1);
    EXPECT_EQ(open_message(head + std::string(length - head.size() - tail.size(), 'x') + tail, 1),
              "")
        << length;
    EXPECT_NE(open_message(head + std::string(length - head.size() - tail.size(), 'x') + tail, 2),
              "");
  }
}

TEST_F(Safetensors, RefusesWhatIsNotAFile) {
  EXPECT_NE(message_of([&] { SafetensorsFile{directory_ / "absent"}; }).find("cannot be opened"),
            std::string::npos);
  EXPECT_NE(message_of([&] { SafetensorsFile{directory_.path()}; }).find("is not a regular file"),
            std::string::npos);
}

}  // namespace
}  // namespace halfbyte

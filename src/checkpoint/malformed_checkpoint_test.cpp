// Mutations of one valid checkpoint. Each must be refused when it is opened, with the right class
// of error and a message that names file, tensor, found and expected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/temporary_directory_testing.h"

namespace nibble::checkpoint {
namespace {

using ::testing::HasSubstr;

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

std::string length_field(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes;
}

// A shard in parts; `length` overrides the length field.
struct Shard {
  std::string header;
  std::string data;
  uint64_t length = 0;

  std::string bytes() const {
    std::string padded = header;
    padded.resize((padded.size() + 7) / 8 * 8, ' ');
    return length_field(length == 0 ? padded.size() : length) + padded + data;
  }
};

struct Files {
  Shard first = {
      .header = R"({"embed.weight":{"dtype":"BF16","shape":[4,8],"data_offsets":[0,64]},)"
                R"("layers.0.w.scale":{"dtype":"F32","shape":[2,3],"data_offsets":[64,88]},)"
                R"("layers.0.w.weight":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[88,96]}})",
      .data = std::string(96, 'x'),
  };
  Shard second = {
      .header =
          R"({"__metadata__":{"format":"pt"},"norm.weight":{"dtype":"BF16","shape":[8],"data_offsets":[0,16]}})",
      .data = std::string(16, 'y'),
  };
  std::string index = R"({"metadata":{"total_size":112},"weight_map":{)"
                      R"("embed.weight":"model-00001-of-00002.safetensors",)"
                      R"("layers.0.w.scale":"model-00001-of-00002.safetensors",)"
                      R"("layers.0.w.weight":"model-00001-of-00002.safetensors",)"
                      R"("norm.weight":"model-00002-of-00002.safetensors"}})";
  std::map<std::string, std::string> others;  // written last, over everything
  std::vector<std::string> removed;

  void write_to(const TemporaryDirectory& dir) const {
    dir.write(kFirst, first.bytes());
    dir.write(kSecond, second.bytes());
    dir.write(kIndex, index);
    for (const auto& [name, bytes] : others) dir.write(name, bytes);
    for (const std::string& name : removed) std::filesystem::remove(dir.path() / name);
  }
};

// Replaces the only occurrence of `from`.
void edit(std::string& text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  CHECK(at != std::string::npos && text.find(from, at + 1) == std::string::npos) << from;
  text.replace(at, from.size(), to);
}

struct Mutation {
  const char* name;
  std::function<void(Files&)> apply;
  Errc code;
  std::vector<std::string> texts;
};

Mutation header_edit(const char* name,
                     const std::string& from,
                     const std::string& to,
                     Errc code,
                     std::vector<std::string> texts) {
  texts.push_back(kFirst);
  return {name, [=](Files& f) { edit(f.first.header, from, to); }, code, texts};
}

Mutation index_edit(const char* name,
                    const std::string& from,
                    const std::string& to,
                    Errc code,
                    std::vector<std::string> texts) {
  texts.push_back(kIndex);
  return {name, [=](Files& f) { edit(f.index, from, to); }, code, texts};
}

// A shard name that the index may not contain.
Mutation bad_shard_name(const char* name, const std::string& json_name, const std::string& why) {
  return index_edit(name,
                    "model-00002-of-00002.safetensors",
                    json_name,
                    Errc::kDataLoss,
                    {"norm.weight", why, "expected a plain file name"});
}

std::vector<Mutation> length_mutations() {
  return {
      {"EmptyFile",
       [](Files& f) { f.others[kFirst] = ""; },
       Errc::kDataLoss,
       {kFirst, "0 bytes", "expected at least 8"}},
      {"SevenByteFile",
       [](Files& f) { f.others[kFirst] = "1234567"; },
       Errc::kDataLoss,
       {kFirst, "7 bytes", "expected at least 8"}},
      {"LengthZero",
       [](Files& f) { f.others[kFirst] = length_field(0); },
       Errc::kDataLoss,
       {kFirst, "header length 0"}},
      {"LengthBeyondTheCap",
       [](Files& f) { f.first.length = 100'000'001; },
       Errc::kDataLoss,
       {kFirst, "100000001", "100000000"}},
      {"LengthOf2To64Minus1",
       [](Files& f) { f.first.length = ~uint64_t{0}; },
       Errc::kDataLoss,
       {kFirst, "18446744073709551615", "100000000"}},
      {"LengthBeyondTheFile",
       [](Files& f) { f.first.length = 4000; },
       Errc::kDataLoss,
       {kFirst, "header of 4000 bytes", "expected at most"}},
      {"LengthOneShort",
       [](Files& f) { f.first.length = 100; },
       Errc::kDataLoss,
       {kFirst, "JSON", "expected"}},
      {"TruncatedByOneByte",
       [](Files& f) { f.first.data.pop_back(); },
       Errc::kDataLoss,
       {kFirst, "(1 missing)", "incomplete", "fetch it again"}},
      {"TruncatedToTheHeader",
       [](Files& f) { f.first.data.clear(); },
       Errc::kDataLoss,
       {kFirst, "(96 missing)", "incomplete"}},
      {"OneByteTooLong",
       [](Files& f) { f.first.data += 'z'; },
       Errc::kDataLoss,
       {kFirst, "1 bytes follow the last tensor", "expected"}},
      {"NoSafetensorsFileAtAll",
       [](Files& f) {
         f.others[kFirst] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\n";
       },
       Errc::kDataLoss,
       {kFirst, "may be no safetensors file"}},
  };
}

std::vector<Mutation> header_mutations() {
  const std::string scale_entry = R"({"dtype":"F32","shape":[2,3],"data_offsets":[64,88]})";
  const auto scale =
      [&](const char* name, const char* to, Errc code, std::vector<std::string> texts) {
        texts.push_back("layers.0.w.scale");
        return header_edit(name, scale_entry, to, code, texts);
      };
  const Errc loss = Errc::kDataLoss;
  return {
      header_edit("NotJson", R"({"embed)", R"(["embed)", loss, {"JSON", "expected a JSON object"}),
      {"HeaderIsAnArray",
       [](Files& f) { f.first.header = "[1, 2]"; },
       loss,
       {kFirst, "array of 2", "expected a JSON object"}},
      {"HeaderIsANumber",
       [](Files& f) { f.first.header = "12"; },
       loss,
       {kFirst, "12", "expected a JSON object"}},
      {"InvalidUtf8",
       [](Files& f) { edit(f.first.header, "embed", "em\xFF\xFE"); },
       loss,
       {kFirst, "JSON"}},
      {"TextAfterTheObject",
       [](Files& f) { f.first.header += " {}"; },
       loss,
       {kFirst, "JSON", "after the end"}},
      header_edit("DuplicateTensor",
                  "layers.0.w.scale",
                  "embed.weight",
                  loss,
                  {"duplicate key", "embed.weight"}),
      {"DeepNesting",
       [](Files& f) {
         edit(f.first.header, "[2,3]", std::string(5000, '[') + std::string(5000, ']'));
       },
       loss,
       {kFirst, "nested deeper than 3"}},
      {"HostileName",
       [](Files& f) {
         edit(f.first.header, "layers.0.w.scale", R"(evil\u001b[2J\nname)");
         edit(f.first.header, "F32", "F31");
       },
       Errc::kUnsupported,
       {kFirst, "tensor evil\\x1b[2J\\x0aname: ", "F31"}},
      {"EndlessName",
       [](Files& f) { edit(f.first.header, "layers.0.w.scale", std::string(100'000, 'n')); },
       Errc::kDataLoss,
       {kFirst, "nnn... (100000 bytes)", "expected at most 1024"}},
      scale("EntryIsAString", R"("F32")", loss, {"string \"F32\"", "expected an object"}),
      scale("NoDtype", R"({"shape":[2,3],"data_offsets":[64,88]})", loss, {"has no \"dtype\""}),
      scale("NoShape", R"({"dtype":"F32","data_offsets":[64,88]})", loss, {"has no \"shape\""}),
      scale("NoOffsets", R"({"dtype":"F32","shape":[2,3]})", loss, {"has no \"data_offsets\""}),
      header_edit("UnknownDtype",
                  "F32",
                  "F6_E2M3",
                  Errc::kUnsupported,
                  {"layers.0.w.scale", "dtype F6_E2M3", "expected one of"}),
      header_edit(
          "DtypeInLowerCase", "F32", "f32", Errc::kUnsupported, {"layers.0.w.scale", "dtype f32"}),
      header_edit("DtypeIsANumber",
                  R"("F32")",
                  "32",
                  loss,
                  {"layers.0.w.scale", "integer 32", "expected a string"}),
      header_edit("DtypeOfAnotherSize",
                  "F32",
                  "F64",
                  loss,
                  {"layers.0.w.scale", "span 24", "expected 48", "F64"}),
      header_edit("ShapeTooLarge",
                  "[2,3]",
                  "[2,4]",
                  loss,
                  {"layers.0.w.scale", "span 24", "expected 32", "[2, 4]"}),
      header_edit("ShapeTooSmall",
                  "[2,3]",
                  "[2]",
                  loss,
                  {"layers.0.w.scale", "span 24", "expected 8 for F32 [2]"}),
      header_edit("NegativeDimension",
                  "[2,3]",
                  "[-2,-3]",
                  loss,
                  {"layers.0.w.scale", "integer -2", "from 0"}),
      header_edit(
          "FractionalDimension", "[2,3]", "[2.5,3]", loss, {"layers.0.w.scale", "number 2.5"}),
      header_edit(
          "StringDimension", "[2,3]", R"(["2",3])", loss, {"layers.0.w.scale", "string \"2\""}),
      header_edit("DimensionBeyondInt64",
                  "[2,3]",
                  "[99999999999999999999,1]",
                  loss,
                  {"layers.0.w.scale", "2^63 - 1"}),
      header_edit("ShapeProductOverflows",
                  "[2,3]",
                  "[4294967296,4294967296]",
                  loss,
                  {"layers.0.w.scale", "overflows", "expected at most 2^48 bytes"}),
      header_edit("ByteCountOverflows",
                  "[2,3]",
                  "[4611686018427387904]",
                  loss,
                  {"layers.0.w.scale", "F32", "overflows"}),
      header_edit("RankSix",
                  "[2,3]",
                  "[1,1,1,1,2,3]",
                  Errc::kUnsupported,
                  {"layers.0.w.scale", "rank 6", "at most 5"}),
      header_edit("ShapeIsANumber",
                  "[2,3]",
                  "6",
                  loss,
                  {"layers.0.w.scale", "integer 6", "expected an array"}),
      header_edit("ThreeOffsets",
                  "[64,88]",
                  "[64,88,96]",
                  loss,
                  {"layers.0.w.scale", "3 numbers", "expected 2"}),
      header_edit("OffsetsReversed",
                  "[64,88]",
                  "[88,64]",
                  loss,
                  {"layers.0.w.scale", "[88, 64]", "begin <= end"}),
      header_edit(
          "NegativeOffset", "[64,88]", "[-24,0]", loss, {"layers.0.w.scale", "integer -24"}),
      header_edit("OffsetEndOverflows",
                  R"([2,3],"data_offsets":[64,88])",
                  R"([1,0],"data_offsets":[9223372036854775807,9223372036854775807])",
                  loss,
                  {"layers.0.w.scale", "9223372036854775807", "overflows"}),
      header_edit("LongName",
                  "layers.0.w.scale",
                  std::string(1025, 'n'),
                  loss,
                  {"the name has 1025 bytes", "expected at most 1024"}),
      header_edit("Gap", "[64,88]", "[72,96]", loss, {"layers.0.w", "expected", "tensor before"}),
      header_edit("Overlap",
                  "[64,88]",
                  "[60,84]",
                  loss,
                  {"layers.0.w.scale", "begins at 60", "expected 64", "overlap"}),
      header_edit("FirstTensorNotAtZero",
                  "[0,64]",
                  "[8,72]",
                  loss,
                  {"embed.weight", "begins at 8", "expected 0", "gap"}),
      header_edit("SpanOutsideTheFile",
                  R"([8],"data_offsets":[88,96])",
                  R"([80000],"data_offsets":[88,80088])",
                  loss,
                  {"(79992 missing)", "incomplete"}),
      {"TwoTensorsShareBytes",
       [](Files& f) {
         edit(f.first.header, R"([8],"data_offsets":[88,96])", R"([24],"data_offsets":[64,88])");
       },
       loss,
       {kFirst, "layers.0.w", "begins at 64", "expected 88", "overlap"}},
      {"Misaligned",
       [](Files& f) {
         f.first.header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                          R"("layers.0.w.scale":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
         f.first.data.resize(5);
       },
       Errc::kUnsupported,
       {kFirst,
        "layers.0.w.scale",
        "F32 data at byte",
        "expected a multiple of 4",
        "Write the file again"}},
      {"MetadataIsAnArray",
       [](Files& f) { edit(f.second.header, R"({"format":"pt"})", "[]"); },
       loss,
       {kSecond, "__metadata__", "array of 0", "expected an object"}},
      {"MetadataValueIsANumber",
       [](Files& f) { edit(f.second.header, R"("pt")", "1"); },
       loss,
       {kSecond, "__metadata__.format", "integer 1", "expected a string"}},
  };
}

std::vector<Mutation> index_mutations() {
  const Errc loss = Errc::kDataLoss;
  return {
      index_edit("IndexNotJson",
                 R"({"metadata")",
                 R"({metadata)",
                 loss,
                 {"JSON", "expected a JSON object"}),
      {"IndexEmpty", [](Files& f) { f.index = ""; }, loss, {kIndex, "JSON"}},
      index_edit("NoWeightMap", "weight_map", "weights", loss, {"weight_map is missing"}),
      {"WeightMapIsAnArray",
       [](Files& f) { f.index = R"({"weight_map":["a"]})"; },
       loss,
       {kIndex, "weight_map is array of 1", "expected an object"}},
      {"WeightMapIsEmpty",
       [](Files& f) { f.index = R"({"weight_map":{}})"; },
       loss,
       {kIndex, "names 0 tensors", "expected at least 1"}},
      index_edit("ShardIsANumber",
                 R"("model-00002-of-00002.safetensors")",
                 "2",
                 loss,
                 {"norm.weight", "integer 2", "expected a file name"}),
      index_edit("DuplicateIndexEntry",
                 "norm.weight",
                 "embed.weight",
                 loss,
                 {"duplicate key", "embed.weight"}),
      bad_shard_name("ParentDirectory", "../model.safetensors", "path separator"),
      bad_shard_name("AbsolutePath", "/etc/model.safetensors", "path separator"),
      bad_shard_name("Subdirectory", "sub/model.safetensors", "path separator"),
      bad_shard_name("Backslash", R"(..\\model.safetensors)", "path separator"),
      bad_shard_name("NulInName", R"(model\u0000.safetensors)", "control character"),
      bad_shard_name("NewlineInName", R"(model\n.safetensors)", "control character"),
      bad_shard_name("EmptyName", "", "is empty"),
      bad_shard_name("DotDot", "..", "does not end in .safetensors"),
      bad_shard_name("OtherSuffix", "pytorch_model.bin", "does not end in .safetensors"),
      bad_shard_name(
          "NameTooLong", std::string(250, 'm') + ".safetensors", "longer than 255 bytes"),
      {"MissingShard",
       [](Files& f) { f.removed.push_back(kSecond); },
       Errc::kNotFound,
       {kSecond, "No such file", kIndex, "expected it beside the index", "Fetch"}},
      index_edit("MisspelledShard",
                 "model-00002-of-00002",
                 "model-00003-of-00002",
                 Errc::kNotFound,
                 {"model-00003-of-00002.safetensors", "No such file"}),
      index_edit("TensorInNoShard",
                 R"("norm.weight")",
                 R"("ghost":"model-00002-of-00002.safetensors","norm.weight")",
                 loss,
                 {"tensor ghost", "found in no shard", kSecond}),
      index_edit("TensorInAnotherShard",
                 R"("embed.weight":"model-00001-of-00002.safetensors")",
                 R"("embed.weight":"model-00002-of-00002.safetensors")",
                 loss,
                 {"embed.weight", kFirst, kSecond, "found in", "expected in"}),
      index_edit("TensorNotInTheIndex",
                 R"("embed.weight":"model-00001-of-00002.safetensors",)",
                 "",
                 loss,
                 {"embed.weight", kFirst, "expected an entry"}),
      {"TensorInTwoShards",
       [](Files& f) { edit(f.second.header, "norm.weight", "embed.weight"); },
       loss,
       {"embed.weight", kFirst, kSecond, "expected in one shard only"}},
      {"ShardsSwapped",
       [](Files& f) { std::swap(f.first, f.second); },
       loss,
       {kIndex, "embed.weight", kSecond, "expected in", kFirst}},
      {"NoIndexAndNoSingleFile",
       [](Files& f) { f.removed.push_back(kIndex); },
       Errc::kNotFound,
       {"model.safetensors", kIndex, "No such file", "pass the directory"}},
      {"ShardIsADirectory",
       [](Files& f) { edit(f.index, "model-00002-of-00002.safetensors", "dir.safetensors"); },
       Errc::kInvalidArgument,
       {"dir.safetensors", "not a regular file"}},
  };
}

std::vector<Mutation> all_mutations() {
  std::vector<Mutation> all = length_mutations();
  for (const auto& list : {header_mutations(), index_mutations()})
    all.insert(all.end(), list.begin(), list.end());
  return all;
}

TEST(ValidCheckpoint, OpensBeforeItIsMutated) {
  const TemporaryDirectory dir;
  Files().write_to(dir);
  const Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->tensors().size(), 4u);
  EXPECT_TRUE(checkpoint->warnings().empty());
}

class MalformedCheckpoint : public ::testing::TestWithParam<Mutation> {};

TEST_P(MalformedCheckpoint, IsRefusedWithItsReason) {
  const Mutation& mutation = GetParam();
  const TemporaryDirectory dir;
  std::filesystem::create_directory(dir.path() / "dir.safetensors");
  Files files;
  mutation.apply(files);
  files.write_to(dir);
  const Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
  ASSERT_FALSE(checkpoint.ok());
  const Error& error = checkpoint.error();
  EXPECT_STREQ(errc_name(error.code), errc_name(mutation.code)) << error.message;
  for (const std::string& text : mutation.texts) EXPECT_THAT(error.message, HasSubstr(text));
  EXPECT_LT(error.message.size(), 1500u);
  EXPECT_EQ(error.message.find('\n'), std::string::npos);
  EXPECT_EQ(error.message.back(), '.');
}

INSTANTIATE_TEST_SUITE_P(Each,
                         MalformedCheckpoint,
                         ::testing::ValuesIn(all_mutations()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(MalformedCheckpoints, AreAtLeastForty) { EXPECT_GE(all_mutations().size(), 40u); }

TEST(SafetensorsHeader, IsRefusedForEveryTruncationOfTheFile) {
  const std::string bytes = Files().first.bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto file = std::as_bytes(std::span(bytes.data(), size));
    const auto header = parse_safetensors_header(file, static_cast<int64_t>(size), "f");
    ASSERT_FALSE(header.ok()) << size;
    EXPECT_EQ(header.error().code, Errc::kDataLoss);
  }
}

TEST(SafetensorsHeader, SurvivesEveryFlippedByte) {
  const std::string good = Files().first.bytes();
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int flip : {0x01, 0x20, 0x80, 0xFF}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      const auto header = parse_safetensors_header(
          std::as_bytes(std::span(bad)), static_cast<int64_t>(bad.size()), "f");
      if (!header.ok()) continue;
      for (const StoredTensor& tensor : header->tensors) {
        EXPECT_GE(tensor.begin, header->data_begin);
        EXPECT_LE(tensor.end, static_cast<int64_t>(bad.size()));
      }
    }
  }
}

}  // namespace
}  // namespace nibble::checkpoint

#include "checkpoint/config_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/generation_config.h"
#include "checkpoint/temporary_directory_testing.h"

namespace nibble::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ConfigReader reader(std::string_view text) {
  return ConfigReader::parse(text, "config.json").value();
}

TEST(ConfigReader, ReadsTypedValues) {
  const ConfigReader config = reader(
      R"({"a": 3, "b": 2.5, "c": true, "d": "x", "e": [1, 2], "f": ["p", "q"], "g": {"h": 7}, "i": null})");
  EXPECT_EQ(config.integer({"a"}, {0, 3}).value(), 3);
  EXPECT_EQ(config.integer({"g.h"}, {0, 9}).value(), 7);
  EXPECT_EQ(config.number({"a"}, {0, 3}).value(), 3.0);
  EXPECT_EQ(config.number({"b"}, {0, 3}).value(), 2.5);
  EXPECT_EQ(config.boolean_or({"c"}, false).value(), true);
  EXPECT_EQ(config.string_or({"d"}, "").value(), "x");
  EXPECT_THAT(*config.integers({"e"}, {0, 9}, 2).value(), ElementsAre(1, 2));
  EXPECT_THAT(*config.integer_or_list({"a"}, {0, 9}, 2).value(), ElementsAre(3));
  EXPECT_THAT(*config.integer_or_list({"e"}, {0, 9}, 2).value(), ElementsAre(1, 2));
  EXPECT_THAT(*config.strings({"f"}, 2).value(), ElementsAre("p", "q"));
}

TEST(ConfigReader, TreatsNullAsAbsent) {
  const ConfigReader config = reader(R"({"i": null})");
  EXPECT_EQ(config.integer_or({"i"}, {0, 9}, 4).value(), 4);
  EXPECT_EQ(config.number_or({"i.x"}, {0, 9}, 0.5).value(), 0.5);
  EXPECT_EQ(config.string_or({"i"}, "y").value(), "y");
  EXPECT_EQ(config.integers({"i"}, {0, 9}, 4).value(), std::nullopt);
  EXPECT_EQ(config.strings({"none"}, 4).value(), std::nullopt);
}

TEST(ConfigReader, TakesAnySpellingButNoContradiction) {
  const ConfigReader config =
      reader(R"({"dim": 8, "theta": 10000, "rope": {"theta": 10000.0}, "x": 1, "y": 2})");
  EXPECT_EQ(config.integer({"hidden_size", "dim"}, {1, 9}).value(), 8);
  EXPECT_EQ(config.number({"theta", "rope.theta"}, {1, 1e6}).value(), 10000.0);
  const Result<int64_t> both = config.integer({"x", "y"}, {0, 9});
  ASSERT_FALSE(both.ok());
  EXPECT_EQ(both.error().message,
            "config.json: y: found integer 2, expected integer 1 as under x. Correct the file or "
            "fetch it again.");
}

TEST(ConfigReader, SaysWhatItFoundAndWhatItExpected) {
  const ConfigReader config =
      reader(R"({"a": "3", "b": 2.5, "c": 1e30, "big": 99999999999999999999, "l": [1, -1],
                                         "s": ["x", 1], "o": {"k": 1}, "t": 7})");
  const auto message = [](const auto& result) {
    return result.ok() ? std::string("ok") : result.error().message;
  };
  EXPECT_EQ(message(config.integer({"n", "m"}, {1, 4})),
            "config.json: n or m: found nothing, expected an integer from 1 to 4. Correct the file "
            "or fetch it again.");
  EXPECT_THAT(message(config.integer({"a"}, {1, 4})),
              HasSubstr("a: found string \"3\", expected an integer"));
  EXPECT_THAT(message(config.integer({"b"}, {1, 4})),
              HasSubstr("b: found number 2.5, expected an integer"));
  EXPECT_THAT(message(config.integer({"big"}, {1, 4})),
              HasSubstr("found integer 99999999999999999999"));
  EXPECT_THAT(message(config.integer({"t"}, {1, 6})),
              HasSubstr("found integer 7, expected an integer from 1 to 6"));
  EXPECT_THAT(message(config.number({"c"}, {0, 1e6})),
              HasSubstr("expected a number from 0 to 1000000"));
  EXPECT_THAT(message(config.boolean_or({"a"}, false)), HasSubstr("expected true or false"));
  EXPECT_THAT(message(config.string_or({"t"}, "")),
              HasSubstr("found integer 7, expected a string"));
  EXPECT_THAT(message(config.integers({"l"}, {0, 9}, 9)), HasSubstr("l[1]: found integer -1"));
  EXPECT_THAT(message(config.integers({"l"}, {0, 9}, 1)),
              HasSubstr("found array of 2, expected an array of at most 1"));
  EXPECT_THAT(message(config.integers({"t"}, {0, 9}, 1)),
              HasSubstr("found integer 7, expected an array"));
  EXPECT_THAT(message(config.strings({"s"}, 9)),
              HasSubstr("s[1]: found integer 1, expected a string"));
  EXPECT_THAT(message(config.integer({"t.k"}, {0, 9})),
              HasSubstr("t: found integer 7, expected an object"));
}

TEST(ConfigReader, RefusesWhatIsNoObject) {
  for (const char* text : {"", "[]", "3", "{", "{\"a\":1,\"a\":2}", "{} x"}) {
    const auto config = ConfigReader::parse(text, "config.json");
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_EQ(config.error().code, Errc::kDataLoss);
    EXPECT_THAT(config.error().message, HasSubstr("config.json: "));
    EXPECT_THAT(config.error().message, HasSubstr("expected a JSON object"));
  }
}

TEST(ReadConfig, NamesTheMissingFile) {
  const TemporaryDirectory dir;
  const auto config = read_config(dir.path());
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, Errc::kNotFound);
  EXPECT_THAT(config.error().message, HasSubstr("config.json"));
  dir.write("config.json", R"({"a": 1})");
  EXPECT_EQ(read_config(dir.path())->integer({"a"}, {0, 1}).value(), 1);
}

TEST(GenerationConfig, ReadsOneOrSeveralEndTokens) {
  const auto one = parse_generation_config(
      R"({"bos_token_id": 0, "eos_token_id": 1, "do_sample": true, "temperature": 0.6, "top_p": 0.95})",
      "g.json");
  ASSERT_TRUE(one.ok()) << one.error().message;
  EXPECT_EQ(one->bos_token_id, 0);
  EXPECT_THAT(one->eos_token_ids, ElementsAre(1));
  EXPECT_EQ(one->do_sample, true);
  EXPECT_EQ(one->temperature, 0.6);
  EXPECT_EQ(one->top_p, 0.95);
  EXPECT_THAT(parse_generation_config(R"({"eos_token_id": [1, 7]})", "g.json")->eos_token_ids,
              ElementsAre(1, 7));
}

TEST(GenerationConfig, ReadsFurtherSamplingDefaults) {
  const auto config = parse_generation_config(
      R"({"top_k": 20, "repetition_penalty": 1.05, "min_p": 0.01})", "g.json");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->top_k, 20);
  EXPECT_EQ(config->repetition_penalty, 1.05);
  EXPECT_EQ(config->min_p, 0.01);
  EXPECT_EQ(parse_generation_config(R"({"top_k": -1})", "g.json")->top_k, 0);
}

TEST(GenerationConfig, IsEmptyWithoutAFile) {
  const TemporaryDirectory dir;
  const auto config = read_generation_config(dir.path());
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->bos_token_id, std::nullopt);
  EXPECT_TRUE(config->eos_token_ids.empty());
  EXPECT_EQ(config->do_sample, std::nullopt);
  EXPECT_EQ(config->temperature, std::nullopt);
}

TEST(GenerationConfig, RefusesValuesOutOfRange) {
  for (const char* text : {R"({"temperature": -1})",
                           R"({"top_p": 1.5})",
                           R"({"eos_token_id": "x"})",
                           R"({"eos_token_id": [-1]})",
                           R"({"bos_token_id": 4294967296})",
                           R"({"top_k": 1.5})",
                           R"({"repetition_penalty": 0})",
                           R"({"do_sample": 1})"}) {
    const auto config = parse_generation_config(text, "generation_config.json");
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_EQ(config.error().code, Errc::kDataLoss);
    EXPECT_THAT(config.error().message, HasSubstr("generation_config.json: "));
  }
}

}  // namespace
}  // namespace nibble::checkpoint

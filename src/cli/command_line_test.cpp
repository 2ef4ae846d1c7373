#include "cli/command_line.h"

#include <gtest/gtest.h>

#include <fstream>

#include "cli/exit_codes.h"

namespace nibble::cli {
namespace {

Result<CommandLine> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "nibble");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

template <class Flags>
Flags parse_as(std::vector<const char*> arguments) {
  const auto line = parse(std::move(arguments));
  EXPECT_TRUE(line.ok()) << line.error().message;
  return std::get<Flags>(line->command);
}

std::string fault(std::vector<const char*> arguments) {
  const auto line = parse(std::move(arguments));
  if (line.ok()) return "";
  EXPECT_EQ(line.error().code, Errc::kInvalidArgument);
  return line.error().message;
}

class ConfigFile final {
 public:
  explicit ConfigFile(std::string_view text)
      : path_(::testing::TempDir() + "nibble_config_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".toml") {
    std::ofstream(path_) << text;
  }
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
};

TEST(CommandLine, MeasurementsReadTheirFlags) {
  const auto decode = parse_as<BenchDecodeFlags>({"bench",
                                                  "decode",
                                                  "dir",
                                                  "--batch",
                                                  "1,16,64",
                                                  "--load-format",
                                                  "dummy",
                                                  "--num-layers-override",
                                                  "8",
                                                  "--json"});
  EXPECT_EQ(decode.batches, (std::vector<int32_t>{1, 16, 64}));
  EXPECT_EQ(decode.model.num_layers_override, 8);
  EXPECT_TRUE(decode.json);
  EXPECT_EQ(parse_as<BenchPrefillFlags>({"bench", "prefill", "dir", "--chunk", "2048"}).chunk,
            2048);
  EXPECT_EQ(parse_as<BenchKernelsFlags>({"bench", "kernels", "dir", "--only", "top_k"}).only,
            "top_k");
  const auto profile = parse_as<ProfileFlags>({"profile", "dir", "--batch", "4", "--prefill"});
  EXPECT_EQ(profile.batch, 4);
  EXPECT_TRUE(profile.prefill);
  EXPECT_NE(fault({"bench", "decode", "dir", "--batch", "0"}), "");
}

TEST(CommandLine, GenerateReadsModelAndSamplingFlags) {
  const auto flags = parse_as<GenerateFlags>({"generate",
                                              "dir",
                                              "Hello",
                                              "--threads",
                                              "3",
                                              "--isa",
                                              "avx2",
                                              "--precision",
                                              "faithful",
                                              "--temperature",
                                              "0.5",
                                              "--top-k",
                                              "7",
                                              "--logit-bias",
                                              "5:-1.5",
                                              "--logit-bias",
                                              "6:2",
                                              "--stop",
                                              "a b",
                                              "--stop",
                                              "c",
                                              "--seed",
                                              "18446744073709551615",
                                              "--think"});
  EXPECT_EQ(flags.model.model, "dir");
  EXPECT_EQ(flags.prompt, "Hello");
  EXPECT_EQ(flags.model.threads, 3);
  EXPECT_EQ(flags.model.isa, device::IsaLevel::kAvx2);
  EXPECT_EQ(flags.model.precision, models::Precision::kFaithful);
  EXPECT_EQ(flags.sampling.temperature, 0.5F);
  EXPECT_EQ(flags.sampling.top_p, std::nullopt);
  EXPECT_EQ(flags.sampling.top_k, 7);
  EXPECT_EQ(flags.sampling.logit_bias,
            (std::vector<std::pair<int32_t, float>>{{5, -1.5F}, {6, 2.0F}}));
  EXPECT_EQ(flags.sampling.stop, (std::vector<std::string>{"a b", "c"}));
  EXPECT_EQ(flags.sampling.seed, UINT64_MAX);
  EXPECT_TRUE(flags.think);
  EXPECT_FALSE(flags.raw);
}

TEST(CommandLine, DefaultsLeaveThingsToTheModel) {
  const auto flags = parse_as<GenerateFlags>({"generate", "dir"});
  EXPECT_EQ(flags.prompt, std::nullopt);
  EXPECT_EQ(flags.model.precision, models::Precision::kDefault);
  EXPECT_EQ(flags.model.isa, device::IsaLevel::kNative);
  EXPECT_EQ(flags.sampling.temperature, std::nullopt);
  EXPECT_EQ(flags.sampling.seed, std::nullopt);
}

TEST(CommandLine, MemoryOfAStatedSizeIsResidentFromTheStart) {
  EXPECT_FALSE(parse_as<ServeFlags>({"serve", "dir"}).kv.is_resident());
  EXPECT_TRUE(parse_as<ServeFlags>({"serve", "dir", "--prefault", "on"}).kv.is_resident());
  EXPECT_TRUE(parse_as<ServeFlags>({"serve", "dir", "--kv-memory-mb", "900"}).kv.is_resident());
  EXPECT_TRUE(parse_as<ServeFlags>({"serve", "dir", "--max-total-tokens", "9"}).kv.is_resident());
  EXPECT_FALSE(
      parse_as<ServeFlags>({"serve", "dir", "--max-total-tokens", "9", "--prefault", "off"})
          .kv.is_resident());
  EXPECT_FALSE(KvFlags{.memory_mb = 900}.is_resident());  // of programs for one sequence
}

TEST(CommandLine, KvFormsHaveTheNamesOfOtherServers) {
  const auto form = [](const char* name) {
    return parse_as<GenerateFlags>({"generate", "dir", "--kv-cache-dtype", name}).model.kv_dtype;
  };
  EXPECT_EQ(form("auto"), models::KvDtype::kAuto);
  EXPECT_EQ(form("bfloat16"), models::KvDtype::kBf16);
  EXPECT_EQ(form("fp8_e4m3"), models::KvDtype::kFp8);
  EXPECT_EQ(form("fp8_ds_mla"), models::KvDtype::kFp8);
}

TEST(CommandLine, LogitsReadsIdsAndFiles) {
  const auto flags = parse_as<LogitsFlags>({"logits",
                                            "dir",
                                            "--ids",
                                            "1,2,3",
                                            "--last",
                                            "2",
                                            "--chunk",
                                            "5",
                                            "--mtp",
                                            "--record",
                                            "d",
                                            "--output",
                                            "o"});
  EXPECT_EQ(flags.ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(flags.last, 2);
  EXPECT_EQ(flags.chunk, 5);
  EXPECT_TRUE(flags.mtp);
  EXPECT_EQ(flags.record, Path("d"));
  EXPECT_EQ(flags.output, Path("o"));
  EXPECT_NE(fault({"logits", "dir", "--output", "o", "--record", "a", "--replay", "b"}), "");
  EXPECT_NE(fault({"logits", "dir", "--output", "o", "--ids", "1", "--ids-file", "b"}), "");
  EXPECT_NE(fault({"logits", "dir", "--ids", "1"}), "") << "--output is required";
}

TEST(CommandLine, TokenizeNeedsADirectoryOnly) {
  const auto flags = parse_as<TokenizeFlags>({"tokenize", "dir", "--json", "--no-special"});
  EXPECT_TRUE(flags.json);
  EXPECT_TRUE(flags.no_special);
  EXPECT_FALSE(flags.decode);
}

TEST(CommandLine, NamesWhatIsWrong) {
  EXPECT_NE(fault({"generate", "dir", "--no-such-flag"}).find("--no-such-flag"), std::string::npos);
  EXPECT_NE(fault({"generate"}).find("model"), std::string::npos);
  EXPECT_NE(fault({"generate", "dir", "--threads", "-1"}).find("--threads"), std::string::npos);
  EXPECT_NE(fault({"generate", "dir", "--threads", "99999999999"}).find("--threads"),
            std::string::npos);
  EXPECT_NE(fault({"generate", "dir", "--temperature", "warm"}).find("--temperature"),
            std::string::npos);
  EXPECT_EQ(fault({"generate", "dir", "--isa", "sse9"}),
            "--isa: \"sse9\" is none of native|scalar|avx2|avx512 (see nibble --help)");
  EXPECT_EQ(fault({"generate", "dir", "--logit-bias", "5=1"}),
            "--logit-bias: \"5=1\" is not ID:BIAS (see nibble --help)");
  EXPECT_NE(fault({"generate", "dir", "--seed", "-1"}), "");
  EXPECT_EQ(fault({"unknown"}), "unknown command or flag \"unknown\" (see nibble --help)");
  EXPECT_EQ(fault({"--unknown"}), "unknown command or flag \"--unknown\" (see nibble --help)");
  EXPECT_EQ(fault({}), "A subcommand is required (see nibble --help)");
}

TEST(CommandLine, FlagsWinOverTheConfigFile) {
  const ConfigFile file(
      "log-level = \"error\"\n[generate]\nmodel = \"from-file\"\nthreads = 2\ntemperature = 0.25\n"
      "ignore-eos = true\nstop = [\"x\", \"y\"]\n[serve]\nport = 1234\n");
  const auto line = parse({"generate", "--config", file.path(), "--threads", "5"});
  ASSERT_TRUE(line.ok()) << line.error().message;
  EXPECT_EQ(line->log_level, LogLevel::kError);
  const auto& flags = std::get<GenerateFlags>(line->command);
  EXPECT_EQ(flags.model.model, "from-file");
  EXPECT_EQ(flags.model.threads, 5);
  EXPECT_EQ(flags.sampling.temperature, 0.25F);
  EXPECT_TRUE(flags.sampling.ignore_eos);
  EXPECT_EQ(flags.sampling.stop, (std::vector<std::string>{"x", "y"}));
}

TEST(CommandLine, UnknownKeysOfTheConfigFileAreErrors) {
  const ConfigFile key("[serve]\nprot = 1\n");
  EXPECT_NE(fault({"serve", "dir", "--config", key.path()}).find("serve.prot"), std::string::npos);
  const ConfigFile section("[sevre]\nport = 1\n");
  EXPECT_NE(fault({"serve", "dir", "--config", section.path()}).find("\"sevre\""),
            std::string::npos);
  const ConfigFile value("[serve]\nport = 70000\n");
  EXPECT_NE(fault({"serve", "dir", "--config", value.path()}).find("--port"), std::string::npos);
}

TEST(CommandLine, ConfigFilesThatCannotBeReadAreErrors) {
  const auto missing = parse({"serve", "dir", "--config", "/no/such/file"});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Errc::kNotFound);
  EXPECT_EQ(missing.error().message, "/no/such/file: cannot open: No such file or directory");
  EXPECT_EQ(fault({"serve", "dir", "--config", "/dev/zero"}),  // has no end
            "/dev/zero: is not a regular file");
  EXPECT_NE(fault({"serve", "dir", "--config", "/"}), "");
}

TEST(CommandLine, EmptyTextIsNoNumberAndNoName) {
  for (const char* flag : {"--temperature",
                           "--top-p",
                           "--top-k",
                           "--min-p",
                           "--presence-penalty",
                           "--frequency-penalty",
                           "--repetition-penalty",
                           "--stop-token-id",
                           "--seed",
                           "--max-tokens"}) {
    EXPECT_NE(fault({"generate", "dir", "x", flag, ""}).find(flag), std::string::npos) << flag;
  }
  for (const char* flag : {"--port", "--temperature", "--served-model-name", "--allowed-host"}) {
    EXPECT_NE(fault({"serve", "dir", flag, ""}).find(flag), std::string::npos) << flag;
  }
  EXPECT_NE(fault({"serve", "dir", "--temperature", "nan"}), "");
}

TEST(CommandLine, IdsAreReadWhole) {
  for (const char* ids : {"", ",", "1,", ",1", "1,,2", "1 2", "1,x", "1.5", "99999999999"}) {
    EXPECT_NE(fault({"logits", "dir", "--output", "o", "--ids", ids}).find("--ids"),
              std::string::npos)
        << ids;
  }
  const auto flags =
      parse_as<LogitsFlags>({"logits", "dir", "--output", "o", "--ids", "1,2", "--ids", "3"});
  EXPECT_EQ(flags.ids, (std::vector<int32_t>{1, 2, 3}));
}

TEST(CommandLine, HelpListsEveryExitCode) {
  const auto line = parse({"--help"});
  ASSERT_TRUE(line.ok());
  for (const ExitCode& entry : kExitCodes) {
    EXPECT_NE(line->text->find(std::to_string(entry.code)), std::string::npos);
    EXPECT_NE(line->text->find(entry.meaning), std::string::npos);
  }
  EXPECT_EQ(line->text->find("demo"), std::string::npos);
  const auto sub = parse({"logits", "--help"});
  ASSERT_TRUE(sub.ok());
  EXPECT_NE(sub->text->find("Usage: nibble logits"), std::string::npos);
}

TEST(ExitCodes, EveryErrorClassHasAnEntry) {
  for (int i = 0; i <= static_cast<int>(Errc::kInternal); ++i) {
    const int code = exit_code(static_cast<Errc>(i));
    EXPECT_NE(code, kExitOk);
    EXPECT_EQ(std::count_if(std::begin(kExitCodes),
                            std::end(kExitCodes),
                            [&](const ExitCode& entry) { return entry.code == code; }),
              1);
  }
}

// B09: experts split between CPU and GPU are refused in words, for any number of them.
TEST(CommandLine, RefusesExpertsSplitBetweenCpuAndGpuB09) {
  for (const char* count : {"0", "1"}) {
    EXPECT_NE(fault({"serve", "dir", "--kt-num-gpu-experts", count}), "") << count;
    EXPECT_NE(fault({"serve", "dir", "--cpu-offload-gb", count}), "") << count;
  }
}

}  // namespace
}  // namespace nibble::cli

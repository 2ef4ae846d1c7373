#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "cli/process_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::ProcessResult;
using testing::run_nibble;

const std::string kModel = NIBBLE_SOURCE_DIR "/models/tiny-v4";

class CheckpointCommands : public ::testing::Test {
 protected:
  CheckpointCommands()
      : dir_(::testing::TempDir() + "nibble_checkpoints_" +
             ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  ~CheckpointCommands() override { fs::remove_all(dir_); }

  std::string path(const std::string& name) const { return (dir_ / name).string(); }

  // The file that `nibble logits MODEL MORE...` writes.
  std::string logits(const std::string& model, const std::vector<std::string>& more) const {
    std::vector<std::string> command = {
        "logits", model, "--ids", "0,5,17,300,42,99,1000,2000", "--output", path("logits")};
    command.insert(command.end(), more.begin(), more.end());
    const ProcessResult result = run_nibble(command);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return read_file(path("logits"), 1 << 24).value();
  }

  Path dir_;
};

TEST_F(CheckpointCommands, ConvertReportsEachClassAndRefusesToWriteTwice) {
  std::vector<std::string> command = {
      "convert", kModel, path("out"), "--to", "nvfp4", "--shard-mb", "8", "--threads", "2"};
  const ProcessResult first = run_nibble(command);
  EXPECT_EQ(first.exit_code, 0) << first.errors;
  EXPECT_THAT(first.output, HasSubstr("routed_experts           576 exact\n"));
  EXPECT_THAT(first.output, HasSubstr("0.03 GB in 4 files"));
  EXPECT_THAT(first.errors, HasSubstr("mtp.* keeps its format"));
  const ProcessResult second = run_nibble(command);
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.errors, HasSubstr("exists, expected a new directory"));
  command.push_back("--resume");
  EXPECT_THAT(run_nibble(command).output, HasSubstr("was complete already"));
}

TEST_F(CheckpointCommands, ConvertMapsFaultsToExitCodes) {
  const auto exit_code = [&](const std::string& in, const std::string& format) {
    return run_nibble({"convert", in, path("out"), "--to", format}).exit_code;
  };
  EXPECT_EQ(exit_code(kModel, "int4"), 3);
  EXPECT_EQ(exit_code(kModel, "native"), 2);
  EXPECT_EQ(exit_code(kModel, "fp16"), 2);
  EXPECT_EQ(exit_code(path("none"), "nvfp4"), 4);
  fs::copy(kModel, path("cut"));
  const Path shard = dir_ / "cut" / "model-00002-of-00003.safetensors";
  fs::resize_file(shard, fs::file_size(shard) - 1);
  EXPECT_EQ(exit_code(path("cut"), "nvfp4"), 5);
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(CheckpointCommands, LogitsOfAConvertedModelAreTheSameBytes) {
  ASSERT_EQ(run_nibble({"convert", kModel, path("nvfp4"), "--to", "nvfp4"}).exit_code, 0);
  const std::vector<std::string> reference = {"--precision", "reference", "--mtp"};
  EXPECT_EQ(logits(path("nvfp4"), reference), logits(kModel, reference));
}

TEST_F(CheckpointCommands, PlanResolvesWhatConvertWrites) {
  ASSERT_EQ(run_nibble({"convert", kModel, path("nvfp4"), "--to", "nvfp4"}).exit_code, 0);
  const ProcessResult plan = run_nibble({"plan", path("nvfp4"), "--gpu", "cpu"});
  EXPECT_EQ(plan.exit_code, 0) << plan.output << plan.errors;
  EXPECT_THAT(plan.output, HasSubstr("nvfp4"));
  // The input scales are there: no warning that 4-bit activations are impossible.
  const ProcessResult gpu = run_nibble({"plan", path("nvfp4"), "--gpu", "b200"});
  EXPECT_THAT(gpu.output, HasSubstr("grouped_matmul.nvfp4.bf16.sm_80.tensor_core"));
  EXPECT_THAT(gpu.output + gpu.errors, ::testing::Not(HasSubstr("Q-S5")));
}

TEST_F(CheckpointCommands, DummyWeightsHaveTheFewLayersAskedFor) {
  const std::vector<std::string> dummy = {"--load-format", "dummy", "--num-layers-override", "2"};
  EXPECT_EQ(logits(kModel, dummy), logits(kModel, dummy));
  EXPECT_NE(logits(kModel, dummy), logits(kModel, {"--load-format", "dummy"}));
  const ProcessResult too_many = run_nibble({"logits",
                                             kModel,
                                             "--ids",
                                             "1",
                                             "--output",
                                             path("logits"),
                                             "--load-format",
                                             "dummy",
                                             "--num-layers-override",
                                             "7"});
  EXPECT_EQ(too_many.exit_code, 2);
  EXPECT_THAT(too_many.errors, HasSubstr("expected 1 to 6"));
}

TEST_F(CheckpointCommands, SynthKnowsItsPresets) {
  const ProcessResult result = run_nibble({"synth", path("out"), "--preset", "maxi"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.errors, HasSubstr("maxi"));
}

}  // namespace
}  // namespace nibble

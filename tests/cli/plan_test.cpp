#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "cli/process_testing.h"

namespace nibble {
namespace {

using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProcessResult;
using testing::run_nibble;
using ::testing::StartsWith;

const std::string kModel = NIBBLE_SOURCE_DIR "/models/tiny-v4";

// A copy of the bundled model that a test may damage.
Path copy_model() {
  const Path dir = ::testing::TempDir() + "nibble_plan_" +
                   ::testing::UnitTest::GetInstance()->current_test_info()->name();
  std::filesystem::remove_all(dir);
  std::filesystem::copy(kModel, dir);
  return dir;
}

json::Value plan_json(const std::string& target, int expected_exit = 0) {
  const ProcessResult run = run_nibble({"plan", target, "--gpu", "cpu", "--json"});
  EXPECT_EQ(run.exit_code, expected_exit) << run.errors;
  Result<json::Value> value = json::parse(run.output);
  EXPECT_TRUE(value.ok()) << run.output;
  return std::move(value).value();
}

std::set<std::string> codes_of(const json::Value& plan, std::string_view list) {
  std::set<std::string> codes;
  for (const json::Value& entry : *plan.find(list)->as_array()) {
    codes.insert(*entry.find("code")->as_string());
  }
  return codes;
}

void replace_in(const Path& path, const std::string& from, const std::string& to) {
  std::string text = read_file(path, 1 << 26).value();
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  std::ofstream(path, std::ios::binary) << text;
}

TEST(PlanCommand, DescribesTheBundledModel) {
  const ProcessResult run = run_nibble({"plan", kModel, "--gpu", "cpu"});
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(run.output, HasSubstr("deepseek_v4, 6 layers"));
  EXPECT_THAT(run.output, HasSubstr("this build runs it"));
  EXPECT_THAT(run.output, HasSubstr("-> grouped_matmul.mxfp4.bf16.avx512_bf16.simd (simd, runs"));
  EXPECT_THAT(run.output, HasSubstr("header: I8 + F8_E8M0/32; expert_dtype fp4 (config.json)"));
}

TEST(PlanCommand, PlansForThisMachineByDefault) {
  const ProcessResult run = run_nibble({"plan", kModel});
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(run.output, HasSubstr("measured now"));
}

TEST(PlanCommand, GivesJson) {
  const json::Value plan = plan_json(kModel);
  EXPECT_TRUE(plan.find("errors")->as_array()->empty());
  EXPECT_TRUE(*plan.find("runs_in_this_build")->as_bool());
  EXPECT_TRUE(*plan.find("memory")->find("fits")->as_bool());
  EXPECT_TRUE(plan.find("why_no_sizes")->is_null());
  EXPECT_TRUE(*plan.find("download")->find("complete")->as_bool());
}

TEST(PlanCommand, ComparesMachines) {
  const ProcessResult run = run_nibble({"plan", kModel, "--gpu", "h200", "--gpu", "rtx-pro-6000"});
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(run.output, HasSubstr("h200"));
  EXPECT_THAT(run.output, HasSubstr("rtx-pro-6000"));
}

// A shared expert of 128 rows has one FP8 block, which two devices cannot share.
TEST(PlanCommand, RefusesASplitInsideABlock) {
  const ProcessResult run = run_nibble({"plan", kModel, "--gpu", "h200x2"});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.errors, HasSubstr("Q-P3"));
}

TEST(PlanCommand, ExplainsAModule) {
  const ProcessResult run =
      run_nibble({"plan", kModel, "--gpu", "cpu", "--explain", "layers.3.ffn.experts.7.w1"});
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(run.output, HasSubstr("role      routed_experts, layer 3"));
  EXPECT_THAT(run.output, HasSubstr("kernel    grouped_matmul.mxfp4.bf16.avx512_bf16.simd"));
  const ProcessResult unknown =
      run_nibble({"plan", kModel, "--gpu", "cpu", "--explain", "layers.3.attn.wq"});
  EXPECT_EQ(unknown.exit_code, 4);
  EXPECT_THAT(unknown.errors, HasSubstr("layers.*.attn.wq_a"));
}

TEST(PlanCommand, ExplainsHowKeysAreCached) {
  const auto explained = [](const char* module) {
    return run_nibble({"plan", kModel, "--kv-cache-dtype", "fp8", "--explain", module}).output;
  };
  for (const char* module : {"layers.2.attn.wkv", "layers.2.attn.indexer.wq_b"}) {
    EXPECT_THAT(explained(module), HasSubstr("keys      cached as fp8, 367 bytes per token\n"));
    EXPECT_THAT(explained(module), HasSubstr("keys      read by indexer_score.fp8_keys."));
  }
  EXPECT_THAT(explained("layers.2.ffn.experts.7.w1"), Not(HasSubstr("keys")));
}

TEST(PlanCommand, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(run_nibble({"plan", kModel, "--gpu", "h300"}).exit_code, 2);
  EXPECT_EQ(run_nibble({"plan", kModel, "--gpu", "h200x0"}).exit_code, 2);
  EXPECT_EQ(run_nibble({"plan", "/nowhere/at/all"}).exit_code, 4);
  EXPECT_EQ(run_nibble({"plan"}).exit_code, 2);
}

TEST(PlanCommand, RefusesNumbersThatMeanNothing) {
  for (const char* flag : {"--tp", "--ep", "--context", "--concurrency"}) {
    for (const char* value : {"-1", "2147483648", "99999999999999999999", "1.5", "x", ""}) {
      EXPECT_EQ(run_nibble({"plan", kModel, "--gpu", "cpu", flag, value}).exit_code, 2)
          << flag << " " << value;
    }
  }
  EXPECT_EQ(run_nibble({"plan", kModel, "--gpu", "cpu", "--ep", "0"}).exit_code, 2);
  for (const char* gpu : {"", "x", "x8", "h200x", "h200x-1", "h200x1025", "h200x99999999999"}) {
    EXPECT_EQ(run_nibble({"plan", kModel, "--gpu", gpu}).exit_code, 2) << gpu;
  }
  // Zero means that the plan chooses; the largest numbers are answered.
  for (const char* flag : {"--tp", "--context", "--concurrency"}) {
    EXPECT_EQ(run_nibble({"plan", kModel, "--gpu", "cpu", flag, "0"}).exit_code, 0) << flag;
  }
  EXPECT_EQ(run_nibble({"plan", kModel, "--gpu", "cpu", "--concurrency", "1048576"}).exit_code, 0);
  EXPECT_EQ(run_nibble({"plan", kModel, "--gpu", "cpu", "--context", "2147483647"}).exit_code, 3);
  EXPECT_EQ(run_nibble({"plan", kModel, "--gpu", "h200", "--tp", "1024"}).exit_code, 3);
}

TEST(PlanCommand, TruncatedShardIsF1) {
  const Path dir = copy_model();
  const Path shard = dir / "model-00002-of-00003.safetensors";
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
  const json::Value plan = plan_json(dir.string(), 3);
  EXPECT_THAT(codes_of(plan, "errors"), Contains("Q-F1"));
  EXPECT_FALSE(plan.find("modules")->as_array()->empty());
  EXPECT_TRUE(plan.find("memory")->is_null());
}

// What is there is described; what would need the rest is not guessed.
TEST(PlanCommand, SaysNoSizesOfPartsOfAModel) {
  const Path dir = copy_model();
  std::filesystem::remove(dir / "model-00002-of-00003.safetensors");
  for (const bool has_shards : {true, false}) {
    if (!has_shards) {
      for (const char* file : {"model-00001-of-00003.safetensors",
                               "model-00003-of-00003.safetensors",
                               "model.safetensors.index.json"}) {
        std::filesystem::remove(dir / file);
      }
    }
    const json::Value plan = plan_json(dir.string(), 3);
    EXPECT_THAT(codes_of(plan, "errors"), Contains("Q-F3"));
    EXPECT_EQ(plan.find("modules")->as_array()->empty(), !has_shards);
    EXPECT_TRUE(plan.find("memory")->is_null());
    EXPECT_TRUE(plan.find("performance")->is_null());
    EXPECT_EQ(*plan.find("why_no_sizes")->as_string(), "files are missing or damaged");
    EXPECT_FALSE(*plan.find("download")->find("complete")->as_bool());
    EXPECT_TRUE(plan.find("download")->find("seconds_at_1_gbit")->is_null());

    const ProcessResult run = run_nibble({"plan", dir, "--gpu", "cpu"});
    EXPECT_EQ(run.exit_code, 3);
    EXPECT_THAT(run.output,
                HasSubstr("of an incomplete model\n\nMemory and speed are not known: "));
    for (const char* known : {"fits", "tok/s", "Mbit"}) {
      EXPECT_THAT(run.output, Not(HasSubstr(known)));
    }
  }
}

TEST(PlanCommand, NanScaleIsS3) {
  const Path dir = copy_model();
  const Path shard = dir / "model-00001-of-00003.safetensors";
  // The first E8M0 tensor of experts, found in the header.
  const std::string text = read_file(shard, int64_t{1} << 30).value();
  size_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= size_t{static_cast<uint8_t>(text[i])} << (8 * i);
  const json::Value header = json::parse(text.substr(8, length)).value();
  for (const json::Member& member : *header.as_object()) {
    const json::Value* dtype = member.value.find("dtype");
    if (dtype == nullptr || *dtype->as_string() != "F8_E8M0") continue;
    const int64_t begin = *member.value.find("data_offsets")->as_array()->front().as_int64();
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(8 + length) + begin);
    file.put('\xFF');
    break;
  }
  EXPECT_THAT(codes_of(plan_json(dir.string(), 3), "errors"), Contains("Q-S3"));
}

TEST(PlanCommand, StrangeAlgorithmIsD1) {
  const Path dir = copy_model();
  replace_in(dir / "config.json", "\"quant_method\": \"fp8\"", "\"quant_method\": \"fp9\"");
  EXPECT_THAT(codes_of(plan_json(dir.string(), 3), "errors"), Contains("Q-D1"));
}

// --- the plan is what programs execute ---

const std::vector<std::vector<std::string>> kLoadingPrograms = {
    {"generate", kModel, "Hi", "--max-tokens", "1"},
    {"chat", kModel},
    {"logits", kModel, "--ids", "1,2", "--output", ::testing::TempDir() + "plan_logits"},
    {"check", kModel},
    {"demo", kModel},
};

std::vector<std::string> with(std::vector<std::string> arguments,
                              const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(PlanOfPrograms, IsPrintedBeforeTheyLoad) {
  for (const std::vector<std::string>& program : kLoadingPrograms) {
    const ProcessResult run = run_nibble(program);
    EXPECT_EQ(run.exit_code, 0) << run.errors;
    EXPECT_THAT(run.errors, StartsWith("plan: deepseek_v4, 6 layers on ")) << program[0];
    EXPECT_THAT(run.errors, HasSubstr("mxfp4             grouped_matmul.mxfp4.")) << program[0];
    EXPECT_THAT(run.errors, HasSubstr("that takes it) for routed_experts")) << program[0];
    EXPECT_THAT(run.errors, HasSubstr("  memory ")) << program[0];
  }
  const ProcessResult serve = run_nibble({"serve", kModel, "--port", "0"},
                                         {.signal = SIGTERM, .signal_when = "listening on "});
  EXPECT_EQ(serve.exit_code, 0) << serve.errors;
  EXPECT_THAT(serve.errors, HasSubstr("\nplan: deepseek_v4"));
}

TEST(PlanOfPrograms, RefusesInTheSameWords) {
  const Path dir = copy_model();
  replace_in(dir / "config.json", "\"quant_method\": \"fp8\"", "\"quant_method\": \"fp9\"");
  const ProcessResult plan = run_nibble({"plan", dir});
  EXPECT_EQ(plan.exit_code, 3);
  EXPECT_THAT(plan.errors, HasSubstr("Q-D1"));
  for (std::vector<std::string> program : kLoadingPrograms) {
    program[1] = dir;
    const ProcessResult run = run_nibble(program);
    EXPECT_EQ(run.exit_code, 3) << program[0];
    EXPECT_THAT(run.errors, EndsWith(plan.errors)) << program[0];
  }
  const ProcessResult serve = run_nibble({"serve", dir, "--port", "0"});
  EXPECT_EQ(serve.exit_code, 3);
  EXPECT_THAT(serve.errors, EndsWith(plan.errors));
}

// Invariant 15, on a CPU without vector instructions.
TEST(PlanOfPrograms, NeverFallBackToTheReferenceUnasked) {
  const ProcessResult plan = run_nibble({"plan", kModel, "--isa", "scalar"});
  EXPECT_EQ(plan.exit_code, 3);
  EXPECT_THAT(plan.errors, HasSubstr("Q-K7"));
  EXPECT_THAT(plan.errors, HasSubstr("only the scalar reference takes them"));
  EXPECT_THAT(plan.errors, HasSubstr("--allow-reference"));
  for (const std::vector<std::string>& program : kLoadingPrograms) {
    const ProcessResult run = run_nibble(with(program, {"--isa", "scalar"}));
    EXPECT_EQ(run.exit_code, 3) << program[0];
    EXPECT_THAT(run.errors, EndsWith(plan.errors)) << program[0];
  }
  const ProcessResult serve = run_nibble({"serve", kModel, "--port", "0", "--isa", "scalar"});
  EXPECT_EQ(serve.exit_code, 3);
  EXPECT_THAT(serve.errors, EndsWith(plan.errors));
}

TEST(PlanOfPrograms, RunOnTheReferenceWhereAllowedAndWarn) {
  const ProcessResult run =
      run_nibble(with(kLoadingPrograms.front(), {"--isa", "scalar", "--allow-reference"}));
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(run.errors, HasSubstr("warning[Q-K7]"));
  EXPECT_THAT(run.errors, HasSubstr("do not serve on it"));
  EXPECT_THAT(run.errors, HasSubstr("grouped_matmul.mxfp4.f32.cpu.scalar (scalar"));
}

TEST(PlanOfPrograms, RefuseWithoutAKernelInTheWordsOfThePlan) {
  const std::vector<std::string> without = {"--without-kernel", "grouped_matmul.mxfp4"};
  const ProcessResult plan = run_nibble(with({"plan", kModel}, without));
  EXPECT_EQ(plan.exit_code, 3);
  EXPECT_THAT(plan.errors, HasSubstr("error[Q-K1] mxfp4 routed_experts on local: no kernel for"));
  EXPECT_THAT(plan.errors, HasSubstr("simd: left out by --without-kernel"));
  const std::vector<std::string> serve = {"serve", kModel, "--port", "0", "--device", "cpu"};
  const ProcessResult on_cpu = run_nibble(with(serve, without));
  EXPECT_EQ(on_cpu.exit_code, 3);
  EXPECT_THAT(on_cpu.errors, EndsWith(plan.errors));

  std::vector<std::string> emulated = {"serve", kModel, "--port", "0", "--device", "emulated"};
  emulated.push_back("--allow-reference");
  const ProcessResult on_gpu = run_nibble(with(emulated, without));
  EXPECT_EQ(on_gpu.exit_code, 3);
  EXPECT_THAT(on_gpu.errors, HasSubstr("error[Q-K1] mxfp4 routed_experts on local: no kernel for"));
  EXPECT_THAT(on_gpu.errors, HasSubstr("emulated.scalar: left out by --without-kernel"));
}

// Whatever a GPU's kernels are, only the reference would be left.
TEST(PlanCommand, RefusesAGpuWithoutItsKernels) {
  const ProcessResult plan =
      run_nibble({"plan", kModel, "--gpu", "h200", "--without-kernel", "grouped_matmul.mxfp4.fp8"});
  EXPECT_EQ(plan.exit_code, 0) << plan.errors;  // the portable kernel with BF16 activations
  EXPECT_THAT(plan.output, HasSubstr("--without-kernel: routed_experts on grouped_matmul.mxfp4."));
  const ProcessResult none =
      run_nibble({"plan", kModel, "--gpu", "h200", "--without-kernel", "grouped_matmul.mxfp4"});
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_THAT(none.errors, HasSubstr("error[Q-K1] mxfp4 routed_experts on h200 (sm_90)"));
}

// Nothing slower than tensor cores is taken unasked, and what it costs is said before anybody
// waits.
TEST(PlanCommand, SaysWhatForcingASimtKernelCosts) {
  const std::vector<std::string> simt = {
      "plan", kModel, "--gpu", "rtx-5090", "--concurrency", "512", "--kernel", "simt"};
  const ProcessResult run = run_nibble(simt);
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.errors, HasSubstr("error[Q-K7] "));
  EXPECT_THAT(run.output, HasSubstr("routed_experts (mxfp4): runs on simt units only"));
  EXPECT_THAT(run.output, HasSubstr("Fix: pass --allow-slow routed_experts to accept it."));
  EXPECT_THAT(
      run.output,
      ::testing::ContainsRegex("--kernel: routed_experts on grouped_matmul.mxfp4.bf16.sm_120.simt "
                               ".simt.: at least [0-9]+ us a step, [0-9]+% of the read rate; "
                               "[0-9.]+ times the [0-9]+ us of "
                               "grouped_matmul.mxfp4.fp8.sm_120.tensor_core"));
  EXPECT_THAT(run.output, HasSubstr("--kernel: in all at most "));
}

TEST(PlanOfPrograms, PlanDummyWeightsToo) {
  const ProcessResult run = run_nibble({"generate",
                                        kModel,
                                        "Hi",
                                        "--max-tokens",
                                        "1",
                                        "--load-format",
                                        "dummy",
                                        "--num-layers-override",
                                        "2"});
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(run.errors, StartsWith("plan: deepseek_v4, 2 layers on "));
}

TEST(PlanOfPrograms, RefuseWhatTheMemoryDoesNotHold) {
  const Path dir = copy_model();
  replace_in(dir / "config.json",
             "\"max_position_embeddings\": 16384",
             "\"max_position_embeddings\": 200000000");
  const ProcessResult run = run_nibble({"serve",
                                        dir,
                                        "--port",
                                        "0",
                                        "--max-context",
                                        "200000000",
                                        "--max-running-requests",
                                        "4096"});
  EXPECT_EQ(run.exit_code, 6) << run.errors;
  EXPECT_THAT(run.errors, HasSubstr("Q-M1"));
}

TEST(PlanCommand, KernelTableIsThatOfTheDocuments) {
  const ProcessResult run = run_nibble({"kernels", "--markdown"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.output,
            read_file(Path(NIBBLE_SOURCE_DIR) / "docs/kernel-table.md", 1 << 20).value());
}

}  // namespace
}  // namespace nibble

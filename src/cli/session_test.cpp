#include "cli/session.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "cli/decision_trace.h"

namespace nibble::cli {
namespace {

TEST(StartTimes, SayWhereTheTimeWent) {
  StartTimes times{.weights = 2.41, .self_test = 0.32, .state = 0.05};
  EXPECT_EQ(times.describe(), "ready in 2.8 s: weights 2.41 s, self-test 0.32 s, memory 0.05 s");
  times.graphs = {.count = 12, .seconds = 0.3};
  EXPECT_EQ(times.describe(),
            "ready in 3.1 s: weights 2.41 s, self-test 0.32 s, memory 0.05 s, 12 graphs 0.30 s");
}

TEST(Session, FlagsWinOverTheModelsDefaults) {
  checkpoint::GenerationConfig defaults;
  defaults.temperature = 0.6;
  defaults.top_p = 0.95;
  const auto from_model = sampling_params({}, defaults);
  EXPECT_EQ(from_model.temperature, 0.6F);
  EXPECT_EQ(from_model.top_p, 0.95F);
  SamplingFlags flags;
  flags.temperature = 0.0F;
  flags.seed = 5;
  const auto from_flags = sampling_params(flags, defaults);
  EXPECT_EQ(from_flags.temperature, 0.0F);
  EXPECT_EQ(from_flags.top_p, 0.95F);
  EXPECT_EQ(from_flags.seed, 5U);
  defaults.top_k = 20;
  defaults.min_p = 0.05;
  defaults.repetition_penalty = 1.05;
  EXPECT_EQ(sampling_params({}, defaults).top_k, 20);
  EXPECT_EQ(sampling_params({}, defaults).min_p, 0.05F);
  EXPECT_EQ(sampling_params({}, defaults).repetition_penalty, 1.05F);
  flags.top_k = 0;
  flags.repetition_penalty = 1.0F;
  EXPECT_EQ(sampling_params(flags, defaults).top_k, 0);
  EXPECT_EQ(sampling_params(flags, defaults).repetition_penalty, 1.0F);
  defaults.do_sample = false;
  EXPECT_EQ(sampling_params({}, defaults).temperature, 0.0F);
  EXPECT_EQ(sampling_params({}, {}).temperature, 1.0F);
}

TEST(Session, TellsRepositoriesFilesAndMissingDirectoriesApart) {
  const Error repository = open_checkpoint("deepseek-ai/DeepSeek-V4-Flash").error();
  EXPECT_EQ(repository.code, Errc::kNotFound);
  EXPECT_NE(repository.message.find("`nibble pull deepseek-ai/DeepSeek-V4-Flash`"),
            std::string::npos);
  EXPECT_EQ(open_checkpoint("./models/none").error().code, Errc::kNotFound);
  EXPECT_EQ(open_checkpoint("/no/such/dir").error().code, Errc::kNotFound);
  EXPECT_EQ(open_checkpoint(NIBBLE_SOURCE_DIR "/CMakeLists.txt").error().code,
            Errc::kInvalidArgument);
}

TEST(Session, ReadsTheBundledModelsDefaults) {
  const auto defaults = read_defaults(NIBBLE_SOURCE_DIR "/models/tiny-v4");
  ASSERT_TRUE(defaults.ok());
  EXPECT_EQ(defaults->eos_token_ids, (std::vector<int32_t>{1}));
  EXPECT_EQ(defaults->bos_token_id, 0);
  EXPECT_EQ(defaults->generation.temperature, 0.6);
}

TEST(Session, TellsTheChatGenerationByDspark) {
  const Path directory =
      Path(::testing::TempDir()) / ("nibble_session_test." + std::to_string(::getpid()));
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.json") << R"({"eos_token_id": 1, "dspark_block_size": 5})";
  const auto later = read_defaults(directory);
  std::filesystem::remove_all(directory);
  ASSERT_TRUE(later.ok()) << later.error().message;
  EXPECT_EQ(later->chat_generation, text::Generation::kJuly);
  EXPECT_EQ(read_defaults(NIBBLE_SOURCE_DIR "/models/tiny-v4")->chat_generation,
            text::Generation::kApril);
}

// Weights, KV, snapshots and workspace: what the plan counts is what opening allocates.
TEST(Session, AllocatesWhatItsPlanCounts) {
  ModelFlags flags;
  flags.model = NIBBLE_SOURCE_DIR "/models/tiny-v4";
  flags.threads = 1;
  for (const int32_t slots : {1, 5}) {
    const Result<Session> session =
        open_session(flags, {.max_running_requests = slots, .prefill_chunk_tokens = 64}, {});
    ASSERT_TRUE(session.ok()) << session.error().message;
    const engine::PlanMemory& memory = *session->plan.memory;
    const auto planned = static_cast<double>(memory.total() - memory.reserved);
    EXPECT_NEAR(static_cast<double>(session->memory_bytes), planned, 0.03 * planned);
    EXPECT_GT(memory.snapshots, 0);
  }
}

TEST(Session, SumsUpKernelsByWeight) {
  const kernels::KernelInfo small{.name = "small"};
  const kernels::KernelInfo large{.name = "large", .verified = {"an H200", 90}};
  std::vector<models::RoutedModule> modules(3);
  modules[0] = {.module = "a", .n = 10, .k = 10, .route = {.kernel = &small, .refused = {}}};
  modules[1] = {.module = "b", .n = 100, .k = 10, .route = {.kernel = &large, .refused = {}}};
  modules[2] = {.module = "c", .n = 10, .k = 10, .route = {.kernel = &small, .refused = {}}};
  device::DeviceInfo gpu{.kind = device::DeviceKind::kCuda, .sm = 90};
  EXPECT_EQ(kernel_line(modules, gpu), "kernels: large, small (not run on hardware) (x 2)");
  gpu.sm = 120;
  EXPECT_EQ(kernel_line(modules, gpu),
            "kernels: large (not run on hardware of sm_120, only on an H200), small (not run on "
            "hardware) (x 2)");
}

TEST(Session, ReportsSpeed) {
  engine::Finish finish;
  finish.usage = {.prompt_tokens = 100, .completion_tokens = 11, .cached_tokens = 0};
  finish.prefill_seconds = 0.5;
  finish.decode_seconds = 2;
  EXPECT_EQ(speed_line(finish), "100 prompt tokens at 200 tok/s, 11 generated tokens at 5 tok/s");
}

TEST(DecisionTrace, RoundTrips) {
  models::Decisions decisions;
  decisions.expert_ids = {{{1, 2}, {3, 4}, {5, 6}}, {}, {{7, 8}, {9, 10}}};
  decisions.selected_entries = {{}, {{}, {0}, {0, 1, 2}}};
  const Path path = ::testing::TempDir() + "nibble_decisions.safetensors";
  ASSERT_TRUE(write_decisions(path, decisions).ok());
  const auto back = read_decisions(path);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(back->expert_ids, decisions.expert_ids);
  EXPECT_EQ(back->selected_entries, decisions.selected_entries);
}

TEST(DecisionTrace, RefusesOtherFiles) {
  EXPECT_EQ(read_decisions("/no/such/file").error().code, Errc::kNotFound);
  const auto weights =
      read_decisions(NIBBLE_SOURCE_DIR "/models/tiny-v4/model-00003-of-00003.safetensors");
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.error().code, Errc::kDataLoss);
  EXPECT_EQ(read_decisions(NIBBLE_SOURCE_DIR "/CMakeLists.txt").error().code, Errc::kDataLoss);
}

}  // namespace
}  // namespace nibble::cli

// What forward() refuses, and that a refusal changes nothing; what it must not depend on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "golden/golden_testing.h"

namespace nibble::golden {
namespace {

using testing::HasSubstr;

// Owns the arrays of a ForwardInput.
struct Input {
  std::vector<int32_t> token_ids = {1, 2, 3, 4, 5};
  std::vector<int32_t> positions = {0, 1, 2, 0, 1};
  std::vector<int32_t> cu_seqlens = {0, 3, 5};
  std::vector<SlotId> slots = {{0}, {1}};
  std::vector<std::vector<PageId>> pages = {{PageId{0}}, {PageId{1}}};
  std::vector<int32_t> logits_rows = {2, 4};
  bool compute_mtp = false;
  int32_t tp_size = 1;
  const models::Decisions* replay = nullptr;

  Result<void> run(models::Model& model) const {
    std::vector<std::span<const PageId>> tables(pages.begin(), pages.end());
    models::ForwardInput input;
    input.token_ids = token_ids;
    input.positions = positions;
    input.cu_seqlens = cu_seqlens;
    input.slots = slots;
    input.block_tables = tables;
    input.logits_rows = logits_rows;
    input.compute_mtp = compute_mtp;
    input.tp_size = tp_size;
    input.replay = replay;
    models::ForwardOutput output;
    return model.forward(input, output);
  }
};

models::StateOptions small_state() {
  return {.num_slots = 2, .num_pages = 4, .max_context = 512, .max_tokens_per_pass = 16};
}

struct Fault {
  const char* name;
  std::function<void(Input&)> spoil;
  Errc code;
  const char* message;
};

// clang-format off
const Fault kFaults[] = {
    {"no_tokens", [](Input& i) { i.token_ids.clear(); }, Errc::kInvalidArgument, "pass of 0 tokens, expected 1 to 16"},
    {"too_many_tokens", [](Input& i) { i.token_ids.resize(17); }, Errc::kInvalidArgument, "pass of 17 tokens"},
    {"negative_id", [](Input& i) { i.token_ids[1] = -1; }, Errc::kInvalidArgument, "token id -1, expected 0 to 319"},
    {"id_outside_vocabulary", [](Input& i) { i.token_ids[4] = 320; }, Errc::kInvalidArgument, "token id 320"},
    {"missing_position", [](Input& i) { i.positions.pop_back(); }, Errc::kInvalidArgument, "4 positions for 5 tokens"},
    {"position_gap", [](Input& i) { i.positions[2] = 3; }, Errc::kInvalidArgument, "slot 0: position 3, expected 2"},
    {"position_behind_length", [](Input& i) { i.positions[3] = 1; }, Errc::kInvalidArgument, "slot 1: position 1, expected 0"},
    {"short_cu_seqlens", [](Input& i) { i.cu_seqlens.pop_back(); }, Errc::kInvalidArgument, "2 slots, 2 cu_seqlens"},
    {"wrong_cu_seqlens", [](Input& i) { i.cu_seqlens[2] = 4; }, Errc::kInvalidArgument, "cu_seqlens from 0 to 4, expected 0 to 5"},
    {"empty_sequence", [](Input& i) { i.cu_seqlens = {0, 5, 5}; }, Errc::kInvalidArgument, "sequence 1 has no tokens"},
    {"unknown_slot", [](Input& i) { i.slots[1] = SlotId{2}; }, Errc::kInvalidArgument, "slot 2, expected 0 to 1"},
    {"slot_twice", [](Input& i) { i.slots[1] = SlotId{0}; }, Errc::kInvalidArgument, "slot 0 appears twice"},
    {"no_block_table", [](Input& i) { i.pages[1].clear(); }, Errc::kInvalidArgument, "slot 1: block table of 0 pages, expected 1"},
    {"unknown_page", [](Input& i) { i.pages[1][0] = PageId{4}; }, Errc::kInvalidArgument, "slot 1: page 4, expected 0 to 3"},
    {"invalid_page", [](Input& i) { i.pages[0][0] = PageId{}; }, Errc::kInvalidArgument, "slot 0: page -1"},
    {"rows_out_of_order", [](Input& i) { i.logits_rows = {4, 2}; }, Errc::kInvalidArgument, "logits row 2 after 4"},
    {"row_outside", [](Input& i) { i.logits_rows = {5}; }, Errc::kInvalidArgument, "logits row 5"},
    {"mtp_without_layer", [](Input& i) { i.compute_mtp = true; }, Errc::kInvalidArgument, "no MTP layer"},
    {"tensor_parallel", [](Input& i) { i.tp_size = 2; }, Errc::kUnsupported, "rank 0 of 2"},
};
// clang-format on

class ForwardInput : public testing::TestWithParam<Fault> {};

TEST_P(ForwardInput, IsRefusedAndNothingChanges) {
  const Loaded loaded = load(golden_dir("flash_like"), {.state = small_state()});
  Input input;
  GetParam().spoil(input);
  const Result<void> refused = input.run(*loaded.model);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, GetParam().code);
  EXPECT_THAT(refused.error().message, HasSubstr(GetParam().message));
  EXPECT_EQ(loaded.model->length(SlotId{0}), 0);
  EXPECT_EQ(loaded.model->length(SlotId{1}), 0);
  EXPECT_TRUE(Input().run(*loaded.model).ok());
  EXPECT_EQ(loaded.model->length(SlotId{0}), 3);
}

INSTANTIATE_TEST_SUITE_P(Faults, ForwardInput, testing::ValuesIn(kFaults), [](const auto& param) {
  return std::string(param.param.name);
});

TEST(ForwardInput, ReplayedDecisionsAreChecked) {
  const Loaded loaded = load(golden_dir("flash_like"), {.state = small_state()});
  Input input;
  input.token_ids = {1, 2, 3, 4};
  input.positions = {0, 1, 2, 3};
  input.cu_seqlens = {0, 4};
  input.slots = {SlotId{0}};
  input.pages = {{PageId{0}}};
  input.logits_rows = {3};
  models::Decisions decisions;
  input.replay = &decisions;
  const auto message_for = [&](std::vector<int32_t> experts, std::vector<int32_t> entries) {
    decisions.expert_ids.assign(1, {std::move(experts)});
    decisions.selected_entries.assign(3, {});
    decisions.selected_entries[2] = {{}, {}, {}, std::move(entries)};
    const Result<void> done = input.run(*loaded.model);
    return done.ok() ? std::string() : done.error().message;
  };
  EXPECT_THAT(message_for({0, 1, 2, 3, 4}, {}), HasSubstr("expected 6 distinct ids below 12"));
  EXPECT_THAT(message_for({0, 1, 2, 3, 4, 12}, {}), HasSubstr("layer 0, position 0"));
  EXPECT_THAT(message_for({0, 1, 2, 3, 4, 4}, {}), HasSubstr("layer 0, position 0"));
  EXPECT_THAT(message_for({}, {1}), HasSubstr("replayed entries of layer 2, position 3"));
  EXPECT_EQ(message_for({5, 4, 3, 2, 1, 0}, {0}), "");
}

TEST(ForwardInput, ContextEndsAtItsLimit) {
  const Loaded loaded =
      load(golden_dir("flash_like"),
           {.state = {.num_pages = 2, .max_context = 300, .max_tokens_per_pass = 512}});
  Sequence sequence(*loaded.model);
  sequence.run(random_ids(*loaded.model, 300, 1));
  Input input;
  input.token_ids = {1};
  input.positions = {300};
  input.cu_seqlens = {0, 1};
  input.slots = {SlotId{0}};
  input.pages = {{PageId{0}, PageId{1}}};
  input.logits_rows = {};
  const Result<void> refused = input.run(*loaded.model);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("301 tokens, larger than max_context 300"));
}

TEST(Forward, NeedsReservedState) {
  const auto device = device::make_host_device({.num_threads = 1}).value();
  const auto checkpoint = checkpoint::Checkpoint::open(golden_dir("flash_like")).value();
  const auto model = models::load_model(checkpoint, *device, {}).value();
  EXPECT_EQ(Input().run(*model).error().code, Errc::kUnavailable);
}

TEST(Forward, DoesNotDependOnTheNumberOfThreads) {
  std::vector<float> one_thread;
  for (const int32_t threads : {1, 2, 3}) {
    const Loaded loaded =
        load(tiny_v4_dir(), {.precision = models::Precision::kDefault, .num_threads = threads});
    const std::vector<float> logits =
        Sequence(*loaded.model).run(random_ids(*loaded.model, 200, 3)).logits.values;
    if (one_thread.empty()) one_thread = logits;
    EXPECT_EQ(logits, one_thread) << threads;
  }
}

// Instruction sets sum in different orders, so near-ties may fall differently far on; short of that
// they agree.
TEST(Forward, AgreesAcrossInstructionSets) {
  const Loaded scalar = load(golden_dir("pro_like"), {.isa = device::IsaLevel::kScalar});
  const std::vector<int32_t> ids = random_ids(*scalar.model, 150, 4);
  const std::vector<float> expected = Sequence(*scalar.model).run(ids).logits.values;
  for (const device::IsaLevel isa : {device::IsaLevel::kAvx2, device::IsaLevel::kAvx512}) {
    if (!device::make_host_device({.num_threads = 1, .isa = isa}).ok()) continue;
    const Loaded loaded = load(golden_dir("pro_like"), {.isa = isa});
    EXPECT_LE(max_difference(Sequence(*loaded.model).run(ids).logits.values, expected), 2e-3f);
  }
}

}  // namespace
}  // namespace nibble::golden

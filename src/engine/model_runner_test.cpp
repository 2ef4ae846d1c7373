#include "engine/model_runner.h"

#include <gtest/gtest.h>

#include <optional>

namespace nibble::engine {
namespace {

// Notes the last pass and gives logits that name their row.
class RecordingModel final : public models::Model {
 public:
  const models::ModelInfo& info() const override { return info_; }
  const std::vector<models::RoutedModule>& routed_modules() const override { return modules_; }
  int64_t weights_bytes() const override { return 100; }
  int64_t state_bytes() const override { return 23; }
  Result<void> reserve_state(const models::StateOptions& options) override {
    if (is_refusing) return exhausted("no memory");
    reserved = options;
    return {};
  }
  void reset_slot(SlotId slot) override { reset = slot; }
  int32_t length(SlotId) const override { return 0; }
  Result<void> truncate(SlotId, int32_t) override { return {}; }
  Result<std::vector<std::byte>> save_slot(SlotId) const override {
    return std::vector<std::byte>{};
  }
  Result<void> restore_slot(SlotId, std::span<const std::byte>) override { return {}; }

  Result<void> save_page(PageId, std::span<std::byte>) const override { return {}; }
  Result<void> restore_page(PageId, std::span<const std::byte>) override { return {}; }

  Result<void> forward(const models::ForwardInput& input, models::ForwardOutput& output) override {
    token_ids.assign(input.token_ids.begin(), input.token_ids.end());
    positions.assign(input.positions.begin(), input.positions.end());
    cu_seqlens.assign(input.cu_seqlens.begin(), input.cu_seqlens.end());
    slots.assign(input.slots.begin(), input.slots.end());
    block_tables.assign(input.block_tables.begin(), input.block_tables.end());
    logits_rows.assign(input.logits_rows.begin(), input.logits_rows.end());
    world_size = input.communicator->size();
    logits_.assign(logits_rows.begin(), logits_rows.end());
    output.logits = TensorView::contiguous(
        logits_.data(), DType::kF32, {static_cast<int64_t>(logits_.size()), 1});
    return {};
  }

  bool is_refusing = false;
  models::StateOptions reserved;
  SlotId reset;
  std::vector<int32_t> token_ids;
  std::vector<int32_t> positions;
  std::vector<int32_t> cu_seqlens;
  std::vector<SlotId> slots;
  std::vector<std::span<const PageId>> block_tables;
  std::vector<int32_t> logits_rows;
  int32_t world_size = 0;

 private:
  models::ModelInfo info_{.architecture = "recording",
                          .vocab_size = 1,
                          .max_position_embeddings = 1000,
                          .page_size = 128};
  std::vector<models::RoutedModule> modules_;
  std::vector<float> logits_;
};

TEST(ModelRunner, ReservesWhatTheModelNeedsForOneSequence) {
  auto model = std::make_unique<RecordingModel>();
  RecordingModel& recording = *model;
  auto runner = make_model_runner(std::move(model),
                                  {.num_slots = 3, .max_tokens_per_pass = 7},
                                  comm::make_local_communicator());
  ASSERT_TRUE(runner.ok());
  EXPECT_EQ(recording.reserved.max_context, 1000);
  EXPECT_EQ(recording.reserved.num_pages, 8);
  EXPECT_EQ((*runner)->num_pages(), 8);
  EXPECT_EQ((*runner)->num_slots(), 3);
  EXPECT_EQ((*runner)->max_tokens_per_step(), 7);
  EXPECT_EQ((*runner)->memory_bytes(), 123);
}

TEST(ModelRunner, PassesOnThatMemoryIsMissing) {
  auto model = std::make_unique<RecordingModel>();
  model->is_refusing = true;
  const auto runner = make_model_runner(std::move(model), {}, comm::make_local_communicator());
  ASSERT_FALSE(runner.ok());
  EXPECT_EQ(runner.error().code, Errc::kExhausted);
}

TEST(ModelRunner, FlattensABatch) {
  auto model = std::make_unique<RecordingModel>();
  RecordingModel& recording = *model;
  auto runner = make_model_runner(std::move(model), {}, comm::make_local_communicator());
  ASSERT_TRUE(runner.ok());
  const std::vector<PageId> pages = {PageId{4}, PageId{2}};
  Batch batch;
  batch.items.push_back({.slot = SlotId{2},
                         .token_ids = {5, 6, 7},
                         .start_position = 10,
                         .block_table = pages,
                         .wants_logits = true});
  batch.items.push_back({.slot = SlotId{0}, .token_ids = {8, 9}, .start_position = 0});
  batch.items.push_back(
      {.slot = SlotId{1}, .token_ids = {1, 2}, .start_position = 3, .wants_all_logits = true});
  const auto result = (*runner)->step(batch);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(recording.token_ids, (std::vector<int32_t>{5, 6, 7, 8, 9, 1, 2}));
  EXPECT_EQ(recording.positions, (std::vector<int32_t>{10, 11, 12, 0, 1, 3, 4}));
  EXPECT_EQ(recording.cu_seqlens, (std::vector<int32_t>{0, 3, 5, 7}));
  EXPECT_EQ(recording.slots, (std::vector<SlotId>{SlotId{2}, SlotId{0}, SlotId{1}}));
  EXPECT_EQ(recording.logits_rows, (std::vector<int32_t>{2, 5, 6}));
  ASSERT_EQ(recording.block_tables.size(), 3U);
  EXPECT_EQ(recording.block_tables[0].data(), pages.data());
  EXPECT_EQ(recording.world_size, 1);
  EXPECT_EQ(result->logits.row<float>(1)[0], 5.0F);
  // The next, smaller batch leaves nothing behind.
  batch.items.erase(batch.items.begin(), batch.items.begin() + 2);
  ASSERT_TRUE((*runner)->step(batch).ok());
  EXPECT_EQ(recording.cu_seqlens, (std::vector<int32_t>{0, 2}));
}

}  // namespace
}  // namespace nibble::engine

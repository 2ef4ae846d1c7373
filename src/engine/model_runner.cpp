#include "engine/model_runner.h"

#include <fmt/core.h>

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/checked_math.h"
#include "device/buffer.h"

namespace nibble::engine {
namespace {

// Memory for snapshots, reserved at the start: equal places.
class SnapshotMemory final {
 public:
  static Result<SnapshotMemory> make(int32_t num_places, int64_t snapshot_bytes, bool is_resident) {
    SnapshotMemory memory;
    memory.place_bytes_ = round_up(snapshot_bytes, int64_t{64});
    memory.sizes_.resize(static_cast<size_t>(num_places));
    TRY_ASSIGN(memory.storage_, device::Buffer::allocate(memory.place_bytes_ * num_places));
    if (is_resident) TRY(memory.storage_.make_resident());
    return memory;
  }

  int32_t num_places() const { return static_cast<int32_t>(sizes_.size()); }
  int64_t num_bytes() const { return storage_.num_bytes(); }

  Result<void> write(cache::SnapshotId place, std::span<const std::byte> bytes) {
    if (static_cast<int64_t>(bytes.size()) > place_bytes_) {
      return internal_error(
          fmt::format("snapshot of {} bytes, planned were {}", bytes.size(), place_bytes_));
    }
    sizes_[static_cast<size_t>(place.value)] = bytes.size();
    std::memcpy(at(place), bytes.data(), bytes.size());
    return {};
  }
  std::span<const std::byte> read(cache::SnapshotId place) const {
    return {at(place), sizes_[static_cast<size_t>(place.value)]};
  }

 private:
  std::byte* at(cache::SnapshotId place) const {
    CHECK(place.value >= 0 && place.value < num_places()) << place.value;
    return storage_.data() + place.value * place_bytes_;
  }

  device::Buffer storage_;
  int64_t place_bytes_ = 0;
  std::vector<size_t> sizes_;  // [num_places]
};

// Flattens batches into the model's input. The arrays are members, so that steps do not allocate
// once the largest batch has been seen.
class LocalModelRunner final : public ModelRunner {
 public:
  LocalModelRunner(std::unique_ptr<models::Model> model,
                   const models::StateOptions& state,
                   std::unique_ptr<comm::Communicator> communicator,
                   SnapshotMemory snapshots)
      : model_(std::move(model)),
        state_(state),
        communicator_(std::move(communicator)),
        snapshots_(std::move(snapshots)) {}

  const models::ModelInfo& info() const override { return model_->info(); }
  const std::vector<models::RoutedModule>& routed_modules() const override {
    return model_->routed_modules();
  }
  int32_t num_slots() const override { return state_.num_slots; }
  int32_t num_pages() const override { return state_.num_pages; }
  int32_t max_tokens_per_step() const override { return state_.max_tokens_per_pass; }
  int32_t num_snapshots() const override { return snapshots_.num_places(); }
  int64_t memory_bytes() const override {
    return model_->weights_bytes() + model_->state_bytes() + snapshots_.num_bytes();
  }

  models::RecordedGraphs graphs() const override { return model_->graphs(); }

  void reset_slot(SlotId slot) override { model_->reset_slot(slot); }
  Result<void> truncate(SlotId slot, int32_t length) override {
    return model_->truncate(slot, length);
  }
  Result<void> save_slot(SlotId slot, cache::SnapshotId place) override {
    TRY_ASSIGN(const std::vector<std::byte> snapshot, model_->save_slot(slot));
    return snapshots_.write(place, snapshot);
  }
  Result<void> restore_slot(SlotId slot, cache::SnapshotId place) override {
    return model_->restore_slot(slot, snapshots_.read(place));
  }

  std::span<const std::byte> snapshot(cache::SnapshotId place) const override {
    return snapshots_.read(place);
  }
  Result<void> set_snapshot(cache::SnapshotId place, std::span<const std::byte> bytes) override {
    return snapshots_.write(place, bytes);
  }
  Result<void> save_page(PageId page, std::span<std::byte> out) override {
    return model_->save_page(page, out);
  }
  Result<void> restore_page(PageId page, std::span<const std::byte> entries) override {
    return model_->restore_page(page, entries);
  }

  Result<StepResult> step(const Batch& batch) override {
    flatten(batch);
    const models::ForwardInput input{
        .token_ids = token_ids_,
        .positions = positions_,
        .cu_seqlens = cu_seqlens_,
        .slots = slots_,
        .block_tables = block_tables_,
        .logits_rows = logits_rows_,
        .tp_rank = communicator_->rank(),
        .tp_size = communicator_->size(),
        .communicator = communicator_.get(),
    };
    models::ForwardOutput output;
    TRY(model_->forward(input, output));
    DCHECK(output.logits.num_rows() == static_cast<int64_t>(logits_rows_.size()));
    return StepResult{.logits = output.logits};
  }

  int32_t max_queued_steps() const override { return model_->max_queued_steps(); }
  int32_t max_queued_rows() const override { return model_->max_queued_rows(); }
  Result<void> queue_decode(std::span<const DecodeItem> items) override {
    token_ids_.clear();
    slots_.clear();
    block_tables_.clear();
    sampling_.clear();
    for (const DecodeItem& item : items) {
      token_ids_.push_back(item.token_id);
      slots_.push_back(item.slot);
      block_tables_.push_back(item.block_table);
      sampling_.push_back(item.sampling);
    }
    return model_->queue_decode({.slots = slots_,
                                 .block_tables = block_tables_,
                                 .token_ids = token_ids_,
                                 .sampling = sampling_});
  }
  Result<std::span<const int32_t>> fetch_decoded() override { return model_->fetch_decoded(); }

 private:
  void flatten(const Batch& batch) {
    token_ids_.clear();
    positions_.clear();
    cu_seqlens_.assign(1, 0);
    slots_.clear();
    block_tables_.clear();
    logits_rows_.clear();
    for (const BatchItem& item : batch.items) append(item);
  }

  void append(const BatchItem& item) {
    const auto num_tokens = static_cast<int32_t>(item.token_ids.size());
    for (int32_t i = 0; i < num_tokens; ++i) {
      const bool is_wanted = item.wants_all_logits || (item.wants_logits && i + 1 == num_tokens);
      if (is_wanted) logits_rows_.push_back(static_cast<int32_t>(token_ids_.size()));
      token_ids_.push_back(item.token_ids[static_cast<size_t>(i)]);
      positions_.push_back(item.start_position + i);
    }
    cu_seqlens_.push_back(static_cast<int32_t>(token_ids_.size()));
    slots_.push_back(item.slot);
    block_tables_.push_back(item.block_table);
  }

  std::unique_ptr<models::Model> model_;
  models::StateOptions state_;
  std::unique_ptr<comm::Communicator> communicator_;
  SnapshotMemory snapshots_;

  std::vector<int32_t> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> cu_seqlens_;
  std::vector<SlotId> slots_;
  std::vector<std::span<const PageId>> block_tables_;
  std::vector<int32_t> logits_rows_;
  std::vector<models::DeviceSampling> sampling_;
};

}  // namespace

models::StateOptions resolve_state(models::StateOptions state, const models::ModelInfo& info) {
  if (state.max_context == 0) state.max_context = info.max_position_embeddings;
  if (state.num_pages == 0) {
    state.num_pages = static_cast<int32_t>(ceil_div(state.max_context, info.page_size));
  }
  return state;
}

Result<std::unique_ptr<ModelRunner>> make_model_runner(
    std::unique_ptr<models::Model> model,
    const models::StateOptions& state,
    std::unique_ptr<comm::Communicator> communicator,
    int32_t num_snapshots) {
  const models::StateOptions resolved = resolve_state(state, model->info());
  TRY(model->reserve_state(resolved));
  TRY_ASSIGN(
      SnapshotMemory snapshots,
      SnapshotMemory::make(num_snapshots, model->info().snapshot_bytes, resolved.is_resident));
  return std::unique_ptr<ModelRunner>(new LocalModelRunner(
      std::move(model), resolved, std::move(communicator), std::move(snapshots)));
}

}  // namespace nibble::engine

// Runs batches on a model. One of the program's six virtual seams: the real runner drives
// models::Model, simulations put a scripted one in its place. Owner: the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "cache/prefix_tree.h"
#include "comm/communicator.h"
#include "models/model.h"

namespace nibble::engine {

// What one sequence contributes to a step: a chunk of prefill or one token of decode.
struct BatchItem {
  SlotId slot;
  std::vector<int32_t> token_ids;
  int32_t start_position = 0;
  std::span<const PageId> block_table;
  bool wants_logits = false;      // of the last token
  bool wants_all_logits = false;  // of every token (prompt logprobs)
};

struct Batch {
  std::vector<BatchItem> items;
};

// What one sequence contributes to a decode step that chooses its next token itself.
struct DecodeItem {
  SlotId slot;
  std::span<const PageId> block_table;
  int32_t token_id = 0;  // or models::DecodeInput::kChosenBefore
  models::DeviceSampling sampling;
};

// Logits of the step, row-major, in item order; valid until the next step.
struct StepResult {
  TensorView logits;  // [rows, vocab_size] f32
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  virtual const models::ModelInfo& info() const = 0;
  virtual const std::vector<models::RoutedModule>& routed_modules() const = 0;
  virtual int32_t num_slots() const = 0;
  virtual int32_t num_pages() const = 0;
  virtual int32_t num_snapshots() const = 0;  // places for save_slot()
  virtual int32_t max_tokens_per_step() const = 0;
  virtual int64_t memory_bytes() const = 0;
  virtual models::RecordedGraphs graphs() const { return {}; }

  virtual void reset_slot(SlotId slot) = 0;
  virtual Result<void> truncate(SlotId slot, int32_t length) = 0;
  // Stores the slot's state, whose length is a multiple of the page size, in a place.
  virtual Result<void> save_slot(SlotId slot, cache::SnapshotId place) = 0;
  // Makes the slot continue from there. The pages of its tokens are the caller's business.
  virtual Result<void> restore_slot(SlotId slot, cache::SnapshotId place) = 0;
  // For tiers beyond the pool: what save_slot() stored, and the entries of pages
  // (info().page_bytes).
  virtual std::span<const std::byte> snapshot(cache::SnapshotId place) const = 0;
  virtual Result<void> set_snapshot(cache::SnapshotId place, std::span<const std::byte> bytes) = 0;
  virtual Result<void> save_page(PageId page, std::span<std::byte> out) = 0;
  virtual Result<void> restore_page(PageId page, std::span<const std::byte> entries) = 0;

  virtual Result<StepResult> step(const Batch& batch) = 0;

  // Decode steps that are given to the device before the last one ends: as of models::Model.
  virtual int32_t max_queued_steps() const { return 0; }
  virtual int32_t max_queued_rows() const { return 0; }
  virtual Result<void> queue_decode(std::span<const DecodeItem> /*items*/) {
    return unsupported("this runner has no queue of decode steps");
  }
  virtual Result<std::span<const int32_t>> fetch_decoded() {
    return unsupported("this runner has no queue of decode steps");
  }
};

// Fills in what `state` leaves to the model: max_context and num_pages.
models::StateOptions resolve_state(models::StateOptions state, const models::ModelInfo& info);

// Owns the model and reserves its state with resolve_state(state), and memory for the snapshots.
// The model runs on the thread that calls step().
Result<std::unique_ptr<ModelRunner>> make_model_runner(
    std::unique_ptr<models::Model> model,
    const models::StateOptions& state,
    std::unique_ptr<comm::Communicator> communicator,
    int32_t num_snapshots = 0);

}  // namespace nibble::engine

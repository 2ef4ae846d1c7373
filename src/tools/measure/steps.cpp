#include "tools/measure/steps.h"

#include <algorithm>

#include "base/checked_math.h"

namespace nibble::tools {

Steps::Steps(models::Model& model, int32_t num_sequences, int32_t max_context)
    : model_(model),
      max_context_(max_context),
      pages_(static_cast<size_t>(num_sequences)),
      communicator_(comm::make_local_communicator()) {
  const auto per_sequence = ceil_div(int64_t{max_context}, int64_t{model.info().page_size});
  int32_t next = 0;
  for (std::vector<PageId>& pages : pages_) {
    for (int64_t i = 0; i < per_sequence; ++i) pages.push_back(PageId{next++});
  }
}

Result<void> Steps::start(int32_t count, int32_t context, int32_t chunk) {
  for (int32_t sequence = 0; sequence < count; ++sequence) {
    model_.reset_slot(SlotId{sequence});
    for (int32_t done = 0; done < context; done += chunk) {
      TRY(pass({{.sequence = sequence, .tokens = std::min(chunk, context - done)}}));
    }
  }
  return {};
}

Result<void> Steps::wait_for_queued(int32_t most_left) {
  for (; num_queued_ > most_left; --num_queued_) TRY(model_.fetch_decoded());
  return {};
}

Result<void> Steps::queue(int32_t count) {
  std::vector<SlotId> slots;
  std::vector<std::span<const PageId>> tables;
  std::vector<int32_t> ids;
  std::uniform_int_distribution<int32_t> token(0, model_.info().vocab_size - 1);
  for (int32_t sequence = 0; sequence < count; ++sequence) {
    slots.push_back(SlotId{sequence});
    tables.emplace_back(pages_[static_cast<size_t>(sequence)]);
    ids.push_back(token(random_));
  }
  const std::vector<models::DeviceSampling> greedy(static_cast<size_t>(count));
  TRY(model_.queue_decode(
      {.slots = slots, .block_tables = tables, .token_ids = ids, .sampling = greedy}));
  ++num_queued_;
  return wait_for_queued(model_.max_queued_steps() - 1);
}

Result<void> Steps::decode(int32_t count) {
  if (model_.max_queued_steps() > 0) return queue(count);
  std::vector<Part> parts;
  parts.reserve(static_cast<size_t>(count));
  for (int32_t sequence = 0; sequence < count; ++sequence) {
    parts.push_back({.sequence = sequence, .tokens = 1});
  }
  return pass(parts);
}

Result<void> Steps::prefill(int32_t count) { return pass({{.sequence = 0, .tokens = count}}); }

Result<void> Steps::rewind(int32_t count) {
  TRY(wait_for_queued(0));
  for (int32_t sequence = 0; sequence < count; ++sequence) {
    TRY(model_.truncate(SlotId{sequence}, model_.length(SlotId{sequence}) - 1));
  }
  return {};
}

bool Steps::has_room(int32_t count, int32_t tokens) const {
  for (int32_t sequence = 0; sequence < count; ++sequence) {
    if (model_.length(SlotId{sequence}) + tokens > max_context_) return false;
  }
  return true;
}

Result<void> Steps::pass(const std::vector<Part>& parts) {
  TRY(wait_for_queued(0));
  std::vector<int32_t> ids, positions, bounds = {0}, rows;
  std::vector<SlotId> slots;
  std::vector<std::span<const PageId>> tables;
  std::uniform_int_distribution<int32_t> token(0, model_.info().vocab_size - 1);
  for (const Part& part : parts) {
    const int32_t begin = model_.length(SlotId{part.sequence});
    for (int32_t i = 0; i < part.tokens; ++i) {
      ids.push_back(token(random_));
      positions.push_back(begin + i);
    }
    bounds.push_back(static_cast<int32_t>(ids.size()));
    rows.push_back(bounds.back() - 1);
    slots.push_back(SlotId{part.sequence});
    tables.emplace_back(pages_[static_cast<size_t>(part.sequence)]);
  }
  const models::ForwardInput input{.token_ids = ids,
                                   .positions = positions,
                                   .cu_seqlens = bounds,
                                   .slots = slots,
                                   .block_tables = tables,
                                   .logits_rows = rows,
                                   .communicator = communicator_.get()};
  models::ForwardOutput output;
  return model_.forward(input, output);
}

}  // namespace nibble::tools

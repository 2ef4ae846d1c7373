// Decides what the next step computes, and who holds slots and pages. Owner: the engine thread.
// Knows token counts; never touches logits, text or the model.
//
// Policy: every decoding sequence advances by one token in each step. Prefill takes what the token
// budget leaves, oldest first, in chunks. Waiting sequences start in order of arrival when a slot
// and the pages of all their known tokens are free. When pages run out, the newest running sequence
// goes back to the front of the queue with its tokens kept and is computed again later; the oldest
// one therefore always advances.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/page_pool.h"
#include "engine/sequence.h"

namespace nibble::engine {

struct SchedulerLimits {
  int32_t num_slots = 1;             // sequences that run at a time
  int32_t num_pages = 0;             // enough for one sequence of the longest context
  int32_t page_size = 0;             // tokens
  int32_t max_tokens_per_step = 0;   // at least num_slots
  int32_t prefill_chunk_tokens = 0;  // prefill tokens per step, of all sequences together
};

// The next `num_tokens` tokens of a running sequence that are not computed yet.
struct ScheduledChunk {
  Sequence* sequence = nullptr;
  int32_t num_tokens = 0;
};

class Scheduler final {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  void add(std::unique_ptr<Sequence> sequence);

  // The chunks of one step, oldest sequence first. Empty only when there are no sequences. The
  // caller advances num_computed afterwards. A chunk at position 0 starts on a slot with old state.
  std::vector<ScheduledChunk> schedule();

  // Takes a sequence out, running or waiting, and frees what it holds.
  std::unique_ptr<Sequence> remove(const Sequence& sequence);

  Sequence* find(std::string_view request_id) const;
  Sequence* any() const;  // null when there are none
  // Running ones first.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const auto& sequence : running_) visit(std::as_const(*sequence));
    for (const auto& sequence : waiting_) visit(std::as_const(*sequence));
  }

  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int64_t num_preemptions() const { return num_preemptions_; }
  const cache::PagePool& pages() const { return pages_; }

 private:
  int32_t num_missing_pages(const Sequence& sequence) const;
  bool reserve_pages(Sequence& sequence);
  void reserve_or_preempt();
  void preempt_newest();
  void free_resources(Sequence& sequence);
  void admit(int32_t& prefill_budget, std::vector<ScheduledChunk>& chunks);

  SchedulerLimits limits_;
  cache::PagePool pages_;
  std::vector<SlotId> free_slots_;
  std::vector<std::unique_ptr<Sequence>> running_;  // oldest first; at most num_slots
  std::deque<std::unique_ptr<Sequence>> waiting_;   // bounded by the engine's queue limit
  int64_t num_preemptions_ = 0;
};

}  // namespace nibble::engine

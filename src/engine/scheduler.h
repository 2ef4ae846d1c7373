// Decides what the next step computes, and who runs. Owner: the engine thread. Knows token counts;
// never touches logits, text or the model.
//
// Policy (docs/scheduling.md): every decoding sequence advances by one token in each step. Prefill
// gets what the longest allowed gap leaves beside them, split fairly between owners and then
// between their sequences. Higher priorities go first, in the queue, for prefill and for memory.
// When pages run out, the running sequence of least priority, the newest of these, goes back to the
// queue with its tokens kept and is computed again later; the oldest one never does and therefore
// always advances.
//
// A waiting sequence whose prompt begins as that of a running one, beyond what is cached, waits
// until that one has computed the beginning. It keeps its place: slot and pages that it needs are
// not given to those behind it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/fair_share.h"
#include "engine/kv_manager.h"
#include "engine/sequence.h"
#include "engine/step_cost.h"

namespace nibble::engine {

struct SchedulerLimits {
  int32_t num_slots = 1;             // sequences that run at a time
  KvLimits kv;                       // pages enough for one sequence of the longest context
  int32_t max_tokens_per_step = 0;   // at least num_slots
  int32_t prefill_chunk_tokens = 0;  // prefill tokens per step, of all sequences together
  Duration max_gap{};                // of decoding sequences, for the sake of prefill; 0: any
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

  // The chunks of one step, by rank. Empty only when there are no sequences. The caller advances
  // num_computed afterwards. A chunk at position 0 starts on a slot with old state; sequences with
  // `resume` need theirs restored first, also those without a chunk.
  std::vector<ScheduledChunk> schedule();
  // What the step that schedule() returned last took, from there to its last output.
  void observe_step(Duration duration);

  // Whether the step after this one, whatever it gives, would only advance running sequences by a
  // token: all decode, and nobody who waits could start before one of them ends.
  bool is_only_decoding() const;
  // Pages for the tokens that a running sequence has, those that queued steps choose included.
  // False when there are none without preemption.
  bool reserve_ahead(Sequence& sequence);
  // A decode step of these sequences was queued behind others.
  void charge_ahead(std::span<Sequence* const> sequences);
  // What a queued step of so many sequences took.
  void observe_decode(int32_t num_decode, Duration duration);

  // The waiting sequences that have never run and may not wait any longer.
  std::vector<Sequence*> overdue(TimePoint now) const;
  // Takes a sequence out, running or waiting, and frees what it holds.
  std::unique_ptr<Sequence> remove(const Sequence& sequence);

  Sequence* find(std::string_view request_id) const;
  bool has(const Sequence* sequence) const;  // running
  Sequence* any() const;                     // null when there are none
  const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }
  // Running ones first.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const auto& sequence : running_) visit(std::as_const(*sequence));
    for (const auto& sequence : waiting_) visit(std::as_const(*sequence));
  }

  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t num_following() const;  // of those that wait: for a prefix, whatever is free
  int64_t num_preemptions() const { return num_preemptions_; }
  // Tokens computed for an owner of live requests, by which the queue is served.
  int64_t served(const std::string& owner) const { return shares_.served(owner); }
  KvManager& kv() { return kv_; }
  const KvManager& kv() const { return kv_; }
  // Stops the process unless every page is free, cached, or held by exactly one sequence.
  void check_invariants() const;

 private:
  using WaitingList = std::deque<std::unique_ptr<Sequence>>;
  // What is free but kept for sequences that wait for a prefix.
  struct Kept {
    int32_t num_slots = 0;
    int32_t num_pages = 0;
  };

  void rank();
  void reserve_or_preempt();
  void preempt(size_t index);
  void free_resources(Sequence& sequence);
  void admit();
  void start(Sequence& sequence);
  bool keep_for_follower(Sequence& sequence, Kept& kept);
  bool try_start(Sequence& sequence, const Kept& kept);
  bool make_room(const Sequence& sequence, const Kept& kept);
  Sequence* next_waiting() const;
  bool goes_before(const Sequence& a, const Sequence& b) const;
  int32_t num_decoding() const;
  int32_t prefill_demand(size_t index) const;
  int32_t prefill_budget();
  void split_prefill(int32_t budget, std::vector<int32_t>& num_tokens) const;
  int32_t split_between_owners(std::span<const size_t> indices,
                               int32_t budget,
                               std::vector<int32_t>& num_tokens) const;

  SchedulerLimits limits_;
  KvManager kv_;
  std::vector<SlotId> free_slots_;
  // By rank: the oldest, then by falling priority, older ones first. At most num_slots.
  std::vector<std::unique_ptr<Sequence>> running_;
  WaitingList waiting_;  // bounded by the engine's queue limit
  OwnerShares shares_;
  StepCost cost_;
  StepLoad load_;  // of the last step
  int64_t num_added_ = 0;
  int64_t num_preemptions_ = 0;
};

}  // namespace nibble::engine

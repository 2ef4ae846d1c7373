#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/checked_math.h"

namespace nibble::engine {

Scheduler::Scheduler(const SchedulerLimits& limits) : limits_(limits), pages_(limits.num_pages) {
  CHECK(limits.num_slots > 0 && limits.page_size > 0 && limits.prefill_chunk_tokens > 0);
  CHECK(limits.max_tokens_per_step >= limits.num_slots);
  for (int32_t slot = limits.num_slots - 1; slot >= 0; --slot) free_slots_.push_back(SlotId{slot});
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

std::vector<ScheduledChunk> Scheduler::schedule() {
  const int64_t preemptions_before = num_preemptions_;
  reserve_or_preempt();
  const auto num_decoding = static_cast<int32_t>(std::count_if(
      running_.begin(), running_.end(), [](const auto& s) { return s->is_decoding(); }));
  int32_t prefill_budget =
      std::min(limits_.prefill_chunk_tokens, limits_.max_tokens_per_step - num_decoding);
  std::vector<ScheduledChunk> chunks;
  for (const auto& sequence : running_) {
    if (sequence->is_decoding()) {
      chunks.push_back({.sequence = sequence.get(), .num_tokens = 1});
      continue;
    }
    const int32_t num_tokens = std::min(sequence->num_pending(), prefill_budget);
    if (num_tokens == 0) continue;
    prefill_budget -= num_tokens;
    chunks.push_back({.sequence = sequence.get(), .num_tokens = num_tokens});
  }
  // Whoever was just preempted would take its pages straight back.
  if (num_preemptions_ == preemptions_before) admit(prefill_budget, chunks);
  return chunks;
}

// Oldest first, so that the victims, taken from the newest end, hold no reservation of this step.
void Scheduler::reserve_or_preempt() {
  for (size_t i = 0; i < running_.size(); ++i) {
    while (i < running_.size() && !reserve_pages(*running_[i])) preempt_newest();
  }
}

void Scheduler::admit(int32_t& prefill_budget, std::vector<ScheduledChunk>& chunks) {
  while (!waiting_.empty() && !free_slots_.empty() && prefill_budget > 0) {
    Sequence& sequence = *waiting_.front();
    if (!reserve_pages(sequence)) {
      CHECK(!running_.empty()) << "a sequence alone must fit: " << sequence.num_tokens()
                               << " tokens";
      return;
    }
    sequence.slot = free_slots_.back();
    free_slots_.pop_back();
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    const int32_t num_tokens = std::min(sequence.num_pending(), prefill_budget);
    prefill_budget -= num_tokens;
    chunks.push_back({.sequence = &sequence, .num_tokens = num_tokens});
  }
}

int32_t Scheduler::num_missing_pages(const Sequence& sequence) const {
  const auto needed = static_cast<int32_t>(ceil_div(sequence.num_tokens(), limits_.page_size));
  return std::max(0, needed - static_cast<int32_t>(sequence.block_table.size()));
}

bool Scheduler::reserve_pages(Sequence& sequence) {
  auto pages = pages_.take(num_missing_pages(sequence));
  if (!pages.ok()) return false;
  sequence.block_table.insert(sequence.block_table.end(), pages->begin(), pages->end());
  return true;
}

void Scheduler::preempt_newest() {
  CHECK(running_.size() > 1) << "a sequence alone must fit";
  std::unique_ptr<Sequence> victim = std::move(running_.back());
  running_.pop_back();
  free_resources(*victim);
  victim->num_computed = 0;
  ++victim->num_preemptions;
  ++num_preemptions_;
  waiting_.push_front(std::move(victim));
}

void Scheduler::free_resources(Sequence& sequence) {
  if (!sequence.slot.is_valid()) return;
  free_slots_.push_back(std::exchange(sequence.slot, SlotId{}));
  pages_.release(sequence.block_table);
  sequence.block_table.clear();
}

std::unique_ptr<Sequence> Scheduler::remove(const Sequence& sequence) {
  const auto take_from = [&](auto& list) -> std::unique_ptr<Sequence> {
    const auto it = std::find_if(
        list.begin(), list.end(), [&](const auto& entry) { return entry.get() == &sequence; });
    if (it == list.end()) return nullptr;
    std::unique_ptr<Sequence> taken = std::move(*it);
    list.erase(it);
    return taken;
  };
  std::unique_ptr<Sequence> taken = take_from(running_);
  if (!taken) taken = take_from(waiting_);
  CHECK(taken != nullptr) << "not scheduled here";
  free_resources(*taken);
  return taken;
}

Sequence* Scheduler::find(std::string_view request_id) const {
  const auto has_id = [&](const auto& entry) { return entry->request.id == request_id; };
  const auto running = std::find_if(running_.begin(), running_.end(), has_id);
  if (running != running_.end()) return running->get();
  const auto waiting = std::find_if(waiting_.begin(), waiting_.end(), has_id);
  return waiting == waiting_.end() ? nullptr : waiting->get();
}

Sequence* Scheduler::any() const {
  if (!running_.empty()) return running_.front().get();
  return waiting_.empty() ? nullptr : waiting_.front().get();
}

}  // namespace nibble::engine

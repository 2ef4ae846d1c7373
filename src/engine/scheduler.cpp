#include "engine/scheduler.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace nibble::engine {
namespace {

// The oldest sequence gets one token of so many, whatever is more important.
constexpr int32_t kOldestPart = 8;

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits) : limits_(limits), kv_(limits.kv) {
  CHECK(limits.num_slots > 0 && limits.kv.page_size > 0 && limits.prefill_chunk_tokens > 0);
  CHECK(limits.max_tokens_per_step >= limits.num_slots);
  for (int32_t slot = limits.num_slots - 1; slot >= 0; --slot) free_slots_.push_back(SlotId{slot});
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  sequence->arrival_index = num_added_++;
  shares_.join(sequence->request.owner);
  waiting_.push_back(std::move(sequence));
}

std::vector<ScheduledChunk> Scheduler::schedule() {
  const int64_t preemptions_before = num_preemptions_;
  reserve_or_preempt();
  // Whoever was just preempted would take its pages straight back.
  if (num_preemptions_ == preemptions_before) admit();
  std::vector<int32_t> num_tokens(running_.size());
  split_prefill(prefill_budget(), num_tokens);

  load_ = {.num_decode = num_decoding()};
  std::vector<ScheduledChunk> chunks;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.is_decoding()) {
      num_tokens[i] = 1;
    } else {
      load_.num_prefill += num_tokens[i];
    }
    if (num_tokens[i] == 0) continue;
    shares_.charge(sequence.request.owner, num_tokens[i]);
    chunks.push_back({.sequence = &sequence, .num_tokens = num_tokens[i]});
  }
  return chunks;
}

void Scheduler::observe_step(Duration duration) { cost_.observe(load_, duration); }

// With every slot taken only somebody more important could start: by preemption.
bool Scheduler::is_only_decoding() const {
  if (running_.empty() || num_decoding() != num_running()) return false;
  if (waiting_.empty()) return true;
  const int32_t least = running_.back()->request.priority;
  return free_slots_.empty() && std::ranges::none_of(waiting_, [&](const auto& sequence) {
           return sequence->request.priority > least;
         });
}

bool Scheduler::reserve_ahead(Sequence& sequence) {
  return kv_.grow(sequence, sequence.num_tokens() + sequence.num_queued);
}

void Scheduler::charge_ahead(std::span<Sequence* const> sequences) {
  for (const Sequence* sequence : sequences) shares_.charge(sequence->request.owner, 1);
}

void Scheduler::observe_decode(int32_t num_decode, Duration duration) {
  cost_.observe({.num_decode = num_decode}, duration);
}

void Scheduler::rank() {
  const auto is_above = [](const auto& a, const auto& b) {
    if (a->request.priority != b->request.priority) {
      return a->request.priority > b->request.priority;
    }
    return a->arrival_index < b->arrival_index;
  };
  std::ranges::sort(running_, is_above);
  const auto oldest = std::ranges::min_element(
      running_, {}, [](const auto& sequence) { return sequence->arrival_index; });
  if (oldest != running_.end()) std::rotate(running_.begin(), oldest, oldest + 1);
}

// By rank, so that the victims, taken from the other end, hold no reservation of this step.
void Scheduler::reserve_or_preempt() {
  for (size_t i = 0; i < running_.size(); ++i) {
    while (i < running_.size() && !kv_.grow(*running_[i], running_[i]->num_tokens())) {
      CHECK(running_.size() > 1) << "a sequence alone must fit";
      preempt(running_.size() - 1);
    }
  }
}

void Scheduler::preempt(size_t index) {
  std::unique_ptr<Sequence> victim = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  free_resources(*victim);
  victim->num_computed = 0;
  ++victim->num_preemptions;
  ++num_preemptions_;
  waiting_.push_front(std::move(victim));
}

// Whether `a` leaves the queue before `b`: priority; then those that have begun, because somebody
// waits in the middle of an answer; then the owner who has had least; then age.
bool Scheduler::goes_before(const Sequence& a, const Sequence& b) const {
  if (a.request.priority != b.request.priority) return a.request.priority > b.request.priority;
  const bool has_begun = a.num_preemptions > 0;
  if (has_begun != (b.num_preemptions > 0)) return has_begun;
  if (!has_begun && a.request.owner != b.request.owner) {
    const int64_t served = shares_.served(a.request.owner);
    const int64_t other = shares_.served(b.request.owner);
    if (served != other) return served < other;
  }
  return a.arrival_index < b.arrival_index;
}

// Of those that do not follow another one; null: there are none.
Sequence* Scheduler::next_waiting() const {
  Sequence* next = nullptr;
  for (const auto& sequence : waiting_) {
    if (sequence->is_following) continue;
    if (next == nullptr || goes_before(*sequence, *next)) next = sequence.get();
  }
  return next;
}

void Scheduler::admit() {
  for (const auto& sequence : waiting_) sequence->is_following = false;
  const int64_t preemptions_before = num_preemptions_;
  Kept kept;
  while (num_preemptions_ == preemptions_before) {
    Sequence* next = next_waiting();
    if (next == nullptr) break;
    // Beyond those that could run, who follows whom can wait.
    if (kept.num_slots == limits_.num_slots) break;
    if (keep_for_follower(*next, kept)) continue;
    if (!kv_.fetch(*next)) break;
    if (!try_start(*next, kept) && !(make_room(*next, kept) && try_start(*next, kept))) break;
    start(*next);
  }
  CHECK(waiting_.empty() || !running_.empty() || kv_.is_fetching()) << "a sequence must fit";
}

void Scheduler::start(Sequence& sequence) {
  const auto it = std::ranges::find(waiting_, &sequence, [](const auto& s) { return s.get(); });
  running_.push_back(std::move(*it));
  waiting_.erase(it);
  rank();
}

// True when `sequence` waits for the prefix of a running one. Only for one of no less priority,
// which gets at least the prefill that it would get itself: nobody waits longer than computing the
// prefix alone would take.
bool Scheduler::keep_for_follower(Sequence& sequence, Kept& kept) {
  int32_t end = 0;
  for (const auto& leader : running_) {
    const bool is_at_work =
        leader->num_computed < leader->num_tokens() / limits_.kv.page_size * limits_.kv.page_size;
    if (!is_at_work || leader->request.priority < sequence.request.priority) continue;
    end = std::max(end, kv_.follow(sequence, *leader));
  }
  if (end == 0) return false;
  sequence.is_following = true;
  ++kept.num_slots;
  // One more, as for sequences that run.
  kept.num_pages += kv_.pages_of(sequence.num_tokens()) - end / limits_.kv.page_size + 1;
  return true;
}

// Every running sequence may need a page soon; starting on the last ones would end in preemption.
bool Scheduler::try_start(Sequence& sequence, const Kept& kept) {
  if (static_cast<int32_t>(free_slots_.size()) <= kept.num_slots) return false;
  if (!kv_.start(sequence, num_running() + kept.num_pages)) return false;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  if (!sequence.num_cached) sequence.num_cached = sequence.num_computed;
  return true;
}

// Preempts sequences of less priority, the newest first, when that gives `sequence` a slot and
// pages.
bool Scheduler::make_room(const Sequence& sequence, const Kept& kept) {
  size_t num_victims = 0;
  int32_t num_pages = kv_.num_available();
  const auto is_enough = [&] {
    const auto num_left = static_cast<int32_t>(running_.size() - num_victims);
    const int32_t num_needed = sequence.num_tokens() / limits_.kv.page_size + 1;
    const auto num_slots = static_cast<int32_t>(free_slots_.size() + num_victims);
    return num_slots > kept.num_slots && num_pages >= num_needed + num_left + kept.num_pages;
  };
  while (!is_enough()) {
    const size_t left = running_.size() - num_victims;
    if (left <= 1) return false;  // the oldest stays
    const Sequence& victim = *running_[left - 1];
    if (victim.request.priority >= sequence.request.priority) return false;
    num_pages += static_cast<int32_t>(victim.block_table.size());
    ++num_victims;
  }
  for (size_t i = 0; i < num_victims; ++i) preempt(running_.size() - 1);
  return true;
}

int32_t Scheduler::num_decoding() const {
  return static_cast<int32_t>(
      std::ranges::count_if(running_, [](const auto& s) { return s->is_decoding(); }));
}

int32_t Scheduler::num_following() const {
  return static_cast<int32_t>(
      std::ranges::count_if(waiting_, [](const auto& s) { return s->is_following; }));
}

int32_t Scheduler::prefill_demand(size_t index) const {
  const Sequence& sequence = *running_[index];
  return kv_.clip_chunk(sequence, sequence.num_pending());
}

int32_t Scheduler::prefill_budget() {
  const int32_t decoding = num_decoding();
  int32_t budget = std::min(limits_.prefill_chunk_tokens, limits_.max_tokens_per_step - decoding);
  if (decoding > 0 && limits_.max_gap > Duration::zero()) {
    budget = std::min(budget, cost_.prefill_within(limits_.max_gap, decoding));
  }
  return budget;
}

// num_tokens: [num_running], zero; set for those in prefill. By falling priority, but where others
// go before it, the oldest sequence is sure of a part.
void Scheduler::split_prefill(int32_t budget, std::vector<int32_t>& num_tokens) const {
  std::vector<size_t> indices;
  for (size_t i = 0; i < running_.size(); ++i) {
    if (!running_[i]->is_decoding()) indices.push_back(i);
  }
  std::ranges::stable_sort(
      indices, std::ranges::greater(), [this](size_t i) { return running_[i]->request.priority; });
  if (!indices.empty() && indices.front() != 0 && !running_.front()->is_decoding()) {
    num_tokens.front() = std::min(prefill_demand(0), std::max(budget / kOldestPart, 1));
    budget -= num_tokens.front();
  }
  for (size_t begin = 0; begin < indices.size() && budget > 0;) {
    size_t end = begin;
    while (end < indices.size() &&
           running_[indices[end]]->request.priority == running_[indices[begin]]->request.priority) {
      ++end;
    }
    budget -=
        split_between_owners(std::span(indices).subspan(begin, end - begin), budget, num_tokens);
    begin = end;
  }
  // A budget smaller than the number of owners leaves some without.
  if (!indices.empty() && !running_.front()->is_decoding() && num_tokens.front() == 0) {
    --*std::ranges::max_element(num_tokens);
    ++num_tokens.front();
  }
}

// Adds to num_tokens of `indices`; returns what it gave.
int32_t Scheduler::split_between_owners(std::span<const size_t> indices,
                                        int32_t budget,
                                        std::vector<int32_t>& num_tokens) const {
  struct Group {
    std::vector<size_t> indices;
    std::vector<int32_t> demands;
  };
  std::map<std::string_view, Group> groups;
  for (const size_t i : indices) {
    Group& group = groups[running_[i]->request.owner];
    group.indices.push_back(i);
    group.demands.push_back(prefill_demand(i) - num_tokens[i]);
  }
  std::vector<int32_t> totals;
  totals.reserve(groups.size());
  for (const auto& [owner, group] : groups) {
    totals.push_back(std::accumulate(group.demands.begin(), group.demands.end(), 0));
  }
  const std::vector<int32_t> parts = fair_split(budget, totals);
  int32_t given = 0;
  size_t g = 0;
  for (const auto& [owner, group] : groups) {
    const std::vector<int32_t> split = fair_split(parts[g++], group.demands);
    for (size_t k = 0; k < split.size(); ++k) {
      num_tokens[group.indices[k]] += split[k];
      given += split[k];
    }
  }
  return given;
}

void Scheduler::free_resources(Sequence& sequence) {
  if (!sequence.slot.is_valid()) return;
  free_slots_.push_back(std::exchange(sequence.slot, SlotId{}));
  kv_.release(sequence);
}

std::vector<Sequence*> Scheduler::overdue(TimePoint now) const {
  std::vector<Sequence*> sequences;
  for (const auto& sequence : waiting_) {
    if (!sequence->started && now >= sequence->start_by) sequences.push_back(sequence.get());
  }
  return sequences;
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
  shares_.leave(taken->request.owner);
  free_resources(*taken);
  rank();
  return taken;
}

Sequence* Scheduler::find(std::string_view request_id) const {
  const auto has_id = [&](const auto& entry) { return entry->request.id == request_id; };
  const auto running = std::find_if(running_.begin(), running_.end(), has_id);
  if (running != running_.end()) return running->get();
  const auto waiting = std::find_if(waiting_.begin(), waiting_.end(), has_id);
  return waiting == waiting_.end() ? nullptr : waiting->get();
}

bool Scheduler::has(const Sequence* sequence) const {
  return std::ranges::any_of(running_, [=](const auto& entry) { return entry.get() == sequence; });
}

Sequence* Scheduler::any() const {
  if (!running_.empty()) return running_.front().get();
  return waiting_.empty() ? nullptr : waiting_.front().get();
}

void Scheduler::check_invariants() const {
  kv_.tree().check_invariants();
  size_t num_private = 0;
  for (const auto& sequence : running_) {
    const size_t num_shared = sequence->path.empty() ? 0 : sequence->path.size() - 1;
    CHECK(num_shared <= sequence->block_table.size());
    for (size_t i = 0; i < num_shared; ++i) {
      CHECK(kv_.tree().page(sequence->path[i + 1]) == sequence->block_table[i]);
    }
    num_private += sequence->block_table.size() - num_shared;
  }
  for (const auto& sequence : waiting_) CHECK(sequence->block_table.empty());
  CHECK(static_cast<size_t>(kv_.pages().num_used()) ==
        num_private + static_cast<size_t>(kv_.tree().num_pages()));
  CHECK(running_.size() + free_slots_.size() == static_cast<size_t>(limits_.num_slots));
}

}  // namespace nibble::engine

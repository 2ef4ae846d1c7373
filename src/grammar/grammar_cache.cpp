#include "grammar/grammar_cache.h"

namespace nibble::grammar {

GrammarCache::GrammarCache(std::shared_ptr<const Vocabulary> vocabulary,
                           size_t capacity,
                           const Limits& limits)
    : vocabulary_(std::move(vocabulary)), capacity_(capacity), limits_(limits) {}

Result<std::shared_ptr<const Grammar>> GrammarCache::get(const Spec& spec) {
  std::string key = cache_key(spec);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = by_key_.find(key); found != by_key_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return found->second->second;
    }
  }
  TRY_ASSIGN(std::shared_ptr<const Grammar> grammar, compile(spec, vocabulary_, limits_));
  const std::lock_guard lock(mutex_);
  ++num_compiled_;
  // Another thread may have been faster; its grammar has learnt more.
  if (const auto found = by_key_.find(key); found != by_key_.end()) return found->second->second;
  entries_.emplace_front(std::move(key), grammar);
  by_key_.emplace(entries_.front().first, entries_.begin());
  if (entries_.size() > capacity_) {
    by_key_.erase(entries_.back().first);
    entries_.pop_back();
  }
  return grammar;
}

size_t GrammarCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

int64_t GrammarCache::num_compiled() const {
  const std::lock_guard lock(mutex_);
  return num_compiled_;
}

}  // namespace nibble::grammar

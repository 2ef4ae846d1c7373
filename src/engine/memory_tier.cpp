#include <iterator>
#include <list>
#include <utility>

#include "engine/kv_tier.h"

namespace nibble::engine {
namespace {

class MemoryTier final : public KvTier {
 public:
  MemoryTier(int64_t max_bytes, std::unique_ptr<KvTier> next)
      : max_bytes_(max_bytes), next_(std::move(next)) {}

  Holds holds(const Hash128& name) const override {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return next_ ? next_->holds(name) : Holds::kNothing;
    return found->second->snapshot.empty() ? Holds::kEntries : Holds::kEntriesAndSnapshot;
  }

  void put(TierPage&& page, WhenFull when_full) override {
    if (const auto found = by_name_.find(page.name); found != by_name_.end()) {
      if (page.snapshot.empty()) page.snapshot = std::move(found->second->snapshot);
      erase(found->second);
    }
    num_bytes_ += page.num_bytes();
    pages_.push_back(std::move(page));
    by_name_[pages_.back().name] = std::prev(pages_.end());
    while (num_bytes_ > max_bytes_) hand_on_oldest(when_full);
  }

  void fetch(std::span<const Hash128> names) override {
    fetched_.clear();
    std::vector<Hash128> others;
    for (const Hash128& name : names) {
      const auto found = by_name_.find(name);
      if (found == by_name_.end()) {
        others.push_back(name);
        continue;
      }
      TierPage page = std::move(*found->second);
      num_bytes_ -= page.num_bytes();
      pages_.erase(found->second);
      by_name_.erase(found);
      fetched_.emplace(name, std::move(page));
    }
    if (next_) next_->fetch(others);
  }

  bool is_fetched() const override { return !next_ || next_->is_fetched(); }

  void wait_fetched(Duration most) override {
    if (next_) next_->wait_fetched(most);
  }

  TierPages take() override {
    if (next_) fetched_.merge(next_->take());
    return std::exchange(fetched_, {});
  }

  int64_t num_bytes() const override { return num_bytes_ + (next_ ? next_->num_bytes() : 0); }

  void clear() override {
    pages_.clear();
    by_name_.clear();
    fetched_.clear();
    num_bytes_ = 0;
    if (next_) next_->clear();
  }

  void close() override {
    if (!next_) return;
    while (!pages_.empty()) hand_on_oldest(WhenFull::kWait);
    next_->close();
  }

 private:
  using List = std::list<TierPage>;

  void erase(List::iterator page) {
    num_bytes_ -= page->num_bytes();
    by_name_.erase(page->name);
    pages_.erase(page);
  }

  void hand_on_oldest(WhenFull when_full) {
    TierPage page = std::move(pages_.front());
    num_bytes_ -= page.num_bytes();
    by_name_.erase(page.name);
    pages_.pop_front();
    if (next_) next_->put(std::move(page), when_full);
  }

  int64_t max_bytes_;
  std::unique_ptr<KvTier> next_;
  List pages_;  // least recently put first; at most max_bytes_
  std::unordered_map<Hash128, List::iterator> by_name_;
  TierPages fetched_;  // between fetch() and take(): the prefix of one request
  int64_t num_bytes_ = 0;
};

}  // namespace

std::unique_ptr<KvTier> make_memory_tier(int64_t max_bytes, std::unique_ptr<KvTier> next) {
  return std::make_unique<MemoryTier>(max_bytes, std::move(next));
}

}  // namespace nibble::engine

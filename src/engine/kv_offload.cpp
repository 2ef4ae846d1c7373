#include "engine/kv_offload.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"

namespace nibble::engine {

void KvOffload::put(cache::PrefixTree::Evicted&& evicted, KvTier::WhenFull when_full) {
  TierPage stored{
      .name = evicted.name, .parent = evicted.parent, .tokens = std::move(evicted.tokens)};
  stored.entries.resize(static_cast<size_t>(runner_.info().page_bytes));
  const Result<void> saved = runner_.save_page(evicted.page, stored.entries);
  if (!saved.ok()) {
    log_warning("a cached page was lost: {}", saved.error().message);
    return;
  }
  if (evicted.snapshot.is_valid()) {
    const auto snapshot = runner_.snapshot(evicted.snapshot);
    stored.snapshot.assign(snapshot.begin(), snapshot.end());
  }
  tier_->put(std::move(stored), when_full);
}

Result<void> KvOffload::load_page(const TierPage& stored, PageId page) {
  const auto found = static_cast<int64_t>(stored.entries.size());
  if (found != runner_.info().page_bytes) {
    return data_loss(
        fmt::format("a stored page has {} bytes, expected {}", found, runner_.info().page_bytes));
  }
  return runner_.restore_page(page, stored.entries);
}

Result<void> KvOffload::load_snapshot(const TierPage& stored, cache::SnapshotId place) {
  return runner_.set_snapshot(place, stored.snapshot);
}

}  // namespace nibble::engine

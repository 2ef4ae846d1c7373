// Moves cached pages between the device's pool and the tiers beyond it: knows whose bytes to read
// and write, decides nothing. Owner: the engine thread.
#pragma once

#include <memory>
#include <utility>

#include "base/ids.h"
#include "base/result.h"
#include "cache/prefix_tree.h"
#include "engine/kv_tier.h"
#include "engine/model_runner.h"

namespace nibble::engine {

class KvOffload final {
 public:
  // The runner must outlive the object.
  KvOffload(ModelRunner& runner, std::unique_ptr<KvTier> tier)
      : runner_(runner), tier_(std::move(tier)) {}

  KvTier& tier() { return *tier_; }
  const KvTier& tier() const { return *tier_; }

  // Hands an evicted node to the tier; its bytes must still be in their places.
  void put(cache::PrefixTree::Evicted&& evicted, KvTier::WhenFull when_full);
  // Writes entries into a page. kDataLoss when they are not of this model.
  Result<void> load_page(const TierPage& stored, PageId page);
  Result<void> load_snapshot(const TierPage& stored, cache::SnapshotId place);

 private:
  ModelRunner& runner_;
  std::unique_ptr<KvTier> tier_;
};

}  // namespace nibble::engine

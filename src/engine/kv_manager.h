// Who holds the KV pages and the snapshots of a device: running sequences, and the prefix cache
// with what the pool leaves. Owner: the engine thread; used by the scheduler (pages) and the engine
// core (snapshots). Knows ids and tokens; the bytes are the model runner's and the snapshot
// store's.
//
// A page that a sequence has filled goes to the prefix tree, and the sequence goes on referencing
// it there; a page that the tree already has is given back. A sequence resumes only where the tree
// has a snapshot, so snapshots are taken where reuse is likely: at the end of a prompt, at every
// page that generation completes (the last one stays), where two prompts part, and at an interval.
// Beyond the pool, tiers take evicted pages and the snapshots that others displace.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cache/page_pool.h"
#include "cache/prefix_tree.h"
#include "engine/kv_offload.h"
#include "engine/sequence.h"

namespace nibble::engine {

struct KvLimits {
  int32_t num_pages = 0;
  int32_t page_size = 0;      // tokens
  int32_t num_snapshots = 0;  // 0: no prefix cache
  // Pages between the snapshots of a long prompt; 0: none of these.
  int32_t snapshot_interval = 0;
  SipKey key;  // of the prefix cache's names
};

class KvManager final {
 public:
  explicit KvManager(const KvLimits& limits);

  // From now on what is evicted goes beyond the pool, from where fetch() brings it back.
  void attach(std::unique_ptr<KvOffload> offload) { offload_ = std::move(offload); }
  const KvOffload* offload() const { return offload_.get(); }

  // Brings what the tiers hold of a waiting sequence's prefix into the prefix cache. False while it
  // is on its way.
  bool fetch(Sequence& sequence);
  bool is_fetching() const { return fetching_root_.is_valid(); }
  void wait_fetched(Duration most);
  // Hands everything that no sequence references to the tiers and waits until it is safe there.
  void close();

  // Gives a waiting sequence pages for all of its tokens, of which the longest cached prefix with a
  // snapshot comes from the prefix cache: num_computed becomes its length and `resume` names the
  // snapshot. False, with nothing changed, unless `num_spare` pages stay available.
  bool start(Sequence& sequence, int32_t num_spare);
  // The slot's state has been read from `resume`.
  void resumed(Sequence& sequence);
  // Whether `sequence`, which waits, gets further by waiting for `leader`, which runs, to compute
  // the beginning that both have: it is nowhere behind where `sequence` could start. The leader
  // then leaves a snapshot where they part, at the returned number of tokens; 0: no.
  int32_t follow(Sequence& sequence, Sequence& leader);
  // Pages for the first `num_tokens` tokens of a running sequence. False when there are none.
  bool grow(Sequence& sequence, int32_t num_tokens);
  // Takes everything back; what is full stays cached.
  void release(Sequence& sequence);

  // How much of a chunk of `num_tokens` to compute at once: it ends where a snapshot is wanted.
  int32_t clip_chunk(const Sequence& sequence, int32_t num_tokens) const;
  // After num_computed has grown: full pages become shared.
  void commit(Sequence& sequence);
  // Where the state that the sequence has now shall be stored; none: nowhere.
  std::optional<cache::SnapshotId> place_snapshot(Sequence& sequence);
  // The snapshot placed last could not be stored.
  void drop_snapshot(const Sequence& sequence);

  // Forgets everything that no sequence references, in the tiers as well.
  void flush();

  const cache::PagePool& pages() const { return pages_; }
  const cache::PrefixTree& tree() const { return tree_; }
  int32_t pages_of(int32_t num_tokens) const;
  // Free, or cached and unreferenced.
  int32_t num_available() const { return pages_.num_free() + tree_.num_evictable(); }
  int64_t num_evictions() const { return num_evictions_; }
  int64_t num_tier_hits() const { return num_tier_hits_; }  // pages
  bool has_prefix_cache() const { return limits_.num_snapshots > 0; }

 private:
  struct Match {
    std::vector<cache::NodeId> nodes;  // of the leading pages, without the root
    int32_t num_resumable = 0;         // of these pages: up to the last snapshot
  };

  int32_t page_size() const { return limits_.page_size; }
  std::span<const int32_t> page_tokens(const Sequence& sequence, int32_t index) const;
  const Hash128& page_name(Sequence& sequence, cache::NodeId root, int32_t index);
  std::vector<Hash128> names_to_fetch(Sequence& sequence, cache::NodeId root);
  void adopt(TierPages&& pages);
  cache::NodeId adopt_page(const TierPage& page);
  void adopt_snapshot(cache::NodeId node, const TierPage& page);
  bool evict_one();
  Match match(Sequence& sequence, cache::NodeId root);
  bool take_pages(Sequence& sequence, int32_t count);
  bool wants_snapshot_at(const Sequence& sequence, int32_t num_tokens) const;
  int32_t last_boundary(const Sequence& sequence) const;
  int32_t common_end(Sequence& sequence, Sequence& leader);
  cache::SnapshotId add_snapshot(cache::NodeId node, cache::Retention retention);

  KvLimits limits_;
  cache::PagePool pages_;
  cache::PrefixTree tree_;
  int64_t num_evictions_ = 0;
  int64_t num_tier_hits_ = 0;

  std::unique_ptr<KvOffload> offload_;  // null: evicted pages are gone
  // Of the prefix that is on its way: its referenced root and the names of its pages in order.
  cache::NodeId fetching_root_;
  std::vector<Hash128> fetching_;
};

}  // namespace nibble::engine

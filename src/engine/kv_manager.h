// Who holds the KV pages and the snapshots of a device: running sequences, and the prefix cache
// with what the pool leaves. Owner: the engine thread; used by the scheduler (pages) and the engine
// core (snapshots). Knows ids and tokens; the bytes are the model runner's and the snapshot
// store's.
//
// A page that a sequence has filled goes to the prefix tree, and the sequence goes on referencing
// it there; a page that the tree already has is given back. A sequence resumes only where the tree
// has a snapshot, so snapshots are taken where reuse is likely: at the end of a prompt, at every
// page that generation completes (the last one stays), where two prompts part, and at an interval.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "cache/page_pool.h"
#include "cache/prefix_tree.h"
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

  // Gives a waiting sequence pages for all of its tokens, of which the longest cached prefix with a
  // snapshot comes from the prefix cache: num_computed becomes its length and `resume` names the
  // snapshot. False, with nothing changed, unless `num_spare` pages stay available.
  bool start(Sequence& sequence, int32_t num_spare);
  // Pages for the tokens that a running sequence has gained. False when there are none.
  bool grow(Sequence& sequence);
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

  // Forgets everything that no sequence references.
  void flush();

  const cache::PagePool& pages() const { return pages_; }
  const cache::PrefixTree& tree() const { return tree_; }
  // Free, or cached and unreferenced.
  int32_t num_available() const { return pages_.num_free() + tree_.num_evictable(); }
  int64_t num_evictions() const { return num_evictions_; }
  bool has_prefix_cache() const { return limits_.num_snapshots > 0; }

 private:
  struct Match {
    std::vector<cache::NodeId> nodes;  // of the leading pages, without the root
    int32_t num_resumable = 0;         // of these pages: up to the last snapshot
  };

  int32_t page_size() const { return limits_.page_size; }
  int32_t pages_of(int32_t num_tokens) const;
  std::span<const int32_t> page_tokens(const Sequence& sequence, int32_t index) const;
  const Hash128& page_name(Sequence& sequence, cache::NodeId parent, int32_t index);
  Match match(Sequence& sequence, cache::NodeId root);
  bool take_pages(Sequence& sequence, int32_t count);
  bool wants_snapshot_at(const Sequence& sequence, int32_t num_tokens) const;
  int32_t last_boundary(const Sequence& sequence) const;

  KvLimits limits_;
  cache::PagePool pages_;
  cache::PrefixTree tree_;
  int64_t num_evictions_ = 0;
};

}  // namespace nibble::engine

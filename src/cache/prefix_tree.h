// The radix tree of computed prefixes: a node is one page of tokens after its parent's, and owns
// the KV page that holds their entries. A node may also hold a snapshot, the fixed state of a
// sequence that stands at its end; only there can a sequence resume. Owner: the engine thread.
// Host-only: hands out ids, never touches KV bytes.
//
// A sequence references every node on its path. Nodes without references may be evicted, least
// recently used first and never before their children; snapshots have a pool and an order of their
// own. A hit compares tokens, so it is exact; hashes (keyed, chained from the root) only find nodes
// and name them outside of this process.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/sip_hash.h"

namespace nibble::cache {

using NodeId = Id<struct PrefixNodeTag>;
using SnapshotId = Id<struct SnapshotTag>;

// How long a snapshot is wanted.
enum class Retention {
  kRolling,  // until its sequence has a later one
  kLasting,  // until the pool needs the place
};

class PrefixTree final {
 public:
  struct Options {
    int32_t page_size = 0;  // tokens
    int32_t num_snapshots = 0;
    SipKey key;
  };
  // What an eviction gave back: ids are free again, their bytes still in place.
  struct Evicted {
    PageId page;
    SnapshotId snapshot;  // invalid: there was none
    Hash128 name;
    Hash128 parent;
    std::vector<int32_t> tokens;
    // A sequence can resume here or below, with what a tier beyond the pool may hold.
    bool is_resumable = false;
  };

  explicit PrefixTree(const Options& options);

  // The empty prefix of a name space, referenced. Prefixes of different name spaces never meet.
  NodeId open(std::string_view name_space);
  // Name of the prefix `parent` with one more page of tokens, whether or not it is in the tree.
  Hash128 child_name(const Hash128& parent, std::span<const int32_t> tokens) const;
  // The child of `parent` with these tokens, whose name is `name`; no reference is added. Invalid:
  // there is none.
  NodeId find_child(NodeId parent, const Hash128& name, std::span<const int32_t> tokens) const;
  // Adds the child, which find_child() does not know, and takes the page over.
  NodeId insert(NodeId parent, const Hash128& name, std::span<const int32_t> tokens, PageId page);

  // A sequence holds a reference to every node of its path; these add or drop the one of the last
  // node only. References are dropped from the deepest node upwards.
  void reference(NodeId node);
  void release(NodeId node);

  // The node of that name; invalid: there is none.
  NodeId find(const Hash128& name) const;
  NodeId parent(NodeId node) const { return at(node).parent; }
  PageId page(NodeId node) const { return at(node).page; }
  const Hash128& name(NodeId node) const { return at(node).name; }
  SnapshotId snapshot(NodeId node) const { return at(node).snapshot; }

  // Gives the node a snapshot, whose bytes the caller then stores; the least recently used other
  // one gives way when the pool is full. Invalid when every place is pinned, or there are none. The
  // node must have none.
  SnapshotId add_snapshot(NodeId node, Retention retention);
  // The node whose snapshot add_snapshot() would take now; invalid: it takes none.
  NodeId next_snapshot_victim() const;
  // The node's copy in a tier beyond the pool has the snapshot: sequences can resume there also
  // when the one here is gone.
  void mark_resumable_elsewhere(NodeId node) { at(node).is_resumable_elsewhere = true; }
  // Marks the node's snapshot as used now, and as lasting.
  void keep_snapshot(NodeId node);
  // Like keep_snapshot(); and it stays where it is until unpinned as often as pinned.
  SnapshotId pin_snapshot(NodeId node);
  void unpin_snapshot(NodeId node);
  // Drops a snapshot that is still kRolling; other ones stay.
  void drop_rolling_snapshot(NodeId node);
  // Drops the node's snapshot, if any. It must not be pinned.
  void drop_snapshot(NodeId node);

  // Gives up the least recently used leaf without references.
  std::optional<Evicted> evict();
  // What evict() would say of a node, which stays.
  Evicted contents(NodeId node) const;

  int32_t num_pages() const { return num_pages_; }          // owned by nodes
  int32_t num_evictable() const { return num_evictable_; }  // of those: without references
  int32_t num_snapshots_used() const {
    return num_snapshots_ - static_cast<int32_t>(free_snapshots_.size());
  }
  int32_t num_snapshots() const { return num_snapshots_; }
  int64_t num_snapshot_evictions() const { return num_snapshot_evictions_; }
  int32_t num_pinned_snapshots() const { return num_pinned_; }

  // Stops the process unless counts, links and orders agree; for tests.
  void check_invariants() const;

 private:
  struct Node {
    NodeId parent;  // invalid: a root
    PageId page;    // invalid: a root
    Hash128 name;
    std::vector<int32_t> tokens;  // [page_size]
    int32_t num_children = 0;
    int32_t num_references = 0;
    int64_t last_used = 0;
    SnapshotId snapshot;
    Retention retention = Retention::kLasting;
    int64_t snapshot_last_used = 0;
    int32_t num_pins = 0;                 // of the snapshot
    bool is_resumable_elsewhere = false;  // it or an evicted node below
    bool is_live = false;
  };
  using Order = std::set<std::pair<int64_t, NodeId>>;

  const Node& at(NodeId node) const { return nodes_[static_cast<size_t>(node.value)]; }
  Node& at(NodeId node) { return nodes_[static_cast<size_t>(node.value)]; }
  NodeId make_node(Node&& node);
  void erase_node(NodeId node);
  void erase_root_if_unused(NodeId node);
  SnapshotId take_snapshot(NodeId node);
  bool is_evictable_leaf(const Node& node) const {
    return node.page.is_valid() && node.num_references == 0 && node.num_children == 0;
  }

  Options options_;
  std::vector<Node> nodes_;  // one per KV page; a root has children or a reference
  std::vector<NodeId> free_nodes_;
  std::unordered_map<Hash128, NodeId> by_name_;
  Order leaves_;     // evictable ones by last use
  Order snapshots_;  // nodes with one that is not pinned, by its last use
  std::vector<SnapshotId> free_snapshots_;
  int32_t num_snapshots_ = 0;
  int32_t num_pages_ = 0;
  int32_t num_evictable_ = 0;
  int32_t num_pinned_ = 0;
  int64_t num_snapshot_evictions_ = 0;
  int64_t now_ = 0;  // counts uses
};

}  // namespace nibble::cache

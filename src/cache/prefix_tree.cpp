#include "cache/prefix_tree.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace nibble::cache {
namespace {

// Roots and pages are hashed under different first words, so that no name space looks like tokens.
constexpr uint64_t kRootWord = 0x746F6F72;
constexpr uint64_t kPageWord = 0x65676170;

}  // namespace

PrefixTree::PrefixTree(const Options& options)
    : options_(options), num_snapshots_(options.num_snapshots) {
  CHECK(options.page_size > 0 && options.num_snapshots >= 0);
  for (int32_t i = num_snapshots_ - 1; i >= 0; --i) free_snapshots_.push_back(SnapshotId{i});
}

NodeId PrefixTree::open(std::string_view name_space) {
  std::vector<std::byte> bytes(sizeof(kRootWord) + name_space.size());
  std::memcpy(bytes.data(), &kRootWord, sizeof(kRootWord));
  std::copy_n(reinterpret_cast<const std::byte*>(name_space.data()),
              name_space.size(),
              bytes.begin() + sizeof(kRootWord));
  const Hash128 name = sip_hash(options_.key, bytes);
  const auto found = by_name_.find(name);
  const NodeId root = found != by_name_.end() ? found->second : make_node({.name = name});
  ++at(root).num_references;
  return root;
}

Hash128 PrefixTree::child_name(const Hash128& parent, std::span<const int32_t> tokens) const {
  CHECK(tokens.size() == static_cast<size_t>(options_.page_size)) << tokens.size();
  std::vector<std::byte> bytes(sizeof(kPageWord) + sizeof(parent) + tokens.size_bytes());
  std::memcpy(bytes.data(), &kPageWord, sizeof(kPageWord));
  std::memcpy(bytes.data() + sizeof(kPageWord), &parent, sizeof(parent));
  std::memcpy(
      bytes.data() + sizeof(kPageWord) + sizeof(parent), tokens.data(), tokens.size_bytes());
  return sip_hash(options_.key, bytes);
}

NodeId PrefixTree::find_child(NodeId parent,
                              const Hash128& name,
                              std::span<const int32_t> tokens) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return {};
  const Node& node = at(found->second);
  const bool is_equal = node.parent == parent && std::ranges::equal(node.tokens, tokens);
  return is_equal ? found->second : NodeId{};
}

NodeId PrefixTree::find(const Hash128& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? NodeId{} : found->second;
}

NodeId PrefixTree::insert(NodeId parent,
                          const Hash128& name,
                          std::span<const int32_t> tokens,
                          PageId page) {
  CHECK(page.is_valid());
  const NodeId node = make_node({.parent = parent,
                                 .page = page,
                                 .name = name,
                                 .tokens = {tokens.begin(), tokens.end()},
                                 .last_used = ++now_});
  Node& above = at(parent);
  if (is_evictable_leaf(above)) leaves_.erase({above.last_used, parent});
  ++above.num_children;
  leaves_.insert({at(node).last_used, node});
  ++num_pages_;
  ++num_evictable_;
  return node;
}

NodeId PrefixTree::make_node(Node&& node) {
  node.is_live = true;
  NodeId id;
  if (free_nodes_.empty()) {
    id = NodeId{static_cast<int32_t>(nodes_.size())};
    nodes_.emplace_back();
  } else {
    id = free_nodes_.back();
    free_nodes_.pop_back();
  }
  const bool is_new = by_name_.emplace(node.name, id).second;
  CHECK(is_new) << "two prefixes of one name";
  at(id) = std::move(node);
  return id;
}

void PrefixTree::erase_node(NodeId node) {
  by_name_.erase(at(node).name);
  at(node) = {};
  free_nodes_.push_back(node);
}

void PrefixTree::reference(NodeId node) {
  Node& entry = at(node);
  if (entry.page.is_valid() && entry.num_references == 0) {
    --num_evictable_;
    if (entry.num_children == 0) leaves_.erase({entry.last_used, node});
  }
  ++entry.num_references;
}

void PrefixTree::release(NodeId node) {
  Node& entry = at(node);
  CHECK(entry.is_live && entry.num_references > 0) << node.value;
  if (--entry.num_references > 0) return;
  if (!entry.page.is_valid()) return erase_root_if_unused(node);
  entry.last_used = ++now_;
  ++num_evictable_;
  if (entry.num_children == 0) leaves_.insert({entry.last_used, node});
}

void PrefixTree::erase_root_if_unused(NodeId node) {
  const Node& entry = at(node);
  if (entry.page.is_valid() || entry.num_references > 0 || entry.num_children > 0) return;
  erase_node(node);
}

SnapshotId PrefixTree::take_snapshot(NodeId node) {
  Node& entry = at(node);
  CHECK(entry.num_pins == 0) << node.value;
  snapshots_.erase({entry.snapshot_last_used, node});
  return std::exchange(entry.snapshot, SnapshotId{});
}

SnapshotId PrefixTree::add_snapshot(NodeId node, Retention retention) {
  CHECK(at(node).page.is_valid() && !at(node).snapshot.is_valid()) << node.value;
  if (const NodeId victim = next_snapshot_victim(); victim.is_valid()) {
    free_snapshots_.push_back(take_snapshot(victim));
    ++num_snapshot_evictions_;
  }
  if (free_snapshots_.empty()) return {};
  Node& entry = at(node);
  entry.snapshot = free_snapshots_.back();
  free_snapshots_.pop_back();
  entry.retention = retention;
  entry.snapshot_last_used = ++now_;
  snapshots_.insert({entry.snapshot_last_used, node});
  return entry.snapshot;
}

NodeId PrefixTree::next_snapshot_victim() const {
  if (!free_snapshots_.empty() || snapshots_.empty()) return {};
  return snapshots_.begin()->second;
}

void PrefixTree::keep_snapshot(NodeId node) {
  Node& entry = at(node);
  if (!entry.snapshot.is_valid()) return;
  entry.retention = Retention::kLasting;
  if (entry.num_pins > 0) return;
  snapshots_.erase({entry.snapshot_last_used, node});
  entry.snapshot_last_used = ++now_;
  snapshots_.insert({entry.snapshot_last_used, node});
}

SnapshotId PrefixTree::pin_snapshot(NodeId node) {
  Node& entry = at(node);
  CHECK(entry.snapshot.is_valid()) << node.value;
  entry.retention = Retention::kLasting;
  if (entry.num_pins++ == 0) {
    snapshots_.erase({entry.snapshot_last_used, node});
    ++num_pinned_;
  }
  return entry.snapshot;
}

void PrefixTree::unpin_snapshot(NodeId node) {
  Node& entry = at(node);
  CHECK(entry.num_pins > 0) << node.value;
  if (--entry.num_pins > 0) return;
  --num_pinned_;
  entry.snapshot_last_used = ++now_;
  snapshots_.insert({entry.snapshot_last_used, node});
}

void PrefixTree::drop_rolling_snapshot(NodeId node) {
  if (at(node).retention == Retention::kRolling) drop_snapshot(node);
}

void PrefixTree::drop_snapshot(NodeId node) {
  if (at(node).snapshot.is_valid()) free_snapshots_.push_back(take_snapshot(node));
}

PrefixTree::Evicted PrefixTree::contents(NodeId node) const {
  const Node& entry = at(node);
  return {.page = entry.page,
          .snapshot = entry.snapshot,
          .name = entry.name,
          .parent = at(entry.parent).name,
          .tokens = entry.tokens,
          .is_resumable = entry.snapshot.is_valid() || entry.is_resumable_elsewhere};
}

std::optional<PrefixTree::Evicted> PrefixTree::evict() {
  if (leaves_.empty()) return std::nullopt;
  const NodeId node = leaves_.begin()->second;
  leaves_.erase(leaves_.begin());
  const NodeId parent = at(node).parent;
  Evicted evicted = contents(node);
  if (evicted.snapshot.is_valid()) free_snapshots_.push_back(take_snapshot(node));
  erase_node(node);
  at(parent).is_resumable_elsewhere |= evicted.is_resumable;
  --num_pages_;
  --num_evictable_;
  Node& above = at(parent);
  --above.num_children;
  if (is_evictable_leaf(above)) leaves_.insert({above.last_used, parent});
  erase_root_if_unused(parent);
  return evicted;
}

void PrefixTree::check_invariants() const {
  int32_t pages = 0;
  int32_t evictable = 0;
  size_t leaves = 0;
  size_t snapshots = 0;
  size_t pinned = 0;
  size_t live = 0;
  std::vector<int32_t> children(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (!node.is_live) continue;
    const NodeId id{static_cast<int32_t>(i)};
    ++live;
    CHECK(by_name_.at(node.name) == id);
    if (node.snapshot.is_valid()) {
      ++snapshots;
      pinned += node.num_pins > 0 ? 1 : 0;
      CHECK(snapshots_.contains({node.snapshot_last_used, id}) == (node.num_pins == 0));
    }
    CHECK(node.num_pins == 0 || node.snapshot.is_valid());
    if (!node.page.is_valid()) continue;
    ++pages;
    ++children[static_cast<size_t>(node.parent.value)];
    CHECK(at(node.parent).is_live);
    CHECK(node.num_references <= at(node.parent).num_references) << "a path with a hole";
    if (node.num_references == 0) ++evictable;
    if (!is_evictable_leaf(node)) continue;
    ++leaves;
    CHECK(leaves_.contains({node.last_used, id}));
  }
  for (size_t i = 0; i < nodes_.size(); ++i) CHECK(nodes_[i].num_children == children[i]);
  CHECK(pages == num_pages_ && evictable == num_evictable_);
  CHECK(leaves == leaves_.size() && snapshots == snapshots_.size() + pinned);
  CHECK(pinned == static_cast<size_t>(num_pinned_));
  CHECK(live == by_name_.size());
  CHECK(static_cast<size_t>(num_snapshots_) == snapshots + free_snapshots_.size());
}

}  // namespace nibble::cache

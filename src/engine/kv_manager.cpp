#include "engine/kv_manager.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/checked_math.h"

namespace nibble::engine {
namespace {

// Owners and salts are told apart by the length in front.
std::string name_space_of(const Request& request) {
  return std::to_string(request.owner.size()) + ':' + request.owner + request.cache_salt;
}

}  // namespace

KvManager::KvManager(const KvLimits& limits)
    : limits_(limits),
      pages_(limits.num_pages),
      tree_({.page_size = limits.page_size,
             .num_snapshots = limits.num_snapshots,
             .key = limits.key}) {}

int32_t KvManager::pages_of(int32_t num_tokens) const {
  return static_cast<int32_t>(ceil_div(num_tokens, page_size()));
}

std::span<const int32_t> KvManager::page_tokens(const Sequence& sequence, int32_t index) const {
  return std::span(sequence.token_ids)
      .subspan(static_cast<size_t>(index) * static_cast<size_t>(page_size()),
               static_cast<size_t>(page_size()));
}

// Hashed once per page and sequence, however often a waiting sequence is looked at.
const Hash128& KvManager::page_name(Sequence& sequence, cache::NodeId parent, int32_t index) {
  std::vector<Hash128>& names = sequence.page_names;
  CHECK(static_cast<size_t>(index) <= names.size());
  if (static_cast<size_t>(index) == names.size()) {
    names.push_back(tree_.child_name(tree_.name(parent), page_tokens(sequence, index)));
  }
  return names[static_cast<size_t>(index)];
}

// The last boundary before the last token, which must be computed for its logits.
int32_t KvManager::last_boundary(const Sequence& sequence) const {
  return (sequence.num_tokens() - 1) / page_size() * page_size();
}

KvManager::Match KvManager::match(Sequence& sequence, cache::NodeId root) {
  Match match;
  if (sequence.wants_prompt_logprobs()) return match;  // every row is needed
  const int32_t num_full = last_boundary(sequence) / page_size();
  cache::NodeId node = root;
  for (int32_t i = 0; i < num_full; ++i) {
    node = tree_.find_child(node, page_name(sequence, node, i), page_tokens(sequence, i));
    if (!node.is_valid()) break;
    match.nodes.push_back(node);
    if (tree_.snapshot(node).is_valid()) match.num_resumable = i + 1;
  }
  return match;
}

bool KvManager::start(Sequence& sequence, int32_t num_spare) {
  CHECK(sequence.block_table.empty() && sequence.path.empty());
  Match matched;
  if (has_prefix_cache()) {
    sequence.path.push_back(tree_.open(name_space_of(sequence.request)));
    matched = match(sequence, sequence.path.front());
    for (int32_t i = 0; i < matched.num_resumable; ++i) {
      const cache::NodeId node = matched.nodes[static_cast<size_t>(i)];
      tree_.reference(node);
      sequence.path.push_back(node);
      sequence.block_table.push_back(tree_.page(node));
    }
  }
  const int32_t num_missing = pages_of(sequence.num_tokens()) - matched.num_resumable;
  if (num_available() < num_missing + num_spare || !take_pages(sequence, num_missing)) {
    release(sequence);
    return false;
  }
  sequence.num_computed = matched.num_resumable * page_size();
  sequence.fork_end = static_cast<int32_t>(matched.nodes.size()) * page_size();
  if (matched.num_resumable > 0) {
    tree_.keep_snapshot(sequence.path.back());
    sequence.resume = tree_.snapshot(sequence.path.back());
  }
  return true;
}

bool KvManager::grow(Sequence& sequence) {
  const int32_t needed = pages_of(sequence.num_tokens());
  return take_pages(sequence,
                    std::max(0, needed - static_cast<int32_t>(sequence.block_table.size())));
}

bool KvManager::take_pages(Sequence& sequence, int32_t count) {
  if (num_available() < count) return false;
  while (pages_.num_free() < count) {
    const auto evicted = tree_.evict();
    CHECK(evicted.has_value());
    pages_.release(std::span(&evicted->page, 1));
    ++num_evictions_;
  }
  const auto taken = pages_.take(count);
  CHECK(taken.ok());
  sequence.block_table.insert(sequence.block_table.end(), taken->begin(), taken->end());
  return true;
}

void KvManager::release(Sequence& sequence) {
  const size_t num_shared = sequence.path.empty() ? 0 : sequence.path.size() - 1;
  pages_.release(std::span(sequence.block_table).subspan(num_shared));
  for (size_t i = sequence.path.size(); i-- > 0;) tree_.release(sequence.path[i]);
  sequence.block_table.clear();
  sequence.path.clear();
  sequence.resume.reset();
  sequence.rolling = {};
  sequence.fork_end = 0;
}

bool KvManager::wants_snapshot_at(const Sequence& sequence, int32_t num_tokens) const {
  const int32_t interval = limits_.snapshot_interval * page_size();
  return num_tokens == last_boundary(sequence) || num_tokens == sequence.fork_end ||
         (interval > 0 && num_tokens % interval == 0);
}

int32_t KvManager::clip_chunk(const Sequence& sequence, int32_t num_tokens) const {
  if (!has_prefix_cache()) return num_tokens;
  const int32_t end = sequence.num_computed + num_tokens;
  int32_t boundary = (sequence.num_computed / page_size() + 1) * page_size();
  for (; boundary < end; boundary += page_size()) {
    if (wants_snapshot_at(sequence, boundary)) return boundary - sequence.num_computed;
  }
  return num_tokens;
}

void KvManager::commit(Sequence& sequence) {
  if (sequence.path.empty()) return;
  const int32_t num_full = sequence.num_computed / page_size();
  for (auto i = static_cast<int32_t>(sequence.path.size()) - 1; i < num_full; ++i) {
    const cache::NodeId parent = sequence.path.back();
    const Hash128& name = page_name(sequence, parent, i);
    const auto tokens = page_tokens(sequence, i);
    PageId& page = sequence.block_table[static_cast<size_t>(i)];
    cache::NodeId node = tree_.find_child(parent, name, tokens);
    if (node.is_valid()) {
      pages_.release(std::span(&page, 1));
      page = tree_.page(node);
    } else {
      node = tree_.insert(parent, name, tokens, page);
    }
    tree_.reference(node);
    sequence.path.push_back(node);
  }
}

std::optional<cache::SnapshotId> KvManager::place_snapshot(Sequence& sequence) {
  const int32_t length = sequence.num_computed;
  if (sequence.path.size() < 2 || length % page_size() != 0) return std::nullopt;
  CHECK(static_cast<int32_t>(sequence.path.size()) - 1 == length / page_size());
  const cache::NodeId node = sequence.path.back();
  const bool is_generating = length >= sequence.num_prompt();
  const bool is_wanted = wants_snapshot_at(sequence, length);
  if (!is_wanted && !is_generating) return std::nullopt;
  if (tree_.snapshot(node).is_valid()) {
    if (is_wanted) tree_.keep_snapshot(node);
    return std::nullopt;
  }
  if (!is_wanted) {
    if (sequence.rolling.is_valid()) tree_.drop_rolling_snapshot(sequence.rolling);
    sequence.rolling = node;
  }
  const cache::SnapshotId place =
      tree_.add_snapshot(node, is_wanted ? cache::Retention::kLasting : cache::Retention::kRolling);
  if (!place.is_valid()) return std::nullopt;
  return place;
}

void KvManager::drop_snapshot(const Sequence& sequence) {
  CHECK(!sequence.path.empty());
  tree_.drop_snapshot(sequence.path.back());
}

void KvManager::flush() {
  while (const auto evicted = tree_.evict()) pages_.release(std::span(&evicted->page, 1));
}

}  // namespace nibble::engine

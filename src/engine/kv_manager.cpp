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
const Hash128& KvManager::page_name(Sequence& sequence, cache::NodeId root, int32_t index) {
  std::vector<Hash128>& names = sequence.page_names;
  CHECK(static_cast<size_t>(index) <= names.size());
  if (static_cast<size_t>(index) == names.size()) {
    const Hash128 parent = names.empty() ? tree_.name(root) : names.back();
    names.push_back(tree_.child_name(parent, page_tokens(sequence, index)));
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
    node = tree_.find_child(node, page_name(sequence, root, i), page_tokens(sequence, i));
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
  sequence.forks.assign(1, static_cast<int32_t>(matched.nodes.size()) * page_size());
  if (matched.num_resumable > 0) sequence.resume = tree_.pin_snapshot(sequence.path.back());
  return true;
}

void KvManager::resumed(Sequence& sequence) {
  if (!sequence.resume) return;
  tree_.unpin_snapshot(sequence.path.back());
  sequence.resume.reset();
}

// Tokens that a waiting sequence and a running one begin with alike, in whole pages, as far as the
// waiting one can use them.
int32_t KvManager::common_end(Sequence& sequence, Sequence& leader) {
  if (sequence.request.owner != leader.request.owner ||
      sequence.request.cache_salt != leader.request.cache_salt) {
    return 0;
  }
  const cache::NodeId root = leader.path.front();
  const int32_t most = std::min(last_boundary(sequence), leader.num_tokens()) / page_size();
  int32_t i = 0;
  while (i < most && page_name(sequence, root, i) == page_name(leader, root, i)) ++i;
  return i * page_size();
}

int32_t KvManager::follow(Sequence& sequence, Sequence& leader) {
  if (!has_prefix_cache() || sequence.wants_prompt_logprobs()) return 0;
  const int32_t end = common_end(sequence, leader);
  if (end <= leader.num_computed) return 0;
  const int32_t start = match(sequence, leader.path.front()).num_resumable * page_size();
  if (start > leader.num_computed) return 0;
  if (std::ranges::find(leader.forks, end) == leader.forks.end()) leader.forks.push_back(end);
  return end;
}

bool KvManager::grow(Sequence& sequence, int32_t num_tokens) {
  const int32_t needed = pages_of(num_tokens);
  return take_pages(sequence,
                    std::max(0, needed - static_cast<int32_t>(sequence.block_table.size())));
}

bool KvManager::take_pages(Sequence& sequence, int32_t count) {
  if (num_available() < count) return false;
  while (pages_.num_free() < count) CHECK(evict_one());
  const auto taken = pages_.take(count);
  CHECK(taken.ok());
  sequence.block_table.insert(sequence.block_table.end(), taken->begin(), taken->end());
  return true;
}

void KvManager::release(Sequence& sequence) {
  const size_t num_shared = sequence.path.empty() ? 0 : sequence.path.size() - 1;
  pages_.release(std::span(sequence.block_table).subspan(num_shared));
  resumed(sequence);
  for (size_t i = sequence.path.size(); i-- > 0;) tree_.release(sequence.path[i]);
  sequence.block_table.clear();
  sequence.path.clear();
  sequence.rolling = {};
  sequence.has_fetched = false;
  sequence.forks.clear();
}

bool KvManager::wants_snapshot_at(const Sequence& sequence, int32_t num_tokens) const {
  const int32_t interval = limits_.snapshot_interval * page_size();
  return num_tokens == last_boundary(sequence) ||
         std::ranges::find(sequence.forks, num_tokens) != sequence.forks.end() ||
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
    const Hash128& name = page_name(sequence, sequence.path.front(), i);
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
      add_snapshot(node, is_wanted ? cache::Retention::kLasting : cache::Retention::kRolling);
  if (!place.is_valid()) return std::nullopt;
  return place;
}

// The snapshot that gives way goes to the tiers, with the entries of its page.
cache::SnapshotId KvManager::add_snapshot(cache::NodeId node, cache::Retention retention) {
  const cache::NodeId victim = tree_.next_snapshot_victim();
  if (offload_ && victim.is_valid()) {
    offload_->put(tree_.contents(victim), KvTier::WhenFull::kGiveUp);
    tree_.mark_resumable_elsewhere(victim);
  }
  return tree_.add_snapshot(node, retention);
}

void KvManager::drop_snapshot(const Sequence& sequence) {
  CHECK(!sequence.path.empty());
  tree_.drop_snapshot(sequence.path.back());
}

bool KvManager::evict_one() {
  auto evicted = tree_.evict();
  if (!evicted) return false;
  const PageId page = evicted->page;
  if (offload_ && evicted->is_resumable) {
    offload_->put(std::move(*evicted), KvTier::WhenFull::kGiveUp);
  }
  pages_.release(std::span(&page, 1));
  ++num_evictions_;
  return true;
}

void KvManager::flush() {
  while (const auto evicted = tree_.evict()) pages_.release(std::span(&evicted->page, 1));
  if (offload_) offload_->tier().clear();
}

void KvManager::close() {
  if (!offload_) return;
  while (auto evicted = tree_.evict()) {
    const PageId page = evicted->page;
    if (evicted->is_resumable) offload_->put(std::move(*evicted), KvTier::WhenFull::kWait);
    pages_.release(std::span(&page, 1));
  }
  offload_->tier().close();
}

// The pages that follow those in the tree, up to the last one at which the tiers can resume. Where
// there are none, the last page in the tree whose snapshot only the tiers have.
std::vector<Hash128> KvManager::names_to_fetch(Sequence& sequence, cache::NodeId root) {
  const Match matched = match(sequence, root);
  const auto num_inside = static_cast<int32_t>(matched.nodes.size());
  const int32_t num_full = last_boundary(sequence) / page_size();
  std::vector<Hash128> names;
  size_t num_resumable = 0;
  for (int32_t i = num_inside; i < num_full; ++i) {
    const Hash128& name = page_name(sequence, root, i);
    const KvTier::Holds holds = offload_->tier().holds(name);
    if (holds == KvTier::Holds::kNothing) break;
    names.push_back(name);
    if (holds == KvTier::Holds::kEntriesAndSnapshot) num_resumable = names.size();
  }
  names.resize(num_resumable);
  for (int32_t i = num_inside; names.empty() && i-- > matched.num_resumable;) {
    const Hash128& name = page_name(sequence, root, i);
    if (offload_->tier().holds(name) == KvTier::Holds::kEntriesAndSnapshot) names.push_back(name);
  }
  return names;
}

bool KvManager::fetch(Sequence& sequence) {
  if (!offload_ || !has_prefix_cache()) return true;
  if (is_fetching()) {
    if (!offload_->tier().is_fetched()) return false;
    adopt(offload_->tier().take());
  }
  if (sequence.has_fetched || sequence.wants_prompt_logprobs()) return true;
  sequence.has_fetched = true;
  const cache::NodeId root = tree_.open(name_space_of(sequence.request));
  fetching_ = names_to_fetch(sequence, root);
  if (fetching_.empty()) {
    tree_.release(root);
    return true;
  }
  fetching_root_ = root;
  offload_->tier().fetch(fetching_);
  if (!offload_->tier().is_fetched()) return false;
  adopt(offload_->tier().take());
  return true;
}

void KvManager::wait_fetched(Duration most) {
  if (offload_ && is_fetching()) offload_->tier().wait_fetched(most);
}

// Puts what came into the tree, page by page, as far as there are pages. The deepest node so far is
// referenced, so that making room does not evict it.
void KvManager::adopt(TierPages&& pages) {
  cache::NodeId held = std::exchange(fetching_root_, cache::NodeId{});
  for (const Hash128& name : std::exchange(fetching_, {})) {
    const auto page = pages.find(name);
    if (page == pages.end()) break;
    const cache::NodeId parent = tree_.find(page->second.parent);
    if (!parent.is_valid()) break;
    tree_.reference(parent);
    tree_.release(std::exchange(held, parent));
    if (!adopt_page(page->second).is_valid()) break;
    ++num_tier_hits_;
  }
  tree_.release(held);
}

// Under its parent, which is in the tree and referenced. Invalid when it cannot be used.
cache::NodeId KvManager::adopt_page(const TierPage& stored) {
  const cache::NodeId existing = tree_.find(stored.name);
  if (existing.is_valid()) {
    adopt_snapshot(existing, stored);
    return existing;
  }
  if (stored.tokens.size() != static_cast<size_t>(page_size())) return {};
  if (tree_.child_name(stored.parent, stored.tokens) != stored.name) return {};
  if (pages_.num_free() == 0 && !evict_one()) return {};
  const auto taken = pages_.take(1);
  CHECK(taken.ok());
  if (!offload_->load_page(stored, taken->front()).ok()) {
    pages_.release(*taken);
    return {};
  }
  const cache::NodeId node =
      tree_.insert(tree_.find(stored.parent), stored.name, stored.tokens, taken->front());
  adopt_snapshot(node, stored);
  return node;
}

void KvManager::adopt_snapshot(cache::NodeId node, const TierPage& stored) {
  if (stored.snapshot.empty() || tree_.snapshot(node).is_valid()) return;
  const cache::SnapshotId place = add_snapshot(node, cache::Retention::kLasting);
  if (place.is_valid() && !offload_->load_snapshot(stored, place).ok()) tree_.drop_snapshot(node);
}

}  // namespace nibble::engine

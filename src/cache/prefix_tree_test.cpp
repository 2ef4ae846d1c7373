#include "cache/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "cache/page_pool.h"

namespace nibble::cache {
namespace {

constexpr int32_t kPageSize = 2;
using Tokens = std::vector<int32_t>;

class PrefixTreeTest : public ::testing::Test {
 protected:
  NodeId child(NodeId parent, const Tokens& tokens) {
    return tree_.find_child(parent, tree_.child_name(tree_.name(parent), tokens), tokens);
  }
  NodeId insert(NodeId parent, const Tokens& tokens, int32_t page) {
    return tree_.insert(parent, tree_.child_name(tree_.name(parent), tokens), tokens, PageId{page});
  }

  PrefixTree tree_{{.page_size = kPageSize, .num_snapshots = 2, .key = {1, 2}}};
};

TEST_F(PrefixTreeTest, FindsWhatWasInserted) {
  const NodeId root = tree_.open("");
  const NodeId a = insert(root, {1, 2}, 7);
  const NodeId b = insert(a, {3, 4}, 8);
  EXPECT_EQ(child(root, {1, 2}), a);
  EXPECT_EQ(child(a, {3, 4}), b);
  EXPECT_EQ(tree_.page(b), PageId{8});
  EXPECT_FALSE(child(root, {3, 4}).is_valid());
  EXPECT_FALSE(child(a, {1, 2}).is_valid());
}

TEST_F(PrefixTreeTest, NameSpacesNeverMeet) {
  const NodeId one = tree_.open("one");
  const NodeId two = tree_.open("two");
  EXPECT_NE(one, two);
  EXPECT_EQ(tree_.open("one"), one);
  insert(one, {1, 2}, 0);
  EXPECT_FALSE(child(two, {1, 2}).is_valid());
}

TEST_F(PrefixTreeTest, NamesDependOnTheKey) {
  PrefixTree other({.page_size = kPageSize, .key = {1, 3}});
  EXPECT_NE(tree_.name(tree_.open("")), other.name(other.open("")));
}

TEST_F(PrefixTreeTest, EvictsTheLeastRecentlyUsedLeafWithoutReferences) {
  const NodeId root = tree_.open("");
  const NodeId a = insert(root, {1, 1}, 0);
  insert(a, {2, 2}, 1);
  const NodeId c = insert(root, {3, 3}, 2);
  insert(root, {4, 4}, 3);
  tree_.reference(c);
  EXPECT_EQ(tree_.num_evictable(), 3);
  EXPECT_EQ(tree_.evict()->page, PageId{1});  // before its parent
  EXPECT_EQ(tree_.evict()->page, PageId{0});
  EXPECT_EQ(tree_.evict()->page, PageId{3});
  EXPECT_FALSE(tree_.evict().has_value());
  tree_.release(c);
  tree_.release(root);
  EXPECT_EQ(tree_.evict()->page, PageId{2});
  tree_.check_invariants();
  EXPECT_EQ(tree_.num_pages(), 0);
}

TEST_F(PrefixTreeTest, SnapshotsGiveWayLeastRecentlyUsedFirst) {
  const NodeId root = tree_.open("");
  const NodeId a = insert(root, {1, 1}, 0);
  const NodeId b = insert(root, {2, 2}, 1);
  const NodeId c = insert(root, {3, 3}, 2);
  const SnapshotId first = tree_.add_snapshot(a, Retention::kLasting);
  const SnapshotId second = tree_.add_snapshot(b, Retention::kLasting);
  tree_.keep_snapshot(a);
  EXPECT_EQ(tree_.add_snapshot(c, Retention::kLasting), second);
  EXPECT_EQ(tree_.snapshot(a), first);
  EXPECT_FALSE(tree_.snapshot(b).is_valid());
  EXPECT_EQ(tree_.num_snapshot_evictions(), 1);
  tree_.check_invariants();
}

TEST_F(PrefixTreeTest, RollingSnapshotsAreDroppedUnlessKept) {
  const NodeId root = tree_.open("");
  const NodeId a = insert(root, {1, 1}, 0);
  const NodeId b = insert(root, {2, 2}, 1);
  tree_.add_snapshot(a, Retention::kRolling);
  tree_.add_snapshot(b, Retention::kRolling);
  tree_.keep_snapshot(b);
  tree_.drop_rolling_snapshot(a);
  tree_.drop_rolling_snapshot(b);
  EXPECT_FALSE(tree_.snapshot(a).is_valid());
  EXPECT_TRUE(tree_.snapshot(b).is_valid());
  EXPECT_EQ(tree_.num_snapshots_used(), 1);
}

TEST_F(PrefixTreeTest, PinnedSnapshotsStay) {
  const NodeId root = tree_.open("");
  const NodeId a = insert(root, {1, 1}, 0);
  const NodeId b = insert(root, {2, 2}, 1);
  const NodeId c = insert(root, {3, 3}, 2);
  const SnapshotId first = tree_.add_snapshot(a, Retention::kLasting);
  const SnapshotId second = tree_.add_snapshot(b, Retention::kRolling);
  EXPECT_EQ(tree_.pin_snapshot(a), first);
  EXPECT_EQ(tree_.pin_snapshot(a), first);
  EXPECT_EQ(tree_.next_snapshot_victim(), b);
  tree_.pin_snapshot(b);
  tree_.drop_rolling_snapshot(b);  // it is lasting now
  tree_.check_invariants();
  EXPECT_FALSE(tree_.add_snapshot(c, Retention::kLasting).is_valid());
  tree_.unpin_snapshot(a);
  EXPECT_FALSE(tree_.add_snapshot(c, Retention::kLasting).is_valid());
  tree_.unpin_snapshot(b);
  tree_.unpin_snapshot(a);
  EXPECT_EQ(tree_.num_pinned_snapshots(), 0);
  EXPECT_EQ(tree_.add_snapshot(c, Retention::kLasting), second);
  tree_.check_invariants();
}

TEST_F(PrefixTreeTest, ADisplacedSnapshotThatATierHoldsMakesTheNodeWorthKeeping) {
  const NodeId root = tree_.open("");
  const NodeId a = insert(root, {1, 1}, 0);
  const NodeId b = insert(a, {2, 2}, 1);
  EXPECT_FALSE(tree_.contents(b).is_resumable);
  tree_.mark_resumable_elsewhere(b);
  const PrefixTree::Evicted stays = tree_.contents(b);
  EXPECT_TRUE(stays.is_resumable);
  EXPECT_EQ(stays.parent, tree_.name(a));
  EXPECT_TRUE(tree_.evict()->is_resumable);
  EXPECT_TRUE(tree_.evict()->is_resumable);  // as what leads there
}

TEST_F(PrefixTreeTest, AnEvictedNodeGivesItsSnapshotBack) {
  const NodeId root = tree_.open("");
  const SnapshotId snapshot = tree_.add_snapshot(insert(root, {1, 1}, 0), Retention::kLasting);
  EXPECT_EQ(tree_.evict()->snapshot, snapshot);
  EXPECT_EQ(tree_.num_snapshots_used(), 0);
}

// Random sequences match, extend, release and evict against a plain map from prefix to page.
TEST(PrefixTreeProperty, AgreesWithANaiveMap) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto between = [&](int32_t low, int32_t high) {
      return std::uniform_int_distribution<int32_t>(low, high)(random);
    };
    constexpr int32_t kNumPages = 24;
    PrefixTree tree({.page_size = kPageSize, .num_snapshots = 4, .key = {seed, 1}});
    PagePool pool(kNumPages);
    std::map<Tokens, PageId> naive;
    struct Holder {
      std::vector<NodeId> path;
      Tokens tokens;
    };
    std::vector<Holder> holders;
    for (int32_t step = 0; step < 600; ++step) {
      const int32_t action = between(0, 9);
      if (action < 5) {
        Holder holder{.path = {tree.open("n")}};
        const int32_t length = between(1, 5);
        for (int32_t i = 0; i < length; ++i) {
          const Tokens page = {between(0, 1), between(0, 1)};
          Tokens prefix = holder.tokens;
          prefix.insert(prefix.end(), page.begin(), page.end());
          const Hash128 name = tree.child_name(tree.name(holder.path.back()), page);
          NodeId node = tree.find_child(holder.path.back(), name, page);
          const auto expected = naive.find(prefix);
          ASSERT_EQ(node.is_valid(), expected != naive.end());
          if (!node.is_valid()) {
            if (pool.num_free() == 0) break;
            const PageId fresh = pool.take(1)->front();
            node = tree.insert(holder.path.back(), name, page, fresh);
            naive[prefix] = fresh;
            if (between(0, 1) == 0) tree.add_snapshot(node, Retention::kRolling);
          } else {
            ASSERT_EQ(tree.page(node), expected->second);
            tree.keep_snapshot(node);
          }
          tree.reference(node);
          holder.path.push_back(node);
          holder.tokens = prefix;
        }
        holders.push_back(holder);
      } else if (action < 8 && !holders.empty()) {
        const auto index =
            static_cast<size_t>(between(0, static_cast<int32_t>(holders.size()) - 1));
        std::swap(holders[index], holders.back());
        const Holder& holder = holders.back();
        for (size_t i = holder.path.size(); i-- > 0;) tree.release(holder.path[i]);
        holders.pop_back();
      } else if (const auto evicted = tree.evict()) {
        const auto victim = std::ranges::find_if(
            naive, [&](const auto& entry) { return entry.second == evicted->page; });
        ASSERT_NE(victim, naive.end());
        for (const Holder& holder : holders) {
          const auto& held = holder.tokens;
          const bool is_held = held.size() >= victim->first.size() &&
                               std::equal(victim->first.begin(), victim->first.end(), held.begin());
          ASSERT_FALSE(is_held) << "evicted under a sequence";
        }
        naive.erase(victim);
        pool.release(std::span(&evicted->page, 1));
      }
      tree.check_invariants();
      ASSERT_EQ(pool.num_used(), tree.num_pages());
    }
  }
}

}  // namespace
}  // namespace nibble::cache

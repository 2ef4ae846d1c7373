#include "engine/fair_share.h"

#include <gtest/gtest.h>

namespace nibble::engine {
namespace {

using Parts = std::vector<int32_t>;

Parts split(int32_t budget, const Parts& demands) { return fair_split(budget, demands); }

TEST(FairSplit, GivesEqualPartsAndPassesOnWhatIsNotWanted) {
  EXPECT_EQ(split(30, {100, 100, 100}), (Parts{10, 10, 10}));
  EXPECT_EQ(split(30, {100, 2, 100}), (Parts{14, 2, 14}));
  EXPECT_EQ(split(30, {1, 2, 3}), (Parts{1, 2, 3}));
  EXPECT_EQ(split(5, {9, 9}), (Parts{3, 2}));
  EXPECT_EQ(split(1, {9, 9}), (Parts{1, 0}));
  EXPECT_EQ(split(0, {9}), (Parts{0}));
  EXPECT_TRUE(split(10, {}).empty());
}

TEST(OwnerShares, IdlingEarnsNoCredit) {
  OwnerShares shares;
  shares.join("a");
  shares.charge("a", 100);
  shares.join("b");
  EXPECT_EQ(shares.served("b"), 100);
  shares.charge("a", 50);
  shares.leave("b");
  shares.join("b");
  EXPECT_EQ(shares.served("b"), 150);
}

TEST(OwnerShares, KeepsAnOwnerWhileItHasRequests) {
  OwnerShares shares;
  shares.join("a");
  shares.join("a");
  shares.charge("a", 7);
  shares.leave("a");
  EXPECT_EQ(shares.served("a"), 7);
  shares.leave("a");
  EXPECT_EQ(shares.served("a"), 0);
}

}  // namespace
}  // namespace nibble::engine

#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace nibble::cache {
namespace {

TEST(PagePool, TakesAllOrNothing) {
  PagePool pool(3);
  auto two = pool.take(2);
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(*two, (std::vector<PageId>{PageId{0}, PageId{1}}));
  auto too_many = pool.take(2);
  ASSERT_FALSE(too_many.ok());
  EXPECT_EQ(too_many.error().code, Errc::kExhausted);
  EXPECT_EQ(too_many.error().message, "KV pages: 2 wanted, 1 of 3 free");
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_TRUE(pool.take(0)->empty());
}

TEST(PagePool, ConservesPagesUnderRandomUse) {
  std::mt19937 random(7);
  PagePool pool(40);
  std::vector<std::vector<PageId>> held;
  std::set<PageId> live;
  for (int round = 0; round < 2000; ++round) {
    if (random() % 2 == 0) {
      auto pages = pool.take(static_cast<int32_t>(random() % 8));
      if (!pages.ok()) continue;
      for (const PageId page : *pages) EXPECT_TRUE(live.insert(page).second);
      held.push_back(std::move(*pages));
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      for (const PageId page : held.back()) live.erase(page);
      pool.release(held.back());
      held.pop_back();
    }
    ASSERT_EQ(pool.num_used(), static_cast<int32_t>(live.size()));
  }
}

TEST(PagePoolDeathTest, StopsOnDoubleRelease) {
  PagePool pool(2);
  const auto pages = pool.take(1);
  pool.release(*pages);
  EXPECT_DEATH(pool.release(*pages), "double release of page 0");
  const PageId outside[] = {PageId{2}};
  EXPECT_DEATH(pool.release(outside), "check failed");
}

}  // namespace
}  // namespace nibble::cache

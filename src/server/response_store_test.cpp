#include "server/response_store.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble::server {
namespace {

constexpr KeyId kAnna = {1};
constexpr KeyId kBert = {2};

StoredResponse response_of(size_t bytes) { return {std::string(bytes, 'x'), "[]"}; }

TEST(ResponseStore, ShowsAResponseToItsKeyOnly) {
  ResponseStore store({});
  ASSERT_TRUE(store.put(kAnna, "resp_1", {"{}", "[1]"}).ok());
  ASSERT_NE(store.find(kAnna, "resp_1"), nullptr);
  EXPECT_EQ(store.find(kAnna, "resp_1")->input, "[1]");
  EXPECT_EQ(store.find(kBert, "resp_1"), nullptr);
  EXPECT_FALSE(store.erase(kBert, "resp_1"));
  EXPECT_TRUE(store.erase(kAnna, "resp_1"));
  EXPECT_FALSE(store.erase(kAnna, "resp_1"));
  EXPECT_EQ(store.usage().num_responses, 0U);
  EXPECT_EQ(store.usage().bytes, 0U);
}

TEST(ResponseStore, KeepsSameIdsOfTwoKeysApart) {
  ResponseStore store({});
  ASSERT_TRUE(store.put(kAnna, "resp_1", {"a", ""}).ok());
  ASSERT_TRUE(store.put(kBert, "resp_1", {"b", ""}).ok());
  EXPECT_EQ(store.find(kAnna, "resp_1")->body, "a");
  EXPECT_EQ(store.find(kBert, "resp_1")->body, "b");
}

TEST(ResponseStore, ReplacesAResponse) {
  ResponseStore store({});
  ASSERT_TRUE(store.put(kAnna, "resp_1", {"old", ""}).ok());
  const auto old = store.find(kAnna, "resp_1");
  ASSERT_TRUE(store.put(kAnna, "resp_1", {"new", ""}).ok());
  EXPECT_EQ(store.find(kAnna, "resp_1")->body, "new");
  EXPECT_EQ(old->body, "old");
  EXPECT_EQ(store.usage().num_responses, 1U);
}

TEST(ResponseStore, DropsTheLeastRecentlyUsed) {
  ResponseStore store({.responses_max = 2});
  ASSERT_TRUE(store.put(kAnna, "a", {}).ok());
  ASSERT_TRUE(store.put(kAnna, "b", {}).ok());
  ASSERT_NE(store.find(kAnna, "a"), nullptr);
  ASSERT_TRUE(store.put(kAnna, "c", {}).ok());
  EXPECT_EQ(store.find(kAnna, "b"), nullptr);
  EXPECT_NE(store.find(kAnna, "a"), nullptr);
  EXPECT_NE(store.find(kAnna, "c"), nullptr);
}

TEST(ResponseStore, TakesRoomFromTheKeyThatHoldsTheMost) {
  ResponseStore store({.responses_max = 100, .bytes_max = 20'000});
  ASSERT_TRUE(store.put(kBert, "small", response_of(100)).ok());
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(store.put(kAnna, std::to_string(i), response_of(2000)).ok());
    ASSERT_LE(store.usage().bytes, 20'000U);
  }
  EXPECT_NE(store.find(kBert, "small"), nullptr);
  EXPECT_NE(store.find(kAnna, "49"), nullptr);
  EXPECT_EQ(store.find(kAnna, "0"), nullptr);
}

TEST(ResponseStore, RefusesWhatCannotFit) {
  ResponseStore store({.responses_max = 10, .bytes_max = 1000});
  EXPECT_EQ(store.put(kAnna, "a", response_of(1000)).error().code, Errc::kExhausted);
  EXPECT_EQ(store.usage().num_responses, 0U);
}

}  // namespace
}  // namespace nibble::server

#include "hub/fetch.h"

#include <gtest/gtest.h>

namespace nibble::hub {
namespace {

using std::chrono::milliseconds;

HttpHead head_with(std::string name, std::string value) {
  HttpHead head;
  head.add(std::move(name), std::move(value));
  return head;
}

TEST(RetryDelay, DoublesUpToItsLimit) {
  const RetryPolicy policy{.first_delay = milliseconds(500), .max_delay = milliseconds(3000)};
  EXPECT_EQ(retry_delay(policy, 1), milliseconds(500));
  EXPECT_EQ(retry_delay(policy, 2), milliseconds(1000));
  EXPECT_EQ(retry_delay(policy, 3), milliseconds(2000));
  EXPECT_EQ(retry_delay(policy, 4), milliseconds(3000));
  EXPECT_EQ(retry_delay(policy, 1'000'000), milliseconds(3000));
}

TEST(ServerDelay, IsReadFromSecondsDatesAndRateLimits) {
  EXPECT_EQ(server_delay(head_with("Retry-After", "7"), 0), milliseconds(7000));
  // 784111777 is the date of RFC 9110's examples.
  const HttpHead date = head_with("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(server_delay(date, 784'111'770), milliseconds(7000));
  EXPECT_EQ(server_delay(date, 784'111'800), milliseconds(0));
  EXPECT_EQ(server_delay(head_with("RateLimit", R"("api";r=0;t=55)"), 0), milliseconds(55'000));
  EXPECT_EQ(server_delay(head_with("retry-after", "soon"), 0), std::nullopt);
  EXPECT_EQ(server_delay(head_with("retry-after", "-5"), 0), std::nullopt);
  EXPECT_EQ(server_delay(HttpHead(), 0), std::nullopt);
}

TEST(HttpHead, NamesHaveNoCaseAndTheLastValueCounts) {
  HttpHead head = head_with("Content-LENGTH", "12");
  EXPECT_EQ(head.content_length(), 12);
  head.add("content-length", "-1");
  EXPECT_EQ(head.content_length(), std::nullopt);
  EXPECT_EQ(head.find("etag"), nullptr);
}

TEST(Cancel, EndsSleepsAndAsksItsCaller) {
  bool is_interrupted = false;
  Cancel cancel([&] { return is_interrupted; });
  EXPECT_TRUE(cancel.sleep(milliseconds(0)));
  is_interrupted = true;
  EXPECT_TRUE(cancel.is_set());
  EXPECT_FALSE(cancel.sleep(std::chrono::hours(1)));
  is_interrupted = false;
  cancel.request();
  EXPECT_FALSE(cancel.sleep(std::chrono::hours(1)));
}

}  // namespace
}  // namespace nibble::hub

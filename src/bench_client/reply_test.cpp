#include "bench_client/reply.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::bench_client {
namespace {

using testing::ElementsAre;

TimePoint at(int32_t milliseconds) { return TimePoint(std::chrono::milliseconds(milliseconds)); }

std::vector<std::string> events_of(const std::vector<std::string>& pieces) {
  EventStreamParser parser;
  std::vector<std::string> events;
  for (const std::string& piece : pieces) {
    EXPECT_TRUE(parser.feed(piece, [&](std::string_view data) { events.emplace_back(data); }));
  }
  return events;
}

constexpr std::string_view kStream =
    ": ping\n\n"
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n"
    "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"Hm.\"}}]}\n\n"
    "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n"
    "data:{\"choices\":[{\"delta\":{\"content\":\"lo\"},\"finish_reason\":\"stop\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,"
    "\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\n"
    "data: [DONE]\n\n";

TEST(EventStream, EveryEndOfLineAndSeveralDataLinesAreUnderstood) {
  EXPECT_THAT(events_of({"data: a\n\ndata:b\r\n\r\ndata: c\r\rdata: d\ndata\ndata: e\n\n"}),
              ElementsAre("a", "b", "c", "d\n\ne"));
  EXPECT_THAT(events_of({"event: x\nid: 7\n\n: comment\n\ndatabase: no\n\n"}), ElementsAre());
}

TEST(EventStream, TheSplitOfTheBytesDoesNotMatter) {
  const std::vector<std::string> whole = events_of({std::string(kStream)});
  ASSERT_EQ(whole.size(), 6U);
  std::vector<std::string> bytes;
  for (const char c : kStream) bytes.emplace_back(1, c);
  EXPECT_EQ(events_of(bytes), whole);
  for (size_t cut = 0; cut < kStream.size(); ++cut) {
    EXPECT_EQ(events_of({std::string(kStream.substr(0, cut)), std::string(kStream.substr(cut))}),
              whole);
  }
}

TEST(EventStream, AnEventWithoutEndIsRefusedAtItsLimit) {
  EventStreamParser parser;
  const std::string piece(1 << 20, 'x');
  bool goes_on = true;
  for (int32_t i = 0; i < 17 && goes_on; ++i) goes_on = parser.feed(piece, [](std::string_view) {});
  EXPECT_FALSE(goes_on);
}

TEST(Reply, TheRoleIsNoTokenAndReasoningIs) {
  ReplyReader reader(true);
  int32_t now = 0;
  for (const char c : kStream) EXPECT_TRUE(reader.feed({&c, 1}, at(++now)));
  const Reply reply = reader.finish(at(++now));
  ASSERT_FALSE(reply.failure);
  EXPECT_EQ(reply.text, "Hello");
  EXPECT_EQ(reply.finish_reason, "stop");
  EXPECT_EQ(reply.prompt_tokens, 9);
  EXPECT_EQ(reply.completion_tokens, 4);
  EXPECT_EQ(reply.cached_tokens, 2);
  EXPECT_EQ(reply.token_times.size(), 3U);
}

TEST(Reply, AToolCallIsMadeOfTokens) {
  ReplyReader reader(true);
  reader.feed(
      "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":"
      "\"\"}}]}}]}\n\n"
      "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"{}\"}}]}}]}"
      "\n\ndata: [DONE]\n\n",
      at(1));
  EXPECT_EQ(reader.finish(at(2)).token_times.size(), 2U);
}

TEST(Reply, AWholeAnswerHasNoTokenTimes) {
  ReplyReader reader(false);
  reader.feed(R"({"choices":[{"message":{"content":"Hi"},"finish_reason":"length"}],)", at(1));
  reader.feed(R"("usage":{"prompt_tokens":3,"completion_tokens":1}})", at(2));
  const Reply reply = reader.finish(at(3));
  ASSERT_FALSE(reply.failure) << reply.failure->message;
  EXPECT_EQ(reply.text, "Hi");
  EXPECT_EQ(reply.completion_tokens, 1);
  EXPECT_TRUE(reply.token_times.empty());
}

struct Broken {
  const char* name;
  const char* body;
  const char* kind;
  const char* message;
};

TEST(Reply, EveryFaultOfAStreamHasItsKind) {
  constexpr Broken kCases[] = {
      {"cut", "data: {\"choices\":[{\"text\":\"a\"}]}\n\n", "truncated", "before its end"},
      {"error event", "data: {\"error\":{\"message\":\"boom\"}}\n\n", "stream_error", "boom"},
      {"no JSON", "data: {\"choices\n\n", "malformed", "{\"choices"},
      {"no token", "data: {\"choices\":[]}\n\ndata: [DONE]\n\n", "empty", "no token"},
      {"nothing", "", "truncated", "before its end"},
  };
  for (const Broken& broken : kCases) {
    ReplyReader reader(true);
    reader.feed(broken.body, at(1));
    const Reply reply = reader.finish(at(2));
    ASSERT_TRUE(reply.failure) << broken.name;
    EXPECT_EQ(reply.failure->kind, broken.kind) << broken.name;
    EXPECT_THAT(reply.failure->message, testing::HasSubstr(broken.message)) << broken.name;
  }
}

TEST(Reply, TheMessageOfAnErrorIsFoundInEveryKnownShape) {
  EXPECT_EQ(error_message(R"({"error":{"message":"a"}})"), "a");
  EXPECT_EQ(error_message(R"({"object":"error","message":"b"})"), "b");
  EXPECT_EQ(error_message(R"({"error":"c"})"), "c");
  EXPECT_EQ(error_message(R"({"detail":"d"})"), "d");
  EXPECT_EQ(error_message("<html>\x1b[2J"), "<html>\\x1b[2J");
}

}  // namespace
}  // namespace nibble::bench_client

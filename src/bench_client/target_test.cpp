#include "bench_client/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::bench_client {
namespace {

using testing::HasSubstr;

TEST(Target, TheUrlOfOtherClientsIsTaken) {
  EXPECT_EQ(normalise_base_url("http://a:1/v1/"), "http://a:1");
  EXPECT_EQ(normalise_base_url("http://a:1/v1"), "http://a:1");
  EXPECT_EQ(normalise_base_url("https://a/proxy/"), "https://a/proxy");
}

TEST(Target, AChatRequestAsksForUsageAndForAllTokens) {
  const Target target{.model = "m"};
  EXPECT_EQ(request_body(target, {{"system", "s"}, {"user", "q"}}, 7),
            R"({"model":"m","messages":[{"role":"system","content":"s"},)"
            R"({"role":"user","content":"q"}],"max_tokens":7,"temperature":0.0,)"
            R"("ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}})");
}

TEST(Target, ACompletionGetsTheTextOfAllMessages) {
  Target target{.model = "m", .protocol = Protocol::kCompletions, .stream = false};
  target.ignore_eos = false;
  target.temperature.reset();
  EXPECT_EQ(request_body(target, {{"user", " a"}, {"assistant", " b"}, {"user", " c"}}, 1),
            R"({"model":"m","prompt":" a b c","max_tokens":1,"stream":false})");
}

TEST(Target, ExtraMembersWin) {
  Target target{.model = "m", .protocol = Protocol::kCompletions, .stream = false};
  target.extra_body = json::make_object({{"temperature", 0.5}, {"top_k", 3}});
  const std::string body = request_body(target, {{"user", "a"}}, 1);
  EXPECT_THAT(body, HasSubstr(R"("temperature":0.5)"));
  EXPECT_THAT(body, HasSubstr(R"("top_k":3)"));
}

struct Advice {
  const char* kind;
  Errc code;
  const char* words;
};

TEST(Target, EveryKindOfFailureHasItsAdvice) {
  constexpr Advice kCases[] = {
      {"connect", Errc::kUnavailable, "start the server, or name another with --base-url"},
      {"url", Errc::kInvalidArgument, "--base-url"},
      {"http_401", Errc::kInvalidArgument, "set OPENAI_API_KEY"},
      {"http_404", Errc::kNotFound, "--endpoint /v1/chat/completions"},
      {"http_400", Errc::kInvalidArgument, "refuses the request"},
      {"http_503", Errc::kUnavailable, "http_503: words"},
      {"timeout", Errc::kUnavailable, "timeout: words"},
  };
  for (const Advice& advice : kCases) {
    const Error error = describe_failure({}, {advice.kind, "words"});
    EXPECT_EQ(error.code, advice.code) << advice.kind;
    EXPECT_THAT(error.message, HasSubstr(advice.words));
    EXPECT_THAT(error.message, HasSubstr("words"));
  }
}

}  // namespace
}  // namespace nibble::bench_client

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/server_testing.h"

namespace nibble::server {
namespace {

using ::testing::HasSubstr;

json::Value post_json(TestServer& server, std::string_view path, std::string_view body) {
  const TestResponse response = http_post(server.port(), path, body);
  EXPECT_EQ(response.status, 200) << response.body;
  return json::parse(response.body).value();
}

TEST(TokenRoutes, EncodeAndDecodeText) {
  TestServer server;
  for (const char* prefix : {"", "/v1"}) {
    const json::Value encoded =
        post_json(server,
                  fmt::format("{}/tokenize", prefix),
                  R"({"model": "tiny", "prompt": "Hello there.", "return_token_strs": true})");
    const std::vector<int32_t> expected = tiny_tokenizer().encode("Hello there.", {}).value();
    EXPECT_EQ(integer_at(encoded, "count"), static_cast<int64_t>(expected.size()));
    EXPECT_EQ(integer_at(encoded, "tokens.0"), expected.front());
    EXPECT_EQ(integer_at(encoded, "max_model_len"), server.engine().max_context());
    EXPECT_EQ(at(encoded, "token_strs").as_array()->size(), expected.size());
    const std::string tokens = json::dump(at(encoded, "tokens"), json::Style::kCompact);
    const json::Value decoded = post_json(
        server, fmt::format("{}/detokenize", prefix), fmt::format(R"({{"tokens": {}}})", tokens));
    EXPECT_EQ(text_at(decoded, "prompt"), "Hello there.");
    EXPECT_EQ(text_at(decoded, "text"), "Hello there.");
  }
}

TEST(TokenRoutes, EncodeMessagesAsChatDoes) {
  TestServer server;
  const json::Value encoded = post_json(server, "/tokenize", chat_body());
  const json::Value answer = server.chat_json(chat_body());
  EXPECT_EQ(integer_at(encoded, "count"), integer_at(answer, "usage.prompt_tokens"));
}

TEST(TokenRoutes, NameTheFieldThatIsWrong) {
  TestServer server;
  struct Case {
    const char* path;
    const char* body;
    const char* param;
    int status = 400;
  };
  for (const Case& wrong : {Case{"/tokenize", "{}", "prompt"},
                            Case{"/tokenize", "[]", "body"},
                            Case{"/tokenize", R"({"prompt": 3})", "prompt"},
                            Case{"/tokenize", R"({"prompt": "a", "messages": []})", "prompt"},
                            Case{"/tokenize", R"({"prompt": "a", "model": "other"})", "model", 404},
                            Case{"/tokenize", R"({"messages": 1})", "messages"},
                            Case{"/detokenize", "{}", "tokens"},
                            Case{"/detokenize", R"({"tokens": [-1]})", "tokens"},
                            Case{"/detokenize", R"({"tokens": [4096]})", "tokens"},
                            Case{"/detokenize", R"({"tokens": ["a"]})", "tokens"}}) {
    const TestResponse response = http_post(server.port(), wrong.path, wrong.body);
    EXPECT_EQ(response.status, wrong.status) << wrong.body;
    EXPECT_THAT(response.body, HasSubstr(fmt::format(R"("param":"{}")", wrong.param)))
        << wrong.body;
  }
  EXPECT_EQ(http_post(server.port(), "/tokenize", "{").status, 400);
}

}  // namespace
}  // namespace nibble::server

// A server over the bundled tokenizer and a model that says what the test wants.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "server/http_testing.h"
#include "server/server.h"
#include "text/tokenizer.h"

namespace nibble::server {

// models/tiny-v4's tokenizer, loaded once.
const text::Tokenizer& tiny_tokenizer();
inline constexpr int32_t kTinyVocab = 4096;
inline constexpr int32_t kTinyEos = 1;

// The member at a dotted path, e.g. "choices.0.message.content"; null when there is none.
json::Value at(const json::Value& value, std::string_view path);
std::string text_at(const json::Value& value, std::string_view path);
int64_t integer_at(const json::Value& value, std::string_view path);

struct Event {
  std::string name;  // empty: it has none
  json::Value data;
};
// The events of a stream, in order, without comments and [DONE].
std::vector<Event> parse_named_events(std::string_view stream);
// Their payloads alone.
std::vector<json::Value> parse_events(std::string_view stream);
// The same without repetitions in a row.
std::vector<std::string> without_repeats(std::vector<std::string> names);

// A file of API keys, one a line, that lives as long as the object.
class KeyFile final {
 public:
  KeyFile(std::string_view name, std::string_view keys);
  ~KeyFile();
  KeyFile(const KeyFile&) = delete;
  KeyFile& operator=(const KeyFile&) = delete;
  const Path& path() const { return path_; }
  void write(std::string_view keys) const;

 private:
  Path path_;
};

class TestServer final {
 public:
  struct Options {
    ServerConfig config;
    ModelConfig model = {};
    engine::EngineConfig engine = {.max_running_requests = 4, .eos_token_ids = {kTinyEos}};
  };
  explicit TestServer(Options options);
  TestServer() : TestServer(Options()) {}
  ~TestServer();

  uint16_t port() const { return server_->port(); }
  engine::Engine& engine() { return *engine_; }
  Server& server() { return *server_; }

  // What the model answers from now on, up to its end-of-sequence token. Special tokens match.
  void set_answer(std::string_view text);
  // The model works no further until released.
  void hold();
  void release();
  // Waits until the engine's counters satisfy `condition`; false after a while.
  template <class Condition>
  bool wait_for_stats(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition(engine_->stats())) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }

  TestResponse chat(std::string_view body) {
    return http_post(port(), "/v1/chat/completions", body);
  }
  TestResponse complete(std::string_view body) {
    return http_post(port(), "/v1/completions", body);
  }
  // The body of a successful response.
  json::Value chat_json(std::string_view body);
  json::Value complete_json(std::string_view body);
  // True when an ordinary request still succeeds.
  bool serves();

 private:
  std::vector<float> next_logits(std::span<const int32_t> history);
  Result<void> before_step();

  std::mutex mutex_;
  std::condition_variable released_;
  std::vector<int32_t> answer_;
  bool is_held_ = false;

  SteadyClock clock_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<Server> server_;
};

// A chat request with one user message; `extra` are further members, e.g. R"(, "stream": true)".
std::string chat_body(std::string_view extra = {});
// A text completion whose prompt makes the model begin its answer.
std::string completion_body(std::string_view extra = {});

}  // namespace nibble::server

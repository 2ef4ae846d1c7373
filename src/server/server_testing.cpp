#include "server/server_testing.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/check.h"
#include "text/chat_protocol.h"

namespace nibble::server {
namespace {

const json::Value* step_into(const json::Value& value, std::string_view key) {
  const json::Array* items = value.as_array();
  if (items == nullptr) return value.find(key);
  size_t index = items->size();
  std::from_chars(key.data(), key.data() + key.size(), index);
  return index < items->size() ? &(*items)[index] : nullptr;
}

json::Value parse_successful(const TestResponse& response) {
  CHECK(response.status == 200) << response.status << " " << response.body;
  return json::parse(response.body).value();
}

}  // namespace

const text::Tokenizer& tiny_tokenizer() {
  static const std::unique_ptr<text::Tokenizer> tokenizer =
      text::load_tokenizer(Path(NIBBLE_SOURCE_DIR) / "models/tiny-v4").value();
  return *tokenizer;
}

json::Value at(const json::Value& value, std::string_view path) {
  const json::Value* current = &value;
  while (current != nullptr && !path.empty()) {
    const std::string_view key = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(path.size(), key.size() + 1));
    current = step_into(*current, key);
  }
  return current == nullptr ? json::Value() : *current;
}

std::string text_at(const json::Value& value, std::string_view path) {
  const json::Value found = at(value, path);
  return found.is_string() ? *found.as_string() : fmt::format("({})", found.kind_name());
}

int64_t integer_at(const json::Value& value, std::string_view path) {
  return at(value, path).as_int64().value_or(-1);
}

std::vector<Event> parse_named_events(std::string_view stream) {
  constexpr std::string_view kName = "event: ";
  constexpr std::string_view kData = "data: ";
  std::vector<Event> events;
  while (!stream.empty()) {
    std::string_view lines = stream.substr(0, stream.find("\n\n"));
    stream.remove_prefix(std::min(stream.size(), lines.size() + 2));
    Event event;
    if (lines.starts_with(kName)) {
      const size_t end = std::min(lines.find('\n'), lines.size() - 1);
      event.name = lines.substr(kName.size(), end - kName.size());
      lines.remove_prefix(end + 1);
    }
    if (!lines.starts_with(kData) || lines.ends_with("[DONE]")) continue;
    event.data = json::parse(lines.substr(kData.size())).value();
    events.push_back(std::move(event));
  }
  return events;
}

std::vector<json::Value> parse_events(std::string_view stream) {
  std::vector<json::Value> payloads;
  for (Event& event : parse_named_events(stream)) payloads.push_back(std::move(event.data));
  return payloads;
}

std::vector<std::string> without_repeats(std::vector<std::string> names) {
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

KeyFile::KeyFile(std::string_view name, std::string_view keys)
    : path_(std::filesystem::temp_directory_path() /
            fmt::format("nibble_{}.{}", name, ::getpid())) {
  write(keys);
  std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
}

void KeyFile::write(std::string_view keys) const { std::ofstream(path_) << keys; }

KeyFile::~KeyFile() { std::filesystem::remove(path_); }

TestServer::TestServer(Options options) {
  auto runner =
      std::make_unique<engine::testing::FakeModelRunner>(engine::testing::FakeModelOptions{
          .vocab_size = kTinyVocab,
          .page_size = 64,
          .num_slots = 4,
          .num_pages = 64,
          .max_tokens_per_step = 512,
          .logits = [this](std::span<const int32_t> history) { return next_logits(history); }});
  runner->before_step = [this](const engine::Batch&) { return before_step(); };
  set_answer("Hello there.");
  engine_ =
      engine::Engine::create(options.engine, std::move(runner), tiny_tokenizer(), clock_).value();
  options.config.http.port = 0;
  options.config.handles_signals = false;
  options.config.version = "1.2.3";
  if (options.model.served_names.empty()) options.model.served_names = {"tiny", "alias/tiny"};
  server_ = Server::listen(options.config).value();
  server_->attach(options.model, *engine_, tiny_tokenizer());
  server_->start();
}

TestServer::~TestServer() { release(); }

void TestServer::set_answer(std::string_view text) {
  std::vector<int32_t> ids = tiny_tokenizer().encode_with_specials(text).value();
  const std::lock_guard lock(mutex_);
  answer_ = std::move(ids);
}

void TestServer::hold() {
  const std::lock_guard lock(mutex_);
  is_held_ = true;
}

void TestServer::release() {
  const std::lock_guard lock(mutex_);
  is_held_ = false;
  released_.notify_all();
}

Result<void> TestServer::before_step() {
  std::unique_lock lock(mutex_);
  released_.wait(lock, [&] { return !is_held_; });
  return {};
}

// The answer begins behind the last assistant tag and the thinking tag that follows it.
std::vector<float> TestServer::next_logits(std::span<const int32_t> history) {
  static const int32_t assistant = *tiny_tokenizer().added_token(text::kAssistantTag);
  const auto tag = std::find(history.rbegin(), history.rend(), assistant);
  const auto num_said = static_cast<size_t>(std::max<ptrdiff_t>(tag - history.rbegin() - 1, 0));
  std::vector<float> logits(kTinyVocab, 0.0F);
  const std::lock_guard lock(mutex_);
  const int32_t next = num_said < answer_.size() ? answer_[num_said] : kTinyEos;
  logits[static_cast<size_t>(next)] = 30.0F;
  return logits;
}

json::Value TestServer::chat_json(std::string_view body) { return parse_successful(chat(body)); }
json::Value TestServer::complete_json(std::string_view body) {
  return parse_successful(complete(body));
}

bool TestServer::serves() {
  set_answer("Still here.");
  const TestResponse response = chat(chat_body());
  return response.status == 200 &&
         text_at(json::parse(response.body).value(), "choices.0.message.content") == "Still here.";
}

std::string chat_body(std::string_view extra) {
  return fmt::format(R"({{"messages": [{{"role": "user", "content": "Hello"}}]{}}})", extra);
}

std::string completion_body(std::string_view extra) {
  return fmt::format(R"({{"prompt": "Hello{}{}", "max_tokens": 100{}}})",
                     text::kAssistantTag,
                     text::kThinkClose,
                     extra);
}

}  // namespace nibble::server

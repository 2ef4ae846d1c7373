#include "bench_client/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace nibble::bench_client {
namespace {

constexpr Duration kProbeTimeout = std::chrono::minutes(5);

HttpCall plain_call(const Target& target, std::string_view path) {
  HttpCall call{.url = target.base_url + std::string(path), .timeout = kProbeTimeout};
  if (!target.api_key.empty()) call.headers.push_back("authorization: Bearer " + target.api_key);
  return call;
}

json::Array chat_messages(const std::vector<Message>& messages) {
  json::Array array;
  for (const Message& message : messages) {
    array.emplace_back(json::make_object({{"role", message.role}, {"content", message.content}}));
  }
  return array;
}

std::string joined(const std::vector<Message>& messages) {
  std::string text;
  for (const Message& message : messages) text += message.content;
  return text;
}

// The ids of a model list.
std::vector<std::string> model_ids(std::string_view body) {
  std::vector<std::string> ids;
  const Result<json::Value> parsed = json::parse(body);
  const json::Value* data = parsed.ok() ? parsed->find("data") : nullptr;
  const json::Array* items = data == nullptr ? nullptr : data->as_array();
  if (items == nullptr) return ids;
  for (const json::Value& item : *items) {
    const json::Value* id = item.find("id");
    if (id != nullptr && id->is_string()) ids.push_back(*id->as_string());
  }
  return ids;
}

Result<void> choose_model(Target& target, const std::vector<std::string>& served) {
  if (target.model.empty()) {
    if (served.empty()) {
      return invalid_argument(
          fmt::format("{}: lists no models; name one with --model", target.base_url));
    }
    target.model = served.front();
    return {};
  }
  const bool is_served = std::find(served.begin(), served.end(), target.model) != served.end();
  if (served.empty() || is_served) return {};
  return not_found(fmt::format("{}: has no model \"{}\"; it serves {}",
                               target.base_url,
                               target.model,
                               fmt::join(served, ", ")));
}

}  // namespace

std::string normalise_base_url(std::string_view url) {
  constexpr std::string_view kVersion = "/v1";
  while (url.ends_with('/')) url.remove_suffix(1);
  if (url.ends_with(kVersion)) url.remove_suffix(kVersion.size());
  return std::string(url);
}

std::string_view endpoint_of(const Target& target) {
  if (!target.endpoint.empty()) return target.endpoint;
  return target.protocol == Protocol::kChat ? "/v1/chat/completions" : "/v1/completions";
}

std::string request_body(const Target& target,
                         const std::vector<Message>& messages,
                         int32_t max_tokens) {
  json::Object body = json::make_object({{"model", target.model}});
  if (target.protocol == Protocol::kChat) {
    body.set("messages", chat_messages(messages));
  } else {
    body.set("prompt", joined(messages));
  }
  body.set("max_tokens", max_tokens);
  if (target.temperature) body.set("temperature", *target.temperature);
  if (target.ignore_eos) body.set("ignore_eos", true);
  body.set("stream", target.stream);
  if (target.stream) body.set("stream_options", json::make_object({{"include_usage", true}}));
  for (const json::Member& member : target.extra_body) body.set(member.key, member.value);
  return json::dump(body, json::Style::kCompact);
}

HttpCall generation_call(const Target& target,
                         const std::vector<Message>& messages,
                         int32_t max_tokens) {
  HttpCall call = plain_call(target, endpoint_of(target));
  call.body = request_body(target, messages, max_tokens);
  call.timeout = target.timeout;
  return call;
}

std::optional<Failure> failure_of(const HttpOutcome& outcome, std::string_view error_body) {
  if (outcome.failure) return outcome.failure;
  if (outcome.status == 200) return std::nullopt;
  return Failure{fmt::format("http_{}", outcome.status), error_message(error_body)};
}

Result<Reply> ask(HttpClient& client,
                  const Target& target,
                  const std::vector<Message>& messages,
                  int32_t max_tokens) {
  std::string body;
  const HttpOutcome outcome = client.run(generation_call(target, messages, max_tokens), body);
  if (const auto failure = failure_of(outcome, body)) return describe_failure(target, *failure);
  ReplyReader reader(target.stream);
  const TimePoint now = std::chrono::steady_clock::now();
  reader.feed(body, now);
  Reply reply = reader.finish(now);
  // An answer of one token may well be one that has no text.
  if (reply.failure && reply.failure->kind != "empty") {
    return describe_failure(target, *reply.failure);
  }
  return reply;
}

Result<void> check_target(HttpClient& client, Target& target) {
  const bool is_sendable = std::all_of(
      target.api_key.begin(), target.api_key.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!is_sendable) {
    return invalid_argument("OPENAI_API_KEY: has characters that no HTTP header can carry");
  }
  std::string body;
  const HttpOutcome outcome = client.run(plain_call(target, "/v1/models"), body);
  const auto failure = failure_of(outcome, body);
  if (!failure) return choose_model(target, model_ids(body));
  if (failure->kind != "http_404" && failure->kind != "http_405") {
    return describe_failure(target, *failure);
  }
  return choose_model(target, {});  // a server without a list of models
}

std::string server_version(HttpClient& client, const Target& target) {
  std::string body;
  const HttpOutcome outcome = client.run(plain_call(target, "/version"), body);
  if (failure_of(outcome, body)) return {};
  const Result<json::Value> parsed = json::parse(body);
  const json::Value* version = parsed.ok() ? parsed->find("version") : nullptr;
  return version != nullptr && version->is_string() ? *version->as_string() : std::string();
}

Result<void> post_order(HttpClient& client,
                        const Target& target,
                        std::string_view route,
                        std::string_view flag) {
  HttpCall call = plain_call(target, route);
  call.body = "";
  std::string body;
  const HttpOutcome outcome = client.run(std::move(call), body);
  const auto failure = failure_of(outcome, body);
  if (!failure) return {};
  return unsupported(fmt::format(
      "{}: POST {}{}: {}: {}", flag, target.base_url, route, failure->kind, failure->message));
}

Error describe_failure(const Target& target, const Failure& failure) {
  const std::string where = fmt::format("{}: ", target.base_url);
  if (failure.kind == "connect") {
    return unavailable(
        fmt::format("{}nothing answers ({}); start the server, or name another with --base-url",
                    where,
                    failure.message));
  }
  if (failure.kind == "url") {
    return invalid_argument(fmt::format("--base-url {}{}", where, failure.message));
  }
  if (failure.kind == "http_401" || failure.kind == "http_403") {
    const char* advice = target.api_key.empty() ? "set OPENAI_API_KEY"
                                                : "it does not accept the key of OPENAI_API_KEY";
    return invalid_argument(
        fmt::format("{}{} ({}); {}", where, failure.kind, failure.message, advice));
  }
  if (failure.kind == "http_404") {
    return not_found(fmt::format("{}{} ({}); check --model and --endpoint {}",
                                 where,
                                 failure.kind,
                                 failure.message,
                                 endpoint_of(target)));
  }
  if (failure.kind == "http_400" || failure.kind == "http_422") {
    return invalid_argument(
        fmt::format("{}refuses the request: {} ({})", where, failure.message, failure.kind));
  }
  return unavailable(fmt::format("{}{}: {}", where, failure.kind, failure.message));
}

}  // namespace nibble::bench_client

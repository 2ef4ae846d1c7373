// The server under test: how to speak to it, and whether it can be spoken to at all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "bench_client/http_client.h"

namespace nibble::bench_client {

enum class Protocol {
  kChat,         // /v1/chat/completions
  kCompletions,  // /v1/completions
};

struct Message {
  std::string role;
  std::string content;
};

struct Target {
  std::string base_url = "http://127.0.0.1:8000";  // without a trailing "/" or "/v1"
  std::string endpoint;                            // path; empty: the protocol's
  std::string api_key;                             // empty: none is sent
  std::string model;                               // empty: the server's first
  Protocol protocol = Protocol::kChat;
  bool stream = true;
  bool ignore_eos = true;
  std::optional<double> temperature = 0.0;  // absent: the server's default
  json::Object extra_body;                  // members that every request gets; they win
  Duration timeout = std::chrono::hours(1);
};

// "http://HOST/v1/" is what other clients want; here the paths begin behind the host.
std::string normalise_base_url(std::string_view url);

std::string_view endpoint_of(const Target& target);

// The body of a request. A text completion gets the contents of all messages, one after the other.
std::string request_body(const Target& target,
                         const std::vector<Message>& messages,
                         int32_t max_tokens);

HttpCall generation_call(const Target& target,
                         const std::vector<Message>& messages,
                         int32_t max_tokens);

// The Failure of an exchange that did not end with a complete 200 answer, or nothing. `error_body`
// is what came instead of an answer.
std::optional<Failure> failure_of(const HttpOutcome& outcome, std::string_view error_body);

// One request, answered completely.
Result<Reply> ask(HttpClient& client,
                  const Target& target,
                  const std::vector<Message>& messages,
                  int32_t max_tokens);

// Finds out whether the server is there, takes the key and has the model; fills in target.model.
// kUnavailable (nothing answers, still loading), kInvalidArgument (key, URL), kNotFound (model).
Result<void> check_target(HttpClient& client, Target& target);

// The `version` that the server reports, or "".
std::string server_version(HttpClient& client, const Target& target);

// POST `route` without a body, for what `flag` asks for. kUnsupported when the server has no such
// route or refuses it.
Result<void> post_order(HttpClient& client,
                        const Target& target,
                        std::string_view route,
                        std::string_view flag);

// What a failure means to the user, as an error with the advice that fits.
Error describe_failure(const Target& target, const Failure& failure);

}  // namespace nibble::bench_client

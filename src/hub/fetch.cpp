#include "hub/fetch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ctime>

#include "base/utf8.h"
#include "hub/errors.h"

namespace nibble::hub {
namespace {

constexpr int32_t kMaxRedirects = 8;

bool is_redirect(int32_t status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

bool is_retryable_status(int32_t status) { return status == 408 || status == 429 || status >= 500; }

std::string header_text(const HttpHead& head, std::string_view name) {
  const std::string* value = head.find(name);
  return value == nullptr ? std::string()
                          : escape_for_display(std::string_view(*value).substr(0, 500));
}

// ": TEXT" of the hub's own explanation, or nothing.
std::string hub_message(const HttpHead& head) {
  const std::string text = header_text(head, "x-error-message");
  return text.empty() ? text : ": " + text;
}

Failure status_failure(const HttpHead& head,
                       const Url& url,
                       const std::string& what,
                       bool has_token) {
  const std::string code = header_text(head, "x-error-code");
  const std::string found =
      fmt::format("{}: {} answered HTTP {}{}", what, url.display(), head.status, hub_message(head));
  const char* token_hint = has_token
                               ? "The token was sent; check that it is valid and may read this."
                               : "No token was sent; set HF_TOKEN or HF_TOKEN_PATH.";
  if (code == "GatedRepo") {
    return permanent(auth_error(fmt::format(
        "{}. The repository is gated: accept its terms on its page. {}", found, token_hint)));
  }
  if (code == "RepoNotFound") {
    return permanent(missing_error(
        fmt::format("{}. The repository does not exist or is private. {}", found, token_hint)));
  }
  if (head.status == 404 || head.status == 410) {
    return permanent(missing_error(found + ". Check the name and the revision."));
  }
  if (head.status == 401 || head.status == 403) {
    return permanent(auth_error(fmt::format("{}. {}", found, token_hint)));
  }
  if (is_retryable_status(head.status)) {
    Failure failure = retryable(network_error(found + ". Try again later."));
    failure.server_delay = server_delay(head, static_cast<int64_t>(std::time(nullptr)));
    return failure;
  }
  return permanent(
      network_error(found + ", expected 200 or 206. Check HF_ENDPOINT and the proxy."));
}

std::optional<Failure> transport_failure(const HttpOutcome& outcome,
                                         const Url& url,
                                         const std::string& what) {
  const std::string text = fmt::format("{}: {}: {}", what, url.display(), outcome.fault);
  switch (outcome.end) {
    case TransferEnd::kCancelled:
      return permanent(cancelled_error());
    case TransferEnd::kRefused:
      return permanent(network_error(
          text + ". Check HF_ENDPOINT and the proxy; SSL_CERT_FILE names other authorities."));
    case TransferEnd::kFailed:
      return retryable(network_error(text + ". Check the connection and try again."));
    case TransferEnd::kComplete:
    case TransferEnd::kStopped:
      break;
  }
  return std::nullopt;
}

Result<Url> redirect_target(const FetchOutcome& outcome, const std::string& what) {
  const std::string* location = outcome.head.find("location");
  if (location == nullptr) {
    return network_error(fmt::format("{}: {} answered HTTP {} without Location. Check HF_ENDPOINT.",
                                     what,
                                     outcome.final_url.display(),
                                     outcome.head.status));
  }
  Result<Url> next = resolve_url(outcome.final_url, *location);
  if (!next.ok()) return network_error(what + ": redirect to " + next.error().message);
  TRY(check_redirect(outcome.final_url, *next));
  return next;
}

}  // namespace

Failure permanent(Error error) { return Failure{std::move(error), false, std::nullopt}; }
Failure retryable(Error error) { return Failure{std::move(error), true, std::nullopt}; }

std::chrono::milliseconds retry_delay(const RetryPolicy& policy, int32_t attempt) {
  std::chrono::milliseconds delay = policy.first_delay;
  for (int32_t i = 1; i < attempt && delay < policy.max_delay; ++i) delay *= 2;
  return std::min(delay, policy.max_delay);
}

std::optional<std::chrono::milliseconds> server_delay(const HttpHead& head, int64_t unix_now_s) {
  const auto seconds = [](std::string_view text) -> std::optional<int64_t> {
    int64_t value = 0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (fault != std::errc() || end == text.data() || value < 0 || value > 1'000'000) return {};
    return value;
  };
  std::optional<int64_t> delay;
  if (const std::string* text = head.find("retry-after")) {
    delay = seconds(*text);
    const int64_t date = delay ? -1 : parse_http_date(*text).value_or(-1);
    if (date >= 0) delay = std::max<int64_t>(0, date - unix_now_s);
  } else if (const std::string* limits = head.find("ratelimit")) {  // "api";r=0;t=55
    const size_t reset = limits->find(";t=");
    if (reset != std::string::npos) delay = seconds(std::string_view(*limits).substr(reset + 3));
  }
  if (!delay) return std::nullopt;
  return std::chrono::milliseconds(*delay * 1000);
}

Fetcher::Fetcher(const HubConfig& config,
                 const Url& endpoint,
                 const Cancel& cancel,
                 TransferCounter& counter)
    : config_(config),
      endpoint_(endpoint),
      cancel_(cancel),
      counter_(counter),
      connection_(config.transport, cancel),
      // Spreads the attempts of processes and connections; nothing depends on the value.
      jitter_state_(static_cast<uint64_t>(::getpid()) ^ reinterpret_cast<uintptr_t>(this)) {}

bool Fetcher::may_see_token(const Url& url) const { return url.origin() == endpoint_.origin(); }

void Fetcher::get_once(const FetchRequest& request, const BodySink& sink, FetchOutcome& outcome) {
  const bool is_endpoint = may_see_token(outcome.final_url);
  const bool is_checked = is_endpoint && request.check_hub_head != nullptr;
  std::optional<Failure> refusal;
  bool is_first = true;
  const BodySink guarded = [&](const HttpHead& head, std::span<const std::byte> bytes) {
    counter_.add_bytes(static_cast<int64_t>(bytes.size()));
    // Bodies of errors and redirects are read to their end, so that the connection stays usable.
    if (head.status != 200 && head.status != 206) return true;
    if (is_checked && is_first) refusal = request.check_hub_head(head);
    is_first = false;
    return !refusal && sink(head, bytes);
  };
  counter_.add_request();
  HttpOutcome transfer = connection_.get(
      {outcome.final_url, is_endpoint ? config_.token : std::string(), request.range}, guarded);
  outcome.end = transfer.end;
  outcome.head = std::move(transfer.head);
  outcome.failure = transport_failure(transfer, outcome.final_url, request.what);
  if (outcome.failure) return;
  if (is_redirect(outcome.head.status)) {
    if (is_checked) outcome.failure = request.check_hub_head(outcome.head);
  } else if (outcome.head.status == 200 || outcome.head.status == 206) {
    outcome.failure = std::move(refusal);
  } else {
    const bool has_token = is_endpoint && !config_.token.empty();
    outcome.failure = status_failure(outcome.head, outcome.final_url, request.what, has_token);
  }
}

FetchOutcome Fetcher::get(const FetchRequest& request, const BodySink& sink) {
  FetchOutcome outcome;
  outcome.final_url = request.url;
  for (int32_t hop = 0; hop <= kMaxRedirects; ++hop) {
    get_once(request, sink, outcome);
    if (outcome.failure || !is_redirect(outcome.head.status)) return outcome;
    Result<Url> next = redirect_target(outcome, request.what);
    if (!next.ok()) {
      outcome.failure = permanent(std::move(next).error());
      return outcome;
    }
    outcome.final_url = std::move(next).value();
  }
  outcome.failure = permanent(network_error(fmt::format(
      "{}: {}: more than {} redirects", request.what, request.url.display(), kMaxRedirects)));
  return outcome;
}

std::chrono::milliseconds Fetcher::with_jitter(std::chrono::milliseconds delay) {
  jitter_state_ = jitter_state_ * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX
  return delay + delay * static_cast<int64_t>(jitter_state_ >> 56U) / 1024;
}

Result<void> Fetcher::with_retries(const Attempt& attempt) {
  const RetryPolicy& policy = config_.retry;
  int32_t num_failed = 0;
  while (true) {
    if (cancel_.is_set()) return cancelled_error();
    bool has_progressed = false;
    std::optional<Failure> failure = attempt(has_progressed);
    if (!failure) return {};
    if (!failure->is_retryable) return std::move(failure->error);
    num_failed = has_progressed ? 1 : num_failed + 1;
    if (num_failed >= policy.max_attempts) {
      failure->error.message += fmt::format(" Gave up after {} attempts.", num_failed);
      return std::move(failure->error);
    }
    std::chrono::milliseconds delay = with_jitter(retry_delay(policy, num_failed));
    if (failure->server_delay) {
      if (*failure->server_delay > policy.max_server_delay) {
        failure->error.message +=
            fmt::format(" The server asks to wait {} s.", failure->server_delay->count() / 1000);
        return std::move(failure->error);
      }
      delay = std::max(delay, *failure->server_delay);
    }
    if (!cancel_.sleep(delay)) return cancelled_error();
  }
}

Result<Fetcher::Document> Fetcher::get_document(const Url& url,
                                                const std::string& what,
                                                int64_t max_bytes) {
  Document document;
  TRY(with_retries([&](bool&) -> std::optional<Failure> {
    document.body.clear();
    const FetchRequest request{url, std::nullopt, what, nullptr};
    FetchOutcome outcome = get(request, [&](const HttpHead&, std::span<const std::byte> bytes) {
      if (static_cast<int64_t>(document.body.size() + bytes.size()) > max_bytes) return false;
      document.body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return true;
    });
    if (outcome.failure) return std::move(outcome.failure);
    if (outcome.end == TransferEnd::kStopped) {
      return permanent(integrity_error(
          fmt::format("{}: {}: longer than {} bytes", what, url.display(), max_bytes)));
    }
    document.head = std::move(outcome.head);
    return std::nullopt;
  }));
  return document;
}

}  // namespace nibble::hub

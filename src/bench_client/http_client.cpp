#include "bench_client/http_client.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/check.h"

namespace nibble::bench_client {
namespace {

constexpr Duration kConnectTimeout = std::chrono::seconds(10);

long milliseconds(Duration duration) {
  return static_cast<long>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

std::string failure_kind(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
      return "connect";
    case CURLE_OPERATION_TIMEDOUT:
      return "timeout";
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return "url";
    default:
      return "connection_lost";
  }
}

// One exchange and everything that libcurl keeps pointers into.
struct Exchange {
  Exchange(HttpCall http_call, HttpClient::OnBytes take_bytes, HttpClient::OnDone take_end)
      : curl(curl_easy_init()),
        call(std::move(http_call)),
        on_bytes(std::move(take_bytes)),
        on_done(std::move(take_end)) {
    CHECK(curl != nullptr);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange() {
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
  }

  template <class T>
  void set(CURLoption option, T value) {
    const CURLcode code = curl_easy_setopt(curl, option, value);
    CHECK(code == CURLE_OK) << "libcurl option " << option << ": " << curl_easy_strerror(code);
  }

  void add_header(const std::string& line) {
    curl_slist* longer = curl_slist_append(headers, line.c_str());
    CHECK(longer != nullptr);
    headers = longer;
  }

  int32_t status() const {
    long code = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    return static_cast<int32_t>(code);
  }

  CURL* curl;
  HttpCall call;
  HttpClient::OnBytes on_bytes;
  HttpClient::OnDone on_done;
  curl_slist* headers = nullptr;
  char fault[CURL_ERROR_SIZE] = {};
  bool is_stopped = false;  // by on_bytes
};

size_t on_body(char* data, size_t, size_t size, void* context) {
  auto& exchange = *static_cast<Exchange*>(context);
  if (exchange.on_bytes(exchange.status(), {data, size})) return size;
  exchange.is_stopped = true;
  return CURL_WRITEFUNC_ERROR;
}

void prepare(Exchange& exchange) {
  exchange.set(CURLOPT_URL, exchange.call.url.c_str());
  exchange.set(CURLOPT_PROTOCOLS_STR, "http,https");
  exchange.set(CURLOPT_PROXY, "");
  exchange.set(CURLOPT_NOPROXY, "*");
  exchange.set(CURLOPT_NOSIGNAL, 1L);
  exchange.set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  exchange.set(CURLOPT_USERAGENT, "nibble-bench");
  exchange.set(CURLOPT_CONNECTTIMEOUT_MS, milliseconds(kConnectTimeout));
  exchange.set(CURLOPT_TIMEOUT_MS, milliseconds(exchange.call.timeout));
  exchange.set(CURLOPT_ERRORBUFFER, exchange.fault);
  exchange.set(CURLOPT_WRITEFUNCTION, &on_body);
  exchange.set(CURLOPT_WRITEDATA, static_cast<void*>(&exchange));
  exchange.set(CURLOPT_PRIVATE, static_cast<void*>(&exchange));
  for (const std::string& line : exchange.call.headers) exchange.add_header(line);
  if (exchange.call.body) {
    exchange.add_header("content-type: application/json");
    exchange.add_header("expect:");  // no "100-continue": it costs a round trip
    exchange.set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(exchange.call.body->size()));
    exchange.set(CURLOPT_POSTFIELDS, exchange.call.body->c_str());
  }
  exchange.set(CURLOPT_HTTPHEADER, exchange.headers);
}

HttpOutcome outcome_of(const Exchange& exchange, CURLcode code) {
  HttpOutcome outcome{.status = exchange.status()};
  curl_off_t seconds = 0;
  curl_easy_getinfo(exchange.curl, CURLINFO_RETRY_AFTER, &seconds);
  if (seconds > 0) {
    outcome.retry_after_seconds = static_cast<int32_t>(std::min<curl_off_t>(seconds, 86'400));
  }
  if (code != CURLE_OK && !exchange.is_stopped) {
    const char* words = exchange.fault[0] != '\0' ? exchange.fault : curl_easy_strerror(code);
    outcome.failure = Failure{failure_kind(code), words};
  }
  return outcome;
}

}  // namespace

class HttpClient::Impl final {
 public:
  Impl() {
    // libcurl wants this once, before any thread uses it.
    static const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
    CHECK(code == CURLE_OK) << curl_easy_strerror(code);
    multi_ = curl_multi_init();
    CHECK(multi_ != nullptr);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    for (const auto& [curl, exchange] : active_) curl_multi_remove_handle(multi_, curl);
    active_.clear();
    curl_multi_cleanup(multi_);
  }

  void start(HttpCall call, OnBytes on_bytes, OnDone on_done) {
    auto exchange =
        std::make_unique<Exchange>(std::move(call), std::move(on_bytes), std::move(on_done));
    prepare(*exchange);
    CURL* curl = exchange->curl;
    const CURLMcode code = curl_multi_add_handle(multi_, curl);
    CHECK(code == CURLM_OK) << curl_multi_strerror(code);
    active_.emplace(curl, std::move(exchange));
  }

  void wait(Duration at_most) {
    int num_running = 0;
    curl_multi_perform(multi_, &num_running);
    if (finish_done()) return;
    curl_multi_poll(multi_, nullptr, 0, static_cast<int>(milliseconds(at_most)), nullptr);
    curl_multi_perform(multi_, &num_running);
    finish_done();
  }

  int32_t num_active() const { return static_cast<int32_t>(active_.size()); }

 private:
  bool finish_done() {
    bool has_finished = false;
    int num_left = 0;
    while (CURLMsg* message = curl_multi_info_read(multi_, &num_left)) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;
      const auto found = active_.find(message->easy_handle);
      CHECK(found != active_.end());
      curl_multi_remove_handle(multi_, found->first);
      const std::unique_ptr<Exchange> exchange = std::move(found->second);
      active_.erase(found);
      exchange->on_done(outcome_of(*exchange, code));
      has_finished = true;
    }
    return has_finished;
  }

  CURLM* multi_ = nullptr;
  std::unordered_map<CURL*, std::unique_ptr<Exchange>> active_;
};

HttpClient::HttpClient() : impl_(std::make_unique<Impl>()) {}
HttpClient::~HttpClient() = default;

void HttpClient::start(HttpCall call, OnBytes on_bytes, OnDone on_done) {
  impl_->start(std::move(call), std::move(on_bytes), std::move(on_done));
}
void HttpClient::wait(Duration at_most) { impl_->wait(at_most); }
int32_t HttpClient::num_active() const { return impl_->num_active(); }

HttpOutcome HttpClient::run(HttpCall call, std::string& body) {
  constexpr size_t kMaxBodyBytes = 16 << 20;
  CHECK(num_active() == 0);
  HttpOutcome result;
  body.clear();
  const auto on_bytes = [&body](int32_t, std::string_view bytes) {
    body += bytes;
    return body.size() <= kMaxBodyBytes;
  };
  start(std::move(call), on_bytes, [&result](HttpOutcome outcome) { result = std::move(outcome); });
  while (num_active() > 0) wait(std::chrono::seconds(1));
  return result;
}

}  // namespace nibble::bench_client

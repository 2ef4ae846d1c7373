#include "hub/http.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/check.h"

namespace nibble::hub {
namespace {

constexpr long kReceiveBytes =
    512L * 1024;  // libcurl's largest receive buffer: fewer calls per gigabyte

// libcurl wants this once, before any thread uses it.
void initialise_library() {
  static const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
  CHECK(code == CURLE_OK) << curl_easy_strerror(code);
}

struct SlistDelete {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using Slist = std::unique_ptr<curl_slist, SlistDelete>;

void append(Slist& list, const std::string& line) {
  curl_slist* longer = curl_slist_append(list.get(), line.c_str());
  CHECK(longer != nullptr);
  static_cast<void>(list.release());  // now part of `longer`
  list.reset(longer);
}

// What the callbacks of one transfer share.
struct Transfer {
  HttpHead head;
  const BodySink* sink = nullptr;
  const Cancel* cancel = nullptr;
  bool is_stopped = false;
};

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

size_t on_header(char* data, size_t, size_t size, void* context) {
  auto& transfer = *static_cast<Transfer*>(context);
  const std::string_view line = trim({data, size});
  if (line.rfind("HTTP/", 0) == 0) {  // of the final answer, or of a 1xx before it
    transfer.head = HttpHead{};
    const size_t blank = line.find(' ');
    if (blank != std::string_view::npos) {
      std::from_chars(line.data() + blank + 1, line.data() + line.size(), transfer.head.status);
    }
    return size;
  }
  const size_t colon = line.find(':');
  if (colon != std::string_view::npos) {
    transfer.head.add(std::string(line.substr(0, colon)),
                      std::string(trim(line.substr(colon + 1))));
  }
  return size;
}

size_t on_body(char* data, size_t, size_t size, void* context) {
  auto& transfer = *static_cast<Transfer*>(context);
  const std::span<const char> bytes(data, size);
  if ((*transfer.sink)(transfer.head, std::as_bytes(bytes))) return size;
  transfer.is_stopped = true;
  return CURL_WRITEFUNC_ERROR;
}

int on_progress(void* context, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<const Transfer*>(context)->cancel->is_set() ? 1 : 0;
}

// Faults that the next attempt meets again.
bool is_permanent(CURLcode code) {
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_BAD_FUNCTION_ARGUMENT:
    case CURLE_FAILED_INIT:
    case CURLE_NOT_BUILT_IN:
    case CURLE_OUT_OF_MEMORY:
      return true;
    default:
      return false;
  }
}

}  // namespace

struct HttpConnection::Handle {
  CURL* curl = nullptr;
  char fault[CURL_ERROR_SIZE] = {};

  Handle() : curl(curl_easy_init()) { CHECK(curl != nullptr); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { curl_easy_cleanup(curl); }

  template <class T>
  void set(CURLoption option, T value) {
    const CURLcode code = curl_easy_setopt(curl, option, value);
    CHECK(code == CURLE_OK) << "libcurl option " << option << ": " << curl_easy_strerror(code);
  }

  void set_policy(const TransportOptions& options);
  void set_request(const HttpRequest& request, const TransportOptions& options);
};

// What holds for every transfer.
void HttpConnection::Handle::set_policy(const TransportOptions& options) {
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);  // of a proxy
  set(CURLOPT_NOSIGNAL, 1L);                  // other threads run
  set(CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
  // Ranges go over connections of their own; one HTTP/2 connection would share one TCP window.
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_BUFFERSIZE, kReceiveBytes);
  set(CURLOPT_USERAGENT, "nibble");
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_timeout.count()));
  set(CURLOPT_LOW_SPEED_LIMIT, static_cast<long>(options.stall_bytes_per_second));
  set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(options.stall_timeout.count()));
  // An empty string keeps libcurl from reading proxies out of the environment.
  set(CURLOPT_NOPROXY, options.no_proxy.c_str());
  if (!options.ca_file.empty()) set(CURLOPT_CAINFO, options.ca_file.c_str());
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &on_progress);
  set(CURLOPT_HEADERFUNCTION, &on_header);
  set(CURLOPT_WRITEFUNCTION, &on_body);
  set(CURLOPT_ERRORBUFFER, fault);
}

void HttpConnection::Handle::set_request(const HttpRequest& request,
                                         const TransportOptions& options) {
  const bool is_https = request.url.scheme == "https";
  set(CURLOPT_URL, request.url.text.c_str());
  set(CURLOPT_PROXY, is_https ? options.https_proxy.c_str() : options.http_proxy.c_str());
  const std::string range =
      request.range ? fmt::format("{}-{}", request.range->begin, request.range->end - 1) : "";
  set(CURLOPT_RANGE, range.empty() ? nullptr : range.c_str());
}

const std::string* HttpHead::find(std::string_view name) const {
  const auto found = std::find_if(
      headers_.rbegin(), headers_.rend(), [&](const auto& header) { return header.first == name; });
  return found == headers_.rend() ? nullptr : &found->second;
}

std::optional<int64_t> HttpHead::content_length() const {
  const std::string* text = find("content-length");
  int64_t value = -1;
  if (text == nullptr) return std::nullopt;
  const auto [end, fault] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (fault != std::errc() || end != text->data() + text->size() || value < 0) return std::nullopt;
  return value;
}

void HttpHead::add(std::string name, std::string value) {
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  headers_.emplace_back(std::move(name), std::move(value));
}

std::optional<int64_t> parse_http_date(const std::string& text) {
  const time_t date = curl_getdate(text.c_str(), nullptr);
  return date < 0 ? std::nullopt : std::optional<int64_t>(date);
}

HttpConnection::HttpConnection(const TransportOptions& options, const Cancel& cancel)
    : options_(options), cancel_(cancel) {
  initialise_library();
  handle_ = std::make_unique<Handle>();
  handle_->set_policy(options_);
}

HttpConnection::~HttpConnection() = default;

HttpOutcome HttpConnection::get(const HttpRequest& request, const BodySink& sink) {
  Transfer transfer{.sink = &sink, .cancel = &cancel_};
  Slist headers;
  // Compressed bodies would make ranges and sizes meaningless.
  append(headers, "Accept-Encoding: identity");
  if (!request.bearer_token.empty())
    append(headers, "Authorization: Bearer " + request.bearer_token);
  handle_->set_request(request, options_);
  handle_->set(CURLOPT_HTTPHEADER, headers.get());
  handle_->set(CURLOPT_HEADERDATA, &transfer);
  handle_->set(CURLOPT_WRITEDATA, &transfer);
  handle_->set(CURLOPT_XFERINFODATA, &transfer);
  handle_->fault[0] = '\0';
  const CURLcode code = curl_easy_perform(handle_->curl);
  handle_->set(CURLOPT_HTTPHEADER, static_cast<curl_slist*>(nullptr));

  HttpOutcome outcome;
  outcome.head = std::move(transfer.head);
  if (code == CURLE_OK) {
    outcome.end = TransferEnd::kComplete;
  } else if (transfer.is_stopped) {
    outcome.end = TransferEnd::kStopped;
  } else if (code == CURLE_ABORTED_BY_CALLBACK) {
    outcome.end = TransferEnd::kCancelled;
  } else {
    outcome.end = is_permanent(code) ? TransferEnd::kRefused : TransferEnd::kFailed;
    outcome.fault = handle_->fault[0] != '\0' ? handle_->fault : curl_easy_strerror(code);
  }
  return outcome;
}

}  // namespace nibble::hub

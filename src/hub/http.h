// One HTTP GET over libcurl: no redirects, no retries, no policy but time limits. Every byte of an
// answer goes to a sink; nothing is buffered here. The only place that knows libcurl's transfers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hub/cancel.h"
#include "hub/config.h"
#include "hub/url.h"

namespace nibble::hub {

// Half-open: [begin, end).
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
};

struct HttpRequest {
  Url url;
  std::string bearer_token;  // empty: no Authorization header
  std::optional<ByteRange> range;
};

// Status line and headers of an answer.
class HttpHead final {
 public:
  int32_t status = 0;  // 0: no answer arrived

  // The value of the last header called `name` (lower case), or nullptr.
  const std::string* find(std::string_view name) const;
  std::optional<int64_t> content_length() const;
  void add(std::string name, std::string value);

 private:
  std::vector<std::pair<std::string, std::string>> headers_;  // bounded by libcurl's own limits
};

// Seconds since 1970 of an HTTP date.
std::optional<int64_t> parse_http_date(const std::string& text);

// Takes the next bytes of a body; false ends the transfer.
using BodySink = std::function<bool(const HttpHead& head, std::span<const std::byte> bytes)>;

enum class TransferEnd {
  kComplete,
  kStopped,    // by the sink
  kCancelled,  // by Cancel
  kFailed,     // the network or the peer; another attempt may work
  kRefused,    // another attempt cannot work: certificate, protocol, our own set-up
};

struct HttpOutcome {
  HttpHead head;
  TransferEnd end = TransferEnd::kFailed;
  std::string fault;  // libcurl's words, for kFailed and kRefused
};

// A connection that is kept open between requests to the same host. One thread at a time.
class HttpConnection final {
 public:
  // `cancel` must outlive this.
  HttpConnection(const TransportOptions& options, const Cancel& cancel);
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;
  ~HttpConnection();

  HttpOutcome get(const HttpRequest& request, const BodySink& sink);

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
  const TransportOptions options_;
  const Cancel& cancel_;
};

}  // namespace nibble::hub

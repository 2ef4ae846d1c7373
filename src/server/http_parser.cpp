#include "server/http_parser.h"

#include <algorithm>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <optional>
#include <utility>

#include "server/chunked_body.h"

namespace nibble::server {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;

std::string_view to_view(boost::beast::string_view text) { return {text.data(), text.size()}; }

struct Fault {
  int status = 0;
  const char* text = "";
};

Fault describe(error_code code) {
  if (code == http::error::header_limit) return {431, "the request header is too large"};
  if (code == http::error::body_limit) return {413, "the request body is too large"};
  if (code == http::error::bad_version) return {505, "only HTTP/1.0 and HTTP/1.1 are spoken here"};
  if (code == http::error::bad_content_length || code == http::error::multiple_content_length) {
    return {400, "bad Content-Length"};
  }
  if (code == http::error::bad_transfer_encoding) return {400, "bad Transfer-Encoding"};
  return {400, "malformed HTTP request"};
}

}  // namespace

// Beast reads heads only: its reader of chunked bodies (1.81) stops the process on some malformed
// trailers.
class HttpParser::Impl final {
 public:
  explicit Impl(const HttpLimits& limits)
      : header_bytes_max_(limits.header_bytes), body_bytes_max_(limits.body_bytes) {
    parser_.header_limit(limits.header_bytes);
    parser_.body_limit(limits.body_bytes);
  }

  Progress feed(std::string_view bytes) {
    if (fault_.status != 0) return {State::kFault, 0};
    if (!is_head_reported_) return feed_head(bytes);
    return chunks_ ? feed_chunks(bytes) : feed_plain(bytes);
  }

  const HttpRequest& request() const { return request_; }
  HttpRequest take_request() { return std::move(request_); }
  bool expects_continue() const { return expects_continue_; }
  const Fault& fault() const { return fault_; }

 private:
  // Beast gets exactly the bytes of a head, at once, so that what it makes of them depends neither
  // on how they were split nor on what follows. `bytes` begins where the last call's did.
  Progress feed_head(std::string_view bytes) {
    constexpr std::string_view kHeadEnd = "\r\n\r\n";
    const size_t found = bytes.substr(0, header_bytes_max_).find(kHeadEnd, num_searched_);
    if (found == std::string_view::npos) {
      num_searched_ = bytes.size() - std::min(bytes.size(), kHeadEnd.size() - 1);
      if (bytes.size() < header_bytes_max_) return {};
      return fail(http::error::header_limit, {});
    }
    error_code code;
    Progress progress;
    progress.num_used =
        parser_.put(boost::asio::const_buffer(bytes.data(), found + kHeadEnd.size()), code);
    if (code) return fail(code, progress);  // need_more as well: the head is complete
    return report_head(progress);
  }

  // Beast takes any list of codings that ends in "chunked", in HTTP/1.0 too (RFC 9112, 6.1).
  Fault transfer_encoding_fault() const {
    const std::string* coding = request_.header("transfer-encoding");
    if (coding == nullptr) return {};
    if (!request_.is_http11) return {400, "Transfer-Encoding in an HTTP/1.0 request"};
    if (equals_ignoring_case(*coding, "chunked")) return {};
    return {501, "the only Transfer-Encoding that is understood is chunked"};
  }

  Progress report_head(Progress progress) {
    is_head_reported_ = true;
    const auto& message = parser_.get();
    request_.method = std::string(to_view(message.method_string()));
    request_.target = std::string(to_view(message.target()));
    request_.path = request_.target.substr(0, request_.target.find('?'));
    request_.is_http11 = message.version() == 11;
    request_.keep_alive = parser_.keep_alive();
    for (const auto& field : message) {
      request_.headers.push_back(
          {std::string(to_view(field.name_string())), std::string(to_view(field.value()))});
    }
    if (parser_.chunked()) chunks_.emplace(body_bytes_max_);
    num_body_bytes_left_ = parser_.content_length().value_or(0);
    const std::string* expect = request_.header("expect");
    expects_continue_ = expect != nullptr && equals_ignoring_case(*expect, "100-continue") &&
                        request_.is_http11 && (chunks_ || num_body_bytes_left_ > 0);
    fault_ = transfer_encoding_fault();
    progress.state = fault_.status == 0 ? State::kHead : State::kFault;
    return progress;
  }

  // A body of known length; requests without one have length 0.
  Progress feed_plain(std::string_view bytes) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(num_body_bytes_left_, bytes.size()));
    request_.body.append(bytes.substr(0, count));
    num_body_bytes_left_ -= count;
    return {num_body_bytes_left_ == 0 ? State::kDone : State::kNeedMore, count};
  }

  Progress feed_chunks(std::string_view bytes) {
    const ChunkedBody::Progress progress = chunks_->feed(bytes, request_.body);
    switch (progress.state) {
      case ChunkedBody::State::kNeedMore:
        return {State::kNeedMore, progress.num_used};
      case ChunkedBody::State::kDone:
        return {State::kDone, progress.num_used};
      case ChunkedBody::State::kTooLarge:
        return fail(http::error::body_limit, {State::kFault, progress.num_used});
      case ChunkedBody::State::kMalformed:
        break;
    }
    fault_ = {400, "bad chunked encoding"};
    return {State::kFault, progress.num_used};
  }

  Progress fail(error_code code, Progress progress) {
    fault_ = describe(code);
    progress.state = State::kFault;
    return progress;
  }

  const size_t header_bytes_max_;
  const uint64_t body_bytes_max_;
  size_t num_searched_ = 0;  // bytes of the head that hold no end of it
  http::request_parser<http::empty_body> parser_;
  HttpRequest request_;
  uint64_t num_body_bytes_left_ = 0;   // of a body of known length
  std::optional<ChunkedBody> chunks_;  // of a chunked one
  bool is_head_reported_ = false;
  bool expects_continue_ = false;
  Fault fault_;
};

HttpParser::HttpParser(const HttpLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
HttpParser::~HttpParser() = default;
HttpParser::HttpParser(HttpParser&&) noexcept = default;
HttpParser& HttpParser::operator=(HttpParser&&) noexcept = default;

HttpParser::Progress HttpParser::feed(std::string_view bytes) { return impl_->feed(bytes); }
const HttpRequest& HttpParser::request() const { return impl_->request(); }
HttpRequest HttpParser::take_request() { return impl_->take_request(); }
bool HttpParser::expects_continue() const { return impl_->expects_continue(); }
int HttpParser::fault_status() const { return impl_->fault().status; }
const char* HttpParser::fault_text() const { return impl_->fault().text; }

}  // namespace nibble::server

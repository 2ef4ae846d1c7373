#include "server/chunked_body.h"

#include <algorithm>

namespace nibble::server {
namespace {

// A size of more digits than a 64-bit number has is refused, leading zeros included.
constexpr int32_t kMaxSizeDigits = 16;
// Of all extensions and trailer fields of a body; nobody needs any.
constexpr size_t kMaxOverheadBytes = 8 << 10;

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_token_char(char c) {
  constexpr std::string_view kPunctuation = "!#$%&'*+-.^_`|~";
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         kPunctuation.find(c) != std::string_view::npos;
}

// Of field values and extensions; bytes above 127 are allowed there (obs-text).
bool is_text_char(char c) { return c == '\t' || (c >= ' ' && c != '\x7f') || (c & '\x80') != 0; }

}  // namespace

ChunkedBody::Progress ChunkedBody::feed(std::string_view bytes, std::string& body) {
  std::string_view rest = bytes;
  State state = expect_ == Expect::kNothing ? State::kDone : State::kNeedMore;
  while (state == State::kNeedMore && !rest.empty()) {
    if (expect_ == Expect::kData) {
      state = take_data(rest, body);
      continue;
    }
    state = take(rest.front());
    rest.remove_prefix(1);
  }
  return {state, bytes.size() - rest.size()};
}

ChunkedBody::State ChunkedBody::take_data(std::string_view& rest, std::string& body) {
  const auto count = static_cast<size_t>(std::min<uint64_t>(chunk_bytes_, rest.size()));
  body.append(rest.substr(0, count));
  rest.remove_prefix(count);
  chunk_bytes_ -= count;
  if (chunk_bytes_ == 0) expect_ = Expect::kDataCr;
  return State::kNeedMore;
}

ChunkedBody::State ChunkedBody::take(char c) {
  switch (expect_) {
    case Expect::kSize:
      return take_size(c);
    case Expect::kExtension:
      if (c == '\r') {
        expect_ = Expect::kSizeLf;
        return State::kNeedMore;
      }
      return is_text_char(c) && count_overhead() ? State::kNeedMore : State::kMalformed;
    case Expect::kSizeLf:
      if (chunk_bytes_ > body_bytes_max_ - num_body_bytes_) return State::kTooLarge;
      num_body_bytes_ += chunk_bytes_;
      num_digits_ = 0;
      return expect_lf(c, chunk_bytes_ == 0 ? Expect::kTrailerStart : Expect::kData);
    case Expect::kDataCr:
      expect_ = Expect::kDataLf;
      return c == '\r' ? State::kNeedMore : State::kMalformed;
    case Expect::kDataLf:
      return expect_lf(c, Expect::kSize);
    case Expect::kTrailerStart:
    case Expect::kTrailerName:
    case Expect::kTrailerValue:
      return take_trailer(c);
    case Expect::kTrailerLf:
      return expect_lf(c, Expect::kTrailerStart);
    case Expect::kFinalLf:
      expect_ = Expect::kNothing;
      return c == '\n' ? State::kDone : State::kMalformed;
    case Expect::kData:
    case Expect::kNothing:
      break;
  }
  return State::kMalformed;
}

ChunkedBody::State ChunkedBody::take_size(char c) {
  const int digit = hex_value(c);
  if (digit >= 0) {
    if (++num_digits_ > kMaxSizeDigits) return State::kMalformed;
    chunk_bytes_ = chunk_bytes_ * 16 + static_cast<uint64_t>(digit);
    return State::kNeedMore;
  }
  if (num_digits_ == 0) return State::kMalformed;
  if (c == '\r') {
    expect_ = Expect::kSizeLf;
    return State::kNeedMore;
  }
  expect_ = Expect::kExtension;
  return c == ';' || c == ' ' || c == '\t' ? State::kNeedMore : State::kMalformed;
}

ChunkedBody::State ChunkedBody::take_trailer(char c) {
  if (!count_overhead()) return State::kMalformed;
  if (expect_ == Expect::kTrailerValue) {
    if (c == '\r') expect_ = Expect::kTrailerLf;
    return c == '\r' || is_text_char(c) ? State::kNeedMore : State::kMalformed;
  }
  const bool is_start = expect_ == Expect::kTrailerStart;
  if (is_start && c == '\r') {
    expect_ = Expect::kFinalLf;
    return State::kNeedMore;
  }
  if (!is_start && c == ':') {
    expect_ = Expect::kTrailerValue;
    return State::kNeedMore;
  }
  expect_ = Expect::kTrailerName;
  return is_token_char(c) ? State::kNeedMore : State::kMalformed;
}

ChunkedBody::State ChunkedBody::expect_lf(char c, Expect next) {
  expect_ = next;
  return c == '\n' ? State::kNeedMore : State::kMalformed;
}

bool ChunkedBody::count_overhead() { return ++num_overhead_bytes_ <= kMaxOverheadBytes; }

}  // namespace nibble::server

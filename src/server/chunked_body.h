// Decodes chunked bodies (RFC 9112, section 7.1) strictly: CRLF only, no bare LF, no folded
// trailers. Judges byte by byte, so that the verdict does not depend on how a body was split.
// Pure: no sockets, no clocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::server {

class ChunkedBody final {
 public:
  enum class State {
    kNeedMore,
    kDone,
    kMalformed,
    kTooLarge,  // more than body_bytes_max of data
  };
  struct Progress {
    State state = State::kNeedMore;
    size_t num_used = 0;
  };

  explicit ChunkedBody(uint64_t body_bytes_max) : body_bytes_max_(body_bytes_max) {}

  // Uses the front of `bytes` and appends the data in it to `body`; never reads past the end of
  // the body. Extensions and trailer fields are checked and dropped.
  Progress feed(std::string_view bytes, std::string& body);

 private:
  enum class Expect {
    kSize,
    kExtension,
    kSizeLf,
    kData,
    kDataCr,
    kDataLf,
    kTrailerStart,  // of a line: a field's name, or the CR that ends the body
    kTrailerName,
    kTrailerValue,
    kTrailerLf,
    kFinalLf,
    kNothing,
  };

  State take_data(std::string_view& rest, std::string& body);
  State take(char c);
  State take_size(char c);
  State take_trailer(char c);
  State expect_lf(char c, Expect next);
  bool count_overhead();

  const uint64_t body_bytes_max_;
  uint64_t num_body_bytes_ = 0;  // announced by sizes so far
  uint64_t chunk_bytes_ = 0;     // of the current chunk: announced, then still to come
  int32_t num_digits_ = 0;
  size_t num_overhead_bytes_ = 0;  // of extensions and trailers
  Expect expect_ = Expect::kSize;
};

}  // namespace nibble::server

// What a server under test may answer: a stream of events, or one object. The first byte says
// where the bytes are cut in two; the cut must not matter.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/clock.h"
#include "bench_client/reply.h"

namespace nibble::bench_client {
namespace {

Reply read(bool is_stream, std::string_view bytes, size_t cut) {
  ReplyReader reader(is_stream);
  if (reader.feed(bytes.substr(0, cut), TimePoint())) reader.feed(bytes.substr(cut), TimePoint());
  return reader.finish(TimePoint());
}

void check_equal(const Reply& a, const Reply& b) {
  CHECK(a.text == b.text && a.finish_reason == b.finish_reason);
  CHECK(a.token_times.size() == b.token_times.size());
  CHECK(a.completion_tokens == b.completion_tokens && a.prompt_tokens == b.prompt_tokens);
  CHECK(a.failure.has_value() == b.failure.has_value());
  CHECK(!a.failure || a.failure->kind == b.failure->kind);
}

}  // namespace
}  // namespace nibble::bench_client

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble::bench_client;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t cut = bytes.size() * data[0] / 256;
  for (const bool is_stream : {true, false}) {
    check_equal(read(is_stream, bytes, 0), read(is_stream, bytes, cut));
  }
  static_cast<void>(error_message(bytes));
  return 0;
}

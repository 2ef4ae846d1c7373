// HTTP requests: never a crash, never more bytes used than given, and the same requests and faults
// however the bytes are split.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "server/http_parser.h"

namespace {

using nibble::server::HttpLimits;
using nibble::server::HttpParser;

constexpr HttpLimits kLimits = {.header_bytes = 2048, .body_bytes = 4096};

// The requests that a connection would hand over before its end or a fault, as text; then the
// fault.
std::vector<std::string> parse_all(std::string_view bytes, size_t step) {
  std::vector<std::string> requests;
  HttpParser parser(kLimits);
  std::string input;
  while (true) {
    const HttpParser::Progress progress = parser.feed(input);
    CHECK(progress.num_used <= input.size());
    input.erase(0, progress.num_used);
    if (progress.state == HttpParser::State::kFault) {
      CHECK(parser.fault_status() >= 400);
      requests.push_back(parser.fault_text());
      return requests;
    }
    if (progress.state == HttpParser::State::kDone) {
      const auto request = parser.take_request();
      std::string text = request.method + " " + request.target + "\n";
      for (const auto& field : request.headers) text += field.name + ": " + field.value + "\n";
      requests.push_back(text + "\n" + request.body);
      parser = HttpParser(kLimits);
      if (input.empty() && bytes.empty()) return requests;
    }
    if (progress.state == HttpParser::State::kNeedMore) {
      if (bytes.empty()) return requests;
      input += bytes.substr(0, step);
      bytes.remove_prefix(std::min(step, bytes.size()));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const size_t step = data[0] + size_t{1};
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::vector<std::string> whole = parse_all(bytes, std::max<size_t>(bytes.size(), 1));
  const std::vector<std::string> pieces = parse_all(bytes, step);
  CHECK(pieces == whole) << "split at " << step;
  return 0;
}

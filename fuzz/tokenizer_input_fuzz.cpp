// Text as hostile input to the bundled vocabulary, against the oracles: pieces, merges, round trip,
// streaming. The first two bytes choose the range in which added tokens may match.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_testing.h"

namespace {

using namespace nibble::text;  // NOLINT: a program of one file

constexpr size_t kNaiveBytesMax = 512;  // the oracles are quadratic

struct Fixture {
  std::unique_ptr<Tokenizer> tokenizer;
  testing::NaiveBpe naive;
};

const Fixture& fixture() {
  static const Fixture instance = [] {
    const nibble::Path dir = nibble::Path(NIBBLE_SOURCE_DIR) / "models/tiny-v4";
    const std::string json = nibble::read_file(dir / "tokenizer.json", 1 << 20).value();
    const TokenizerSpec spec = parse_tokenizer_json(json, "tokenizer.json").value();
    return Fixture{load_tokenizer(dir).value(), testing::NaiveBpe(spec.byte_tokens, spec.merges)};
  }();
  return instance;
}

std::vector<int32_t> naive_encode(std::string_view text) {
  std::vector<int32_t> ids;
  for (const std::string& piece : testing::naive_pieces(text)) {
    const auto piece_ids = fixture().naive.encode(piece);
    ids.insert(ids.end(), piece_ids.begin(), piece_ids.end());
  }
  return ids;
}

void check_streaming(const std::vector<int32_t>& ids, const std::string& text) {
  Detokenizer detokenizer(*fixture().tokenizer, Detokenizer::Specials::kKeep);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string piece = detokenizer.push(id);
    CHECK(nibble::is_valid_utf8(piece));
    streamed += piece;
  }
  CHECK(streamed + detokenizer.flush() == text);
}

ByteRange chosen_range(uint8_t first, uint8_t second, size_t text_bytes) {
  const auto [low, high] = std::minmax(first, second);
  return {text_bytes * low / 255, text_bytes * high / 255};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data + 2), size - 2);
  const Tokenizer& tokenizer = *fixture().tokenizer;
  CHECK(tokenizer.encode(input, {}).ok() == nibble::is_valid_utf8(input));

  const std::string text = nibble::replace_invalid_utf8(input);
  const ByteRange range = chosen_range(data[0], data[1], text.size());
  const std::vector<int32_t> ids = tokenizer.encode(text, {&range, 1}).value();
  CHECK(tokenizer.decode(ids).value() == text);
  check_streaming(ids, text);

  const std::string_view prefix = std::string_view(text).substr(0, kNaiveBytesMax);
  const auto cut = static_cast<size_t>(nibble::incomplete_utf8_suffix(prefix));
  const std::string_view start = prefix.substr(0, prefix.size() - cut);
  CHECK(tokenizer.encode(start, {}).value() == naive_encode(start));
  return 0;
}

#include "text/tokenizer.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_json.h"

namespace nibble::text {
namespace {

constexpr int64_t kFileBytesMax = 64 << 20;
constexpr size_t kTextBytesMax = 64 << 20;  // bounds the merge's memory for text that is one piece

Result<void> check_text(std::string_view text) {
  if (text.size() > kTextBytesMax) {
    return invalid_argument(
        fmt::format("text of {} bytes, expected at most {}", text.size(), kTextBytesMax));
  }
  if (is_valid_utf8(text)) return {};
  size_t position = 0;
  for (Utf8Char c = decode_utf8(text); c.is_valid; c = decode_utf8(text.substr(position))) {
    position += static_cast<size_t>(c.num_bytes);
  }
  return invalid_argument(fmt::format("text is not valid UTF-8 at byte {}", position));
}

void check_ranges(std::string_view text, std::span<const ByteRange> ranges) {
  size_t position = 0;
  for (const ByteRange& range : ranges) {
    CHECK(position <= range.begin && range.begin <= range.end && range.end <= text.size())
        << "special range " << range.begin << ".." << range.end << " after " << position
        << ", text " << text.size();
    position = range.end;
  }
}

std::vector<AddedToken> select(const std::vector<AddedToken>& tokens, bool is_normalized) {
  std::vector<AddedToken> selected;
  for (const AddedToken& token : tokens) {
    if (token.is_normalized == is_normalized) selected.push_back(token);
  }
  return selected;
}

class ByteLevelBpeTokenizer final : public Tokenizer {
 public:
  explicit ByteLevelBpeTokenizer(TokenizerSpec spec)
      : bpe_(spec.byte_tokens, spec.merges, std::move(spec.token_bytes)),
        matchers_{AddedTokenMatcher(select(spec.added_tokens, false)),
                  AddedTokenMatcher(select(spec.added_tokens, true))},
        is_special_(bpe_.token_bytes().size()) {
    for (const AddedToken& token : spec.added_tokens) {
      added_ids_.emplace(token.content, token.id);
      is_special_[static_cast<size_t>(token.id)] = token.is_special;
    }
  }

  int32_t vocab_size() const override { return static_cast<int32_t>(bpe_.token_bytes().size()); }

  Result<std::vector<int32_t>> encode(std::string_view text,
                                      std::span<const ByteRange> special_ranges) const override {
    TRY(check_text(text));
    check_ranges(text, special_ranges);
    std::vector<AddedTokenMatcher::Match> matches;
    for (const ByteRange& range : special_ranges) find_added_tokens(text, range, 0, matches);

    std::vector<int32_t> ids;
    Bpe::Scratch scratch;
    size_t position = 0;
    for (const AddedTokenMatcher::Match& match : matches) {
      encode_plain(text.substr(position, match.range.begin - position), scratch, ids);
      ids.push_back(match.id);
      position = match.range.end;
    }
    encode_plain(text.substr(position), scratch, ids);
    return ids;
  }

  std::string_view token_bytes(int32_t id) const override {
    return has(id) ? std::string_view(bpe_.token_bytes()[static_cast<size_t>(id)])
                   : std::string_view();
  }

  bool is_special(int32_t id) const override {
    return has(id) && is_special_[static_cast<size_t>(id)];
  }

  std::optional<int32_t> added_token(std::string_view content) const override {
    const auto found = added_ids_.find(content);
    return found == added_ids_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  bool has(int32_t id) const { return id >= 0 && id < vocab_size(); }

  // Each matcher searches only what the ones before it left over.
  void find_added_tokens(std::string_view text,
                         ByteRange range,
                         size_t matcher,
                         std::vector<AddedTokenMatcher::Match>& matches) const {
    if (matcher == matchers_.size()) return;
    while (const auto match = matchers_[matcher].find(text, range)) {
      find_added_tokens(text, {range.begin, match->range.begin}, matcher + 1, matches);
      matches.push_back(*match);
      range.begin = match->range.end;
    }
    find_added_tokens(text, range, matcher + 1, matches);
  }

  void encode_plain(std::string_view text, Bpe::Scratch& scratch, std::vector<int32_t>& ids) const {
    PieceScanner pieces(text);
    for (std::string_view piece = pieces.next(); !piece.empty(); piece = pieces.next()) {
      bpe_.encode(piece, scratch, ids);
    }
  }

  Bpe bpe_;
  std::array<AddedTokenMatcher, 2> matchers_;  // not normalized, normalized
  std::map<std::string, int32_t, std::less<>> added_ids_;
  std::vector<bool> is_special_;
};

}  // namespace

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) {
      return invalid_argument(fmt::format("token id {}, expected 0 to {}", id, vocab_size() - 1));
    }
    bytes += token_bytes(id);
  }
  return replace_invalid_utf8(bytes);
}

Result<std::unique_ptr<Tokenizer>> parse_tokenizer(std::string_view tokenizer_json,
                                                   std::string_view file_name) {
  TRY_ASSIGN(TokenizerSpec spec, parse_tokenizer_json(tokenizer_json, file_name));
  return std::unique_ptr<Tokenizer>(std::make_unique<ByteLevelBpeTokenizer>(std::move(spec)));
}

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const Path& dir) {
  const Path path = dir / "tokenizer.json";
  TRY_ASSIGN(const std::string text, read_file(path, kFileBytesMax));
  return parse_tokenizer(text, path.string());
}

}  // namespace nibble::text

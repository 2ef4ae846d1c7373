#include "text/added_tokens.h"

#include <algorithm>

#include "base/check.h"

namespace nibble::text {

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::ranges::sort(tokens_, {}, &AddedToken::content);
  for (const AddedToken& token : tokens_) {
    CHECK(!token.content.empty() && token.content.size() <= kAddedTokenBytesMax);
    is_first_byte_[static_cast<uint8_t>(token.content[0])] = true;
  }
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(std::string_view text,
                                                                ByteRange range) const {
  for (size_t begin = range.begin; begin < range.end; ++begin) {
    if (!is_first_byte_[static_cast<uint8_t>(text[begin])]) continue;
    const AddedToken* token = longest_prefix(text.substr(begin, range.end - begin));
    if (token != nullptr) return Match{{begin, begin + token->content.size()}, token->id};
  }
  return std::nullopt;
}

// Narrows the sorted contents byte by byte to those that share the text's first `length` bytes.
const AddedToken* AddedTokenMatcher::longest_prefix(std::string_view text) const {
  const AddedToken* longest = nullptr;
  auto first = tokens_.begin();
  auto last = tokens_.end();
  for (size_t length = 0; first != last; ++length) {
    if (first->content.size() == length) {  // sorts before everything that continues it
      longest = &*first;
      ++first;
    }
    if (length == text.size()) break;
    const auto byte = static_cast<uint8_t>(text[length]);
    const auto byte_of = [length](const AddedToken& token) {
      return static_cast<uint8_t>(token.content[length]);
    };
    first = std::partition_point(first, last, [&](const auto& t) { return byte_of(t) < byte; });
    last = std::partition_point(first, last, [&](const auto& t) { return byte_of(t) == byte; });
  }
  return longest;
}

}  // namespace nibble::text

// Finds added tokens ("<think>", turn markers, ...) literally in text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace nibble::text {

struct AddedToken {
  std::string content;  // not empty
  int32_t id = -1;
  bool is_special = false;     // left out of text output unless asked for
  bool is_normalized = false;  // matched only in text that the other added tokens leave over
};

// Immutable. Contents are distinct and at most kAddedTokenBytesMax long, so that search is linear
// in the text.
class AddedTokenMatcher final {
 public:
  struct Match {
    ByteRange range;
    int32_t id = -1;
  };

  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // The leftmost added token that lies wholly inside `range` of `text`, the longest of several at
  // one place.
  std::optional<Match> find(std::string_view text, ByteRange range) const;

 private:
  const AddedToken* longest_prefix(std::string_view text) const;

  std::vector<AddedToken> tokens_;  // sorted by the bytes of their contents
  std::array<bool, 256> is_first_byte_{};
};

inline constexpr size_t kAddedTokenBytesMax = 1024;

}  // namespace nibble::text

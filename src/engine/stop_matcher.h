// Stop strings in streamed text, found across the borders of its pieces. Text that may yet turn out
// to begin a stop string is held back. The outcome does not depend on how the text is split.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::engine {

// Owner: one sequence. Linear in the text for each stop string, whatever the text (Knuth, Morris,
// Pratt). Stop strings are non-empty and valid UTF-8, so text is never held back inside a
// character.
class StopMatcher final {
 public:
  enum class MatchedText { kDrop, kKeep };

  explicit StopMatcher(const std::vector<std::string>& stops,
                       MatchedText matched_text = MatchedText::kDrop);

  // Returns the text that became certain. The stop string that ends first wins, the longest among
  // those that end together; what follows it is dropped, and nothing may be pushed after it.
  std::string push(std::string_view piece);
  // Releases what is held back; call once at the end of a text without a match.
  std::string flush();
  // Text in which stop strings do not count. Releases what is held back, too.
  std::string pass(std::string_view piece);

  // The stop string that was found, or null.
  const std::string* match() const;

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> borders;  // borders[i]: longest proper border of the first i bytes
    size_t num_matched = 0;       // bytes of `text` that end the text so far
  };
  static void advance(Pattern& pattern, char c);

  std::vector<Pattern> patterns_;
  MatchedText matched_text_;
  std::string held_;  // at most the longest stop string
  int32_t match_ = -1;
};

}  // namespace nibble::engine

// DeepSeek's three-stage pre-tokenizer: cuts text into the pieces inside which BPE may merge.
// tokenizer.json declares it as three Split regexes; here each is a scanner of linear cost.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace nibble::text {

// The regexes that PieceScanner implements, in order, exactly as tokenizer.json spells them.
inline constexpr size_t kNumPreTokenizerPatterns = 3;
extern const std::array<std::string_view, kNumPreTokenizerPatterns> kPreTokenizerPatterns;

// Walks over the pieces of a text. Each stage splits every piece of the stage before it, keeping
// both matches and the text between them, and never looks across an earlier border:
//   1. digits \p{N} in runs of at most three;   2. runs of CJK and kana;   3. words, punctuation,
//   white space.
// `text` must be valid UTF-8 and outlive the scanner. Pieces are not empty and concatenate to the
// text.
class PieceScanner final {
 public:
  explicit PieceScanner(std::string_view text) : text_(text) {}

  // The next piece; empty at the end of the text.
  std::string_view next();

 private:
  void start_segment();
  std::string_view take_until(size_t end);

  std::string_view text_;
  size_t position_ = 0;
  size_t segment_end_ = 0;  // end of the piece that stages 1 and 2 left
  size_t match_end_ = 0;    // above position_: a match of stage 3 that was found behind a gap
  bool is_number_ = false;  // the segment is a run of digits: stage 3 matches nowhere in it
};

}  // namespace nibble::text

// Streaming token ids to text that is valid UTF-8 in every piece.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace nibble::text {

// Owner: one sequence. Bytes of an unfinished UTF-8 sequence are held back until it completes or
// proves ill-formed.
class Detokenizer final {
 public:
  enum class Specials { kSkip, kKeep };

  // `visible_ids`: specials that kSkip keeps nevertheless, such as markup that is parsed later.
  explicit Detokenizer(const Tokenizer& tokenizer,
                       Specials specials = Specials::kSkip,
                       std::vector<int32_t> visible_ids = {});

  // The text that became certain with this token; often empty in the middle of a character.
  std::string push(int32_t id);
  // What is still held back, as U+FFFD; call once at the end.
  std::string flush();

 private:
  bool is_skipped(int32_t id) const;

  const Tokenizer& tokenizer_;
  Specials specials_;
  std::vector<int32_t> visible_ids_;  // few
  std::string pending_;               // at most 3 bytes
};

}  // namespace nibble::text

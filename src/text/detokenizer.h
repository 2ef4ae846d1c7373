// Streaming token ids to text that is valid UTF-8 in every piece.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace nibble::text {

// Owner: one sequence. Bytes of an unfinished UTF-8 sequence are held back until it completes or
// proves ill-formed.
class Detokenizer final {
 public:
  enum class Specials { kSkip, kKeep };

  explicit Detokenizer(const Tokenizer& tokenizer, Specials specials = Specials::kSkip);

  // The text that became certain with this token; often empty in the middle of a character.
  std::string push(int32_t id);
  // What is still held back, as U+FFFD; call once at the end.
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  Specials specials_;
  std::string pending_;  // at most 3 bytes
};

}  // namespace nibble::text

#include "text/detokenizer.h"

#include <utility>

#include "base/utf8.h"

namespace nibble::text {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, Specials specials)
    : tokenizer_(tokenizer), specials_(specials) {}

std::string Detokenizer::push(int32_t id) {
  if (specials_ == Specials::kSkip && tokenizer_.is_special(id)) return {};
  std::string bytes = std::exchange(pending_, {});
  bytes += tokenizer_.token_bytes(id);
  const size_t certain = bytes.size() - static_cast<size_t>(incomplete_utf8_suffix(bytes));
  pending_ = bytes.substr(certain);
  bytes.resize(certain);
  return replace_invalid_utf8(bytes);
}

std::string Detokenizer::flush() { return replace_invalid_utf8(std::exchange(pending_, {})); }

}  // namespace nibble::text

#include "text/detokenizer.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace nibble::text {

Detokenizer::Detokenizer(const Tokenizer& tokenizer,
                         Specials specials,
                         std::vector<int32_t> visible_ids)
    : tokenizer_(tokenizer), specials_(specials), visible_ids_(std::move(visible_ids)) {}

bool Detokenizer::is_skipped(int32_t id) const {
  if (specials_ == Specials::kKeep || !tokenizer_.is_special(id)) return false;
  return std::find(visible_ids_.begin(), visible_ids_.end(), id) == visible_ids_.end();
}

std::string Detokenizer::push(int32_t id) {
  if (is_skipped(id)) return {};
  std::string bytes = std::exchange(pending_, {});
  bytes += tokenizer_.token_bytes(id);
  const size_t certain = bytes.size() - static_cast<size_t>(incomplete_utf8_suffix(bytes));
  pending_ = bytes.substr(certain);
  bytes.resize(certain);
  return replace_invalid_utf8(bytes);
}

std::string Detokenizer::flush() { return replace_invalid_utf8(std::exchange(pending_, {})); }

}  // namespace nibble::text

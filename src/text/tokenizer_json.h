// Reads tokenizer.json and proves that it declares the one tokenizer we reproduce exactly:
// byte-level BPE with DeepSeek's pre-tokenizer. Anything else is refused by name. Format: the
// Hugging Face tokenizers library, version 1.0.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"

namespace nibble::text {

// Ids stay below this: four times the largest published vocabulary, and it bounds the tables that
// ids index.
inline constexpr int32_t kTokenIdLimit = 1 << 20;

struct TokenizerSpec {
  std::vector<std::string> token_bytes;  // by id, added tokens included; empty: no such token
  std::array<int32_t, 256> byte_tokens{};
  std::vector<Merge> merges;  // by rank
  std::vector<AddedToken> added_tokens;
};

// kInvalidArgument: damaged or contradictory. kUnsupported: a component we would not reproduce
// exactly. Messages name `file_name`, the JSON path, found and expected. Truncation, padding and
// the template that adds tokens around a sequence are settings of other programs' calls and have no
// effect here.
Result<TokenizerSpec> parse_tokenizer_json(std::string_view json, std::string_view file_name);

}  // namespace nibble::text

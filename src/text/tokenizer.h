// Text to token ids and back. One of the program's six virtual seams: byte-level BPE is the first
// implementation. Immutable after loading; safe to use from any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"

namespace nibble::text {

// A half-open range of bytes.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int32_t vocab_size() const = 0;  // largest id + 1

  // Encodes UTF-8 text. Added (special) tokens match only where they lie wholly inside one of
  // `special_ranges` (sorted, disjoint); elsewhere their text is ordinary text. kInvalidArgument:
  // ill-formed UTF-8, or more than 64 MiB.
  virtual Result<std::vector<int32_t>> encode(std::string_view text,
                                              std::span<const ByteRange> special_ranges) const = 0;

  // The bytes of one token: may be part of a UTF-8 sequence. Added tokens give their text.
  // Ids outside the vocabulary (or holes in it) give an empty view.
  virtual std::string_view token_bytes(int32_t id) const = 0;

  // True for added tokens that the file marks "special": skipped in text output unless asked for.
  virtual bool is_special(int32_t id) const = 0;

  // Id of an added token by its exact text.
  virtual std::optional<int32_t> added_token(std::string_view content) const = 0;

  // Everything may match: encode(text) with one range over the whole text.
  Result<std::vector<int32_t>> encode_with_specials(std::string_view text) const {
    const ByteRange all{0, text.size()};
    return encode(text, {&all, 1});
  }
  // Concatenated token bytes with ill-formed parts as U+FFFD. kInvalidArgument for ids outside the
  // vocabulary.
  Result<std::string> decode(std::span<const int32_t> ids) const;
};

// Loads DIR/tokenizer.json. kNotFound, kInvalidArgument (with file and JSON path) or kUnsupported
// (a component, such as a normaliser, that this implementation does not reproduce exactly).
Result<std::unique_ptr<Tokenizer>> load_tokenizer(const Path& dir);
Result<std::unique_ptr<Tokenizer>> parse_tokenizer(std::string_view tokenizer_json,
                                                   std::string_view file_name);

}  // namespace nibble::text

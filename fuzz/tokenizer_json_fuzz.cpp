// tokenizer.json as hostile input. The first byte chooses: 0, the rest is the file; otherwise the
// rest edits a valid small file, so that mutations reach past the JSON parser.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "text/tokenizer.h"
#include "text/tokenizer_testing.h"

namespace {

using nibble::text::Tokenizer;

std::string_view take(std::string_view& input, size_t size) {
  const std::string_view head = input.substr(0, size);
  input.remove_prefix(head.size());
  return head;
}

size_t take_byte(std::string_view& input) {
  const std::string_view head = take(input, 1);
  return head.empty() ? 0 : static_cast<uint8_t>(head[0]);
}

// Each edit is: offset (2 bytes), bytes to delete (1), bytes to insert (1), the inserted bytes.
std::string edited_file(std::string_view input) {
  static const std::string valid_file =
      nibble::json::dump(nibble::text::testing::minimal_tokenizer(), nibble::json::Style::kCompact);
  std::string file = valid_file;
  while (!input.empty()) {
    const size_t high = take_byte(input);
    const size_t offset = (high * 256 + take_byte(input)) % (file.size() + 1);
    const size_t num_deleted = take_byte(input);
    const size_t num_inserted = take_byte(input);
    file.replace(offset, num_deleted, take(input, num_inserted));
  }
  return file;
}

// A file that loads gives a tokenizer that works.
void exercise(const Tokenizer& tokenizer) {
  const std::string text = "abababab <s>> 123 \xE4\xB8\xAD\xE6\x96\x87\r\n  <n>";
  const auto ids = tokenizer.encode_with_specials(text);
  CHECK(ids.ok()) << ids.error().message;
  const auto decoded = tokenizer.decode(*ids);
  CHECK(decoded.ok() && *decoded == text);
  for (int32_t id = -1; id <= tokenizer.vocab_size(); ++id) tokenizer.token_bytes(id);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const bool is_whole_file = take_byte(input) == 0;
  const std::string file = is_whole_file ? std::string(input) : edited_file(input);
  const auto tokenizer = nibble::text::parse_tokenizer(file, "tokenizer.json");
  if (tokenizer.ok()) {
    exercise(**tokenizer);
  } else {
    CHECK(tokenizer.error().message.starts_with("tokenizer.json: "));
  }
  return 0;
}

#include <fmt/core.h>

#include <charconv>
#include <memory>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/id_arrays.h"
#include "text/tokenizer.h"

namespace nibble::cli {
namespace {

Result<std::vector<int32_t>> encode(const text::Tokenizer& tokenizer,
                                    std::string_view text,
                                    const TokenizeFlags& flags) {
  return flags.no_special ? tokenizer.encode(text, {}) : tokenizer.encode_with_specials(text);
}

Result<std::string> decode(const text::Tokenizer& tokenizer,
                           std::vector<int32_t> ids,
                           const TokenizeFlags& flags) {
  if (flags.no_special) {
    std::erase_if(ids, [&](int32_t id) { return tokenizer.is_special(id); });
  }
  return tokenizer.decode(ids);
}

Result<json::Value> convert(const text::Tokenizer& tokenizer,
                            const json::Value& element,
                            std::string_view what,
                            const TokenizeFlags& flags) {
  if (flags.decode) {
    TRY_ASSIGN(std::vector<int32_t> ids, ids_from_json(element, what));
    TRY_ASSIGN(std::string text, decode(tokenizer, std::move(ids), flags));
    return json::Value(std::move(text));
  }
  const std::string* text = element.as_string();
  if (text == nullptr) {
    return invalid_argument(fmt::format("{}: is {}, expected a string", what, element.kind_name()));
  }
  TRY_ASSIGN(const std::vector<int32_t> ids, encode(tokenizer, *text, flags));
  return ids_to_json(ids);
}

Result<std::string> convert_json(const text::Tokenizer& tokenizer,
                                 std::string_view input,
                                 const TokenizeFlags& flags) {
  TRY_ASSIGN(const json::Value document, parse_id_arrays(input, "standard input"));
  const json::Array* elements = document.as_array();
  if (elements == nullptr) {
    return invalid_argument(
        fmt::format("standard input: is {}, expected an array", document.kind_name()));
  }
  json::Array results;
  for (const json::Value& element : *elements) {
    const std::string what = fmt::format("standard input, element {}", results.size());
    TRY_ASSIGN(json::Value result, convert(tokenizer, element, what, flags));
    results.push_back(std::move(result));
  }
  return json::dump(results, json::Style::kPython) + '\n';
}

Result<std::vector<int32_t>> parse_plain_ids(std::string_view text) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (true) {
    while (at != end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == ',')) ++at;
    if (at == end) return ids;
    int32_t id = 0;
    const auto [next, fault] = std::from_chars(at, end, id);
    if (fault != std::errc()) {
      return invalid_argument(
          fmt::format("standard input: byte {} begins no token id", at - text.data()));
    }
    ids.push_back(id);
    at = next;
  }
}

Result<std::string> convert_plain(const text::Tokenizer& tokenizer,
                                  std::string_view input,
                                  const TokenizeFlags& flags) {
  if (flags.decode) {
    TRY_ASSIGN(std::vector<int32_t> ids, parse_plain_ids(input));
    return decode(tokenizer, std::move(ids), flags);
  }
  TRY_ASSIGN(const std::vector<int32_t> ids, encode(tokenizer, input, flags));
  std::string line;
  for (const int32_t id : ids) line += fmt::format("{}{}", line.empty() ? "" : " ", id);
  return line + '\n';
}

}  // namespace

Result<void> run_tokenize(const TokenizeFlags& flags) {
  TRY_ASSIGN(const std::unique_ptr<text::Tokenizer> tokenizer, text::load_tokenizer(flags.dir));
  TRY_ASSIGN(const std::string input, read_input(kIdArrayLimits.max_bytes));
  TRY_ASSIGN(const std::string output,
             flags.json ? convert_json(*tokenizer, input, flags)
                        : convert_plain(*tokenizer, input, flags));
  return write_output(output);
}

}  // namespace nibble::cli

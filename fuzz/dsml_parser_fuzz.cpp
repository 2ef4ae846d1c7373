// Generated text: every split gives the same message, completed calls carry JSON objects, and what
// was parsed renders to a text that parses to the same. Input: one byte of options, one byte of
// seed for the cuts, then the text.
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/chat_protocol.h"
#include "text/output_parser.h"

namespace {

using nibble::text::kDsmlToken;
using nibble::text::kEndOfSentence;
using nibble::text::kThinkClose;
using nibble::text::kThinkOpen;
using nibble::text::Message;
using nibble::text::OutputDelta;
using nibble::text::OutputEnd;
using nibble::text::OutputParser;
using nibble::text::Role;
using nibble::text::ThinkingMode;
using nibble::text::ToolCall;

struct Parsed {
  Message message;
  OutputEnd end = OutputEnd::kText;
  bool has_unfinished_call = false;
};

// Adds up deltas as a client does.
void add(Message& sum, const OutputDelta& delta) {
  if (sum.reasoning_content) *sum.reasoning_content += delta.reasoning;
  sum.content += delta.content;
  for (const auto& call : delta.tool_calls) {
    const auto index = static_cast<size_t>(call.index);
    CHECK(call.name.empty() == (index < sum.tool_calls.size()));
    CHECK(index <= sum.tool_calls.size());
    if (index == sum.tool_calls.size())
      sum.tool_calls.push_back({.id = {}, .name = call.name, .arguments = {}});
    sum.tool_calls[index].arguments += call.arguments;
  }
}

void check_equal(const Message& a, const Message& b) {
  CHECK(a.reasoning_content == b.reasoning_content);
  CHECK(a.content == b.content) << a.content << "\n--\n" << b.content;
  CHECK(a.tool_calls.size() == b.tool_calls.size());
  for (size_t i = 0; i < a.tool_calls.size(); ++i) {
    CHECK(a.tool_calls[i].name == b.tool_calls[i].name);
    CHECK(a.tool_calls[i].arguments == b.tool_calls[i].arguments)
        << a.tool_calls[i].arguments << "\n--\n"
        << b.tool_calls[i].arguments;
  }
}

// `max_piece` 0 feeds the text in one piece.
Parsed parse(std::string_view text,
             const OutputParser::Options& options,
             size_t max_piece,
             uint32_t seed) {
  OutputParser parser(options);
  Message sum;
  if (options.thinking == ThinkingMode::kThinking) sum.reasoning_content.emplace();
  std::minstd_rand random(seed + 1);
  while (!text.empty()) {
    const size_t size =
        max_piece == 0 ? text.size() : std::min<size_t>(text.size(), 1 + random() % max_piece);
    add(sum, parser.push(text.substr(0, size)));
    text.remove_prefix(size);
  }
  add(sum, parser.finish());
  check_equal(sum, parser.message());
  return {parser.message(), parser.end(), parser.has_unfinished_call()};
}

// The arguments as the encoder would print them; one level above the limit of a single value.
std::string normalised(const std::string& arguments) {
  const auto value = nibble::json::parse(arguments, {.max_depth = 80});
  CHECK(value.ok() && value->is_object()) << arguments;
  return nibble::json::dump(*value, nibble::json::Style::kPython);
}

bool has_markup(std::string_view text) {
  return text.find("<\xef") != std::string_view::npos ||
         text.find(kDsmlToken) != std::string_view::npos ||
         text.find("\\\" string=\\\"") != std::string_view::npos || !nibble::is_valid_utf8(text) ||
         text.starts_with(kThinkOpen) || text.starts_with(kThinkClose);
}

// Rendering is the inverse only of texts that hold no markup of their own.
bool can_round_trip(const Message& message) {
  if (has_markup(message.content) || has_markup(message.reasoning_content.value_or("")))
    return false;
  for (const ToolCall& call : message.tool_calls) {
    if (has_markup(call.arguments) || has_markup(call.name)) return false;
    if (!nibble::json::parse(call.arguments).ok()) return false;  // too deep by one level
  }
  return true;
}

void check_round_trip(Message message, ThinkingMode mode) {
  for (ToolCall& call : message.tool_calls) call.arguments = normalised(call.arguments);
  if (!can_round_trip(message)) return;
  const Message question{.role = Role::kUser, .content = "q"};
  const auto prompt = nibble::text::render_chat({question}, {.thinking = mode});
  const auto whole = nibble::text::render_chat({question, message}, {.thinking = mode});
  CHECK(prompt.ok() && whole.ok());
  CHECK(whole->text.starts_with(prompt->text) && whole->text.ends_with(kEndOfSentence));
  const size_t begin = prompt->text.size();
  const std::string generated =
      whole->text.substr(begin, whole->text.size() - kEndOfSentence.size() - begin);
  check_equal(parse(generated, {.thinking = mode}, 0, 0).message, message);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const OutputParser::Options options{
      .thinking = (data[0] & 1) != 0 ? ThinkingMode::kThinking : ThinkingMode::kChat,
      .parse_tool_calls = (data[0] & 2) == 0};
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const Parsed whole = parse(text, options, 0, 0);
  for (const size_t max_piece : {size_t{1}, size_t{4}, size_t{40}}) {
    const Parsed pieces = parse(text, options, max_piece, data[1]);
    check_equal(pieces.message, whole.message);
    CHECK(pieces.end == whole.end);
    CHECK(pieces.has_unfinished_call == whole.has_unfinished_call);
  }
  if (whole.has_unfinished_call || whole.end == OutputEnd::kInReasoning) return 0;
  check_round_trip(whole.message, options.thinking);
  return 0;
}

#include "text/output_parser.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/chat_protocol.h"

namespace nibble::text {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kNameEnd = "\">";
constexpr std::string_view kIsString = "true\">";
constexpr std::string_view kIsJson = "false\">";
constexpr size_t kMaxNewlinesBeforeBlock = 2;  // the encoder writes two

enum class Match { kNo, kPartly, kYes };

// kPartly: `text` ends before it could differ from `tag`.
Match match(std::string_view text, std::string_view tag) {
  if (text.starts_with(tag)) return Match::kYes;
  return tag.starts_with(text) ? Match::kPartly : Match::kNo;
}

// Length of the longest end of `text` that begins `tag` without completing it.
size_t partial_tag(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n) {
    if (text.ends_with(tag.substr(0, n))) return n;
  }
  return 0;
}

// Number of bytes at the end of `text` that may turn out to be part of `tag` or of a character.
size_t uncertain_end(std::string_view text, std::string_view tag) {
  const size_t n = partial_tag(text, tag);
  return n > 0 ? n : static_cast<size_t>(incomplete_utf8_suffix(text));
}

// Newlines at the end of `text` that would belong to a block behind it.
size_t newlines_before_block(std::string_view text) {
  size_t n = 0;
  while (n < std::min(text.size(), kMaxNewlinesBeforeBlock) && text[text.size() - 1 - n] == '\n') {
    ++n;
  }
  return n;
}

}  // namespace

OutputParser::OutputParser(const Options& options) : options_(options) {
  message_.role = Role::kAssistant;
  if (options_.thinking == ThinkingMode::kThinking) message_.reasoning_content.emplace();
}

OutputDelta OutputParser::push(std::string_view piece) {
  CHECK(!end_) << "push after finish";
  buffer_ += piece;
  while (step() == Progress::kAdvanced) {
  }
  return std::exchange(delta_, {});
}

OutputDelta OutputParser::finish() {
  CHECK(!end_) << "finished twice";
  if (state_ == State::kLead) leave_lead();
  switch (state_) {
    case State::kReasoning:
      emit_reasoning(buffer_.size());
      end_ = OutputEnd::kInReasoning;
      break;
    case State::kContent:
    case State::kAfterBlock:
      end_ = finish_content();
      break;
    case State::kVerbatim:
      emit_content(buffer_.size());
      end_ = OutputEnd::kText;
      break;
    default:
      end_ = OutputEnd::kCutToolCall;
      break;
  }
  return std::exchange(delta_, {});
}

OutputEnd OutputParser::end() const {
  CHECK(end_.has_value()) << "not finished";
  return *end_;
}

OutputParser::Progress OutputParser::step() {
  switch (state_) {
    case State::kLead:
      return read_lead();
    case State::kReasoning:
      return read_reasoning();
    case State::kContent:
      return read_content();
    case State::kVerbatim:
      return read_verbatim();
    case State::kBlock:
      return read_block();
    case State::kInvokeName:
      return read_invoke_name();
    case State::kInvokeBody:
      return read_invoke_body();
    case State::kParameterName:
      return read_parameter_name();
    case State::kParameterKind:
      return read_parameter_kind();
    case State::kStringValue:
      return read_string_value();
    case State::kJsonValue:
      return read_json_value();
    case State::kJsonBody:
      return read_json_body();
    case State::kAfterBlock:
      return read_after_block();
  }
  return Progress::kNeedsMore;
}

OutputParser::Progress OutputParser::read_lead() {
  const bool is_thinking = options_.thinking == ThinkingMode::kThinking;
  const std::string_view repeated_tag = is_thinking ? kThinkOpen : kThinkClose;
  const Match found = match(buffer_, repeated_tag);
  if (found == Match::kPartly) return Progress::kNeedsMore;
  if (found == Match::kYes) buffer_.erase(0, repeated_tag.size());
  leave_lead();
  return Progress::kAdvanced;
}

OutputParser::Progress OutputParser::read_reasoning() {
  const size_t at = buffer_.find(kThinkClose);
  if (at == std::string::npos) {
    emit_reasoning(buffer_.size() - uncertain_end(buffer_, kThinkClose));
    return Progress::kNeedsMore;
  }
  emit_reasoning(at);
  buffer_.erase(0, kThinkClose.size());
  state_ = content_state();
  return Progress::kAdvanced;
}

OutputParser::Progress OutputParser::read_content() {
  const size_t at = buffer_.find(kToolCallsOpen);
  if (at == std::string::npos) {
    const size_t certain = buffer_.size() - uncertain_end(buffer_, kToolCallsOpen);
    emit_content(certain - newlines_before_block(std::string_view(buffer_).substr(0, certain)));
    return Progress::kNeedsMore;
  }
  const size_t newlines = newlines_before_block(std::string_view(buffer_).substr(0, at));
  emit_content(at - newlines);
  return advance(newlines + kToolCallsOpen.size(), State::kBlock);
}

OutputParser::Progress OutputParser::read_verbatim() {
  emit_content(buffer_.size() - static_cast<size_t>(incomplete_utf8_suffix(buffer_)));
  return Progress::kNeedsMore;
}

OutputParser::Progress OutputParser::read_block() {
  skip_space();
  const Match invoke = match(rest(), kInvokeOpen);
  const Match close = match(rest(), kToolCallsClose);
  if (invoke == Match::kYes) return advance(kInvokeOpen.size(), State::kInvokeName);
  if (invoke == Match::kPartly || close == Match::kPartly) return Progress::kNeedsMore;
  if (close == Match::kNo || num_block_calls_ == 0) return give_back_block();
  advance(kToolCallsClose.size(), State::kAfterBlock);
  drop_consumed();
  num_block_calls_ = 0;
  has_closed_block_ = true;
  return Progress::kAdvanced;
}

OutputParser::Progress OutputParser::read_invoke_name() {
  const std::optional<size_t> end = search(kNameEnd);
  if (!end) return Progress::kNeedsMore;
  const std::string_view name = rest().substr(0, *end);
  // A DSML tag inside means that the quotes were never closed.
  if (name.empty() || name.find(kDsmlToken) != std::string_view::npos) return give_back_block();
  call_.name = name;
  return advance(*end + kNameEnd.size(), State::kInvokeBody);
}

OutputParser::Progress OutputParser::read_invoke_body() {
  skip_space();
  const Match parameter = match(rest(), kParameterOpen);
  const Match close = match(rest(), kInvokeClose);
  if (parameter == Match::kYes) return advance(kParameterOpen.size(), State::kParameterName);
  if (parameter == Match::kPartly || close == Match::kPartly) return Progress::kNeedsMore;
  if (close == Match::kYes) {
    advance(kInvokeClose.size(), State::kBlock);
    complete_call(call_.keys.empty() ? "{}" : "}");
    return Progress::kAdvanced;
  }
  if (call_.keys.empty() && rest().starts_with('{')) return advance(0, State::kJsonBody);
  return give_back_block();
}

OutputParser::Progress OutputParser::read_parameter_name() {
  const std::optional<size_t> end = search(kParameterKind);
  if (!end) return Progress::kNeedsMore;
  const std::string_view key = rest().substr(0, *end);
  if (key.find(kDsmlToken) != std::string_view::npos) return give_back_block();
  // Compared as quoted: ill-formed keys that differ may quote to the same text.
  std::string quoted;
  json::append_quoted(quoted, key);
  call_.pending += call_.keys.empty() ? "{" : ", ";
  call_.pending += quoted + ": ";
  const bool is_new = call_.keys.insert(std::move(quoted)).second;
  if (!is_new) return give_back_block();
  return advance(*end + kParameterKind.size(), State::kParameterKind);
}

OutputParser::Progress OutputParser::read_parameter_kind() {
  const Match string = match(rest(), kIsString);
  const Match json = match(rest(), kIsJson);
  if (string == Match::kPartly || json == Match::kPartly) return Progress::kNeedsMore;
  if (json == Match::kYes) return advance(kIsJson.size(), State::kJsonValue);
  if (string == Match::kNo) return give_back_block();
  emit_arguments("\"");
  return advance(kIsString.size(), State::kStringValue);
}

OutputParser::Progress OutputParser::read_string_value() {
  const size_t end = rest().find(kParameterClose);
  const bool is_complete = end != std::string_view::npos;
  const size_t certain = is_complete ? end : rest().size() - uncertain_end(rest(), kParameterClose);
  std::string escaped;
  json::append_escaped(escaped, rest().substr(0, certain));
  if (is_complete) escaped += '"';
  if (!escaped.empty()) emit_arguments(escaped);
  cursor_ += certain;
  if (!is_complete) return Progress::kNeedsMore;
  return advance(kParameterClose.size(), State::kInvokeBody);
}

OutputParser::Progress OutputParser::read_json_value() {
  const std::optional<size_t> end = search(kParameterClose);
  if (!end) return Progress::kNeedsMore;
  const std::string_view value = rest().substr(0, *end);
  if (!json::parse(value).ok()) return give_back_block();
  emit_arguments(value);
  return advance(*end + kParameterClose.size(), State::kInvokeBody);
}

OutputParser::Progress OutputParser::read_json_body() {
  const std::optional<size_t> end = search(kInvokeClose);
  if (!end) return Progress::kNeedsMore;
  std::string_view body = rest().substr(0, *end);
  body = body.substr(0, body.find_last_not_of(kSpace) + 1);
  const Result<json::Value> parsed = json::parse(body);
  if (!parsed.ok()) return give_back_block();
  const std::string arguments(body);
  advance(*end + kInvokeClose.size(), State::kBlock);
  complete_call(arguments);
  return Progress::kAdvanced;
}

OutputParser::Progress OutputParser::read_after_block() {
  skip_space();
  const Match found = match(rest(), kToolCallsOpen);
  if (found == Match::kPartly) return Progress::kNeedsMore;
  if (found == Match::kYes) return advance(kToolCallsOpen.size(), State::kBlock);
  cursor_ = 0;
  return advance(0, State::kContent);
}

void OutputParser::leave_lead() {
  state_ = options_.thinking == ThinkingMode::kThinking ? State::kReasoning : content_state();
}

OutputParser::State OutputParser::content_state() const {
  return options_.parse_tool_calls ? State::kContent : State::kVerbatim;
}

OutputParser::Progress OutputParser::advance(size_t num_bytes, State next) {
  cursor_ += num_bytes;
  state_ = next;
  return Progress::kAdvanced;
}

OutputParser::Progress OutputParser::give_back_block() {
  cursor_ = 0;
  state_ = State::kVerbatim;
  return Progress::kAdvanced;
}

void OutputParser::complete_call(std::string_view last_arguments) {
  emit_arguments(last_arguments);
  call_ = {};
  ++num_block_calls_;
  drop_consumed();
}

// Appends `text`, behind what is pending, to the arguments of the open call; announces it first if
// need be.
void OutputParser::emit_arguments(std::string_view text) {
  if (!call_.is_announced) {
    message_.tool_calls.push_back({.id = {}, .name = call_.name, .arguments = {}});
    call_.is_announced = true;
  }
  std::string& arguments = message_.tool_calls.back().arguments;
  const auto index = static_cast<int32_t>(message_.tool_calls.size()) - 1;
  if (delta_.tool_calls.empty() || delta_.tool_calls.back().index != index) {
    const bool is_first = arguments.empty();
    delta_.tool_calls.push_back({index, is_first ? call_.name : std::string(), {}});
  }
  for (const std::string_view part : {std::string_view(call_.pending), text}) {
    arguments += part;
    delta_.tool_calls.back().arguments += part;
  }
  call_.pending.clear();
}

void OutputParser::emit_reasoning(size_t num_bytes) {
  const std::string_view text = std::string_view(buffer_).substr(0, num_bytes);
  delta_.reasoning += text;
  *message_.reasoning_content += text;
  buffer_.erase(0, num_bytes);
}

void OutputParser::emit_content(size_t num_bytes) {
  const std::string_view text = std::string_view(buffer_).substr(0, num_bytes);
  delta_.content += text;
  message_.content += text;
  buffer_.erase(0, num_bytes);
}

// Only what could still begin a block is left in the buffer.
OutputEnd OutputParser::finish_content() {
  // A lone "<" is as likely text; one byte more appears only in the marker.
  const bool is_cut = partial_tag(buffer_, kToolCallsOpen) > 1;
  const bool is_space = buffer_.find_first_not_of(kSpace) == std::string::npos;
  const bool is_dropped = is_cut || (state_ == State::kAfterBlock && is_space);
  if (!is_dropped) emit_content(buffer_.size());
  if (is_cut) return OutputEnd::kCutToolCall;
  return has_closed_block_ ? OutputEnd::kToolCalls : OutputEnd::kText;
}

void OutputParser::skip_space() {
  cursor_ = std::min(buffer_.find_first_not_of(kSpace, cursor_), buffer_.size());
}

// Offset of the first `needle` in rest(). Repeated searches for the same needle read the buffer
// once.
std::optional<size_t> OutputParser::search(std::string_view needle) {
  const size_t at = buffer_.find(needle, std::max(cursor_, searched_));
  if (at == std::string::npos) {
    searched_ = buffer_.size() - std::min(buffer_.size(), needle.size() - 1);
    return std::nullopt;
  }
  searched_ = 0;
  return at - cursor_;
}

void OutputParser::drop_consumed() { buffer_.erase(0, std::exchange(cursor_, 0)); }

}  // namespace nibble::text

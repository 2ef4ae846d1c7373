#include "server/assistant_turn.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "server/http_message.h"
#include "text/chat_protocol.h"

namespace nibble::server {

bool continues_block(const TurnPiece& piece, TurnPiece::Kind block) {
  if (piece.kind == TurnPiece::Kind::kCallBegin) return false;
  if (piece.kind == TurnPiece::Kind::kCallArguments) return block == TurnPiece::Kind::kCallBegin;
  return block == piece.kind;
}

AssistantTurn::AssistantTurn(const text::OutputParser::Options& parser,
                             std::string_view call_id_prefix,
                             const text::Tokenizer& tokenizer)
    : parser_(parser),
      call_id_prefix_(call_id_prefix),
      think_end_id_(tokenizer.added_token(text::kThinkClose)),
      is_reasoning_(parser.thinking == text::ThinkingMode::kThinking) {}

std::vector<TurnPiece> AssistantTurn::add(engine::Output&& output) {
  CHECK(!finish_) << "output after the end";
  count_tokens(output);
  std::vector<TurnPiece> pieces;
  // Every tag ends with '>': cut there, a push ends at most one element, so that what a delta
  // groups by kind is also in the order of the text.
  for (std::string_view rest = output.text; !rest.empty();) {
    const size_t size = std::min(rest.find('>'), rest.size() - 1) + 1;
    append(parser_.push(rest.substr(0, size)), pieces);
    rest.remove_prefix(size);
  }
  if (!output.finish) return pieces;
  append(parser_.finish(), pieces);
  finish_ = std::move(output.finish);
  usage_.completion_tokens = finish_->usage.completion_tokens;
  usage_.cached_tokens = finish_->usage.cached_tokens;
  usage_.reasoning_tokens = std::min(usage_.reasoning_tokens, usage_.completion_tokens);
  return pieces;
}

void AssistantTurn::count_tokens(const engine::Output& output) {
  for (const int32_t id : output.token_ids) {
    ++usage_.completion_tokens;
    if (is_reasoning_ && think_end_id_ == id) is_reasoning_ = false;
    if (is_reasoning_) ++usage_.reasoning_tokens;
  }
}

void AssistantTurn::append(text::OutputDelta&& delta, std::vector<TurnPiece>& pieces) {
  using Kind = TurnPiece::Kind;
  const auto say = [&pieces](Kind kind, std::string text, int32_t call = -1) {
    if (text.empty()) return;
    const bool continues =
        !pieces.empty() && pieces.back().kind == kind && pieces.back().call == call;
    if (continues) {
      pieces.back().text += text;
    } else {
      pieces.push_back({.kind = kind, .text = std::move(text), .call = call, .call_id = {}});
    }
  };
  say(Kind::kReasoning, std::move(delta.reasoning));
  say(Kind::kContent, std::move(delta.content));
  for (text::OutputDelta::ToolCallDelta& call : delta.tool_calls) {
    if (!call.name.empty()) {
      call_ids_.push_back(make_id(call_id_prefix_));
      pieces.push_back({.kind = Kind::kCallBegin,
                        .text = std::move(call.name),
                        .call = call.index,
                        .call_id = call_ids_.back()});
    }
    say(Kind::kCallArguments, std::move(call.arguments), call.index);
  }
}

const engine::Finish& AssistantTurn::finish() const {
  CHECK(finish_);
  return *finish_;
}

// A call that was cut off is never reported as one that can be executed.
TurnEnd AssistantTurn::end() const {
  const text::OutputEnd end = parser_.end();
  if (end == text::OutputEnd::kToolCalls) return TurnEnd::kToolCalls;
  const bool is_cut =
      end == text::OutputEnd::kCutToolCall || finish().reason == engine::FinishReason::kLength;
  return is_cut ? TurnEnd::kLength : TurnEnd::kStop;
}

}  // namespace nibble::server

// What the model says in one choice of a chat: engine outputs to reasoning, content and tool calls
// with ids, in order, with the counts and the end. The chat protocols only render what it yields.
// Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "server/reply_common.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace nibble::server {

// The next thing that was said. Reasoning comes first; the pieces of a call follow its beginning
// before anything else does.
struct TurnPiece {
  enum class Kind { kReasoning, kContent, kCallBegin, kCallArguments };
  Kind kind = Kind::kContent;
  std::string text;     // of kCallBegin: the function's name
  int32_t call = -1;    // position among the turn's calls
  std::string call_id;  // of kCallBegin
};

// True when `piece` goes on with a block that began with a piece of kind `block`, rather than
// beginning one: reasoning, content, or a call with its arguments.
bool continues_block(const TurnPiece& piece, TurnPiece::Kind block);

// Why it ended, as every protocol distinguishes it.
enum class TurnEnd {
  kStop,       // the model was done, or a stop string or id matched
  kLength,     // cut by max_tokens or the context, inside a tool call too
  kToolCalls,  // at least one call, all of them complete
};

class AssistantTurn final {
 public:
  // `call_id_prefix` begins the ids of calls. The tokenizer must outlive the turn.
  AssistantTurn(const text::OutputParser::Options& parser,
                std::string_view call_id_prefix,
                const text::Tokenizer& tokenizer);

  // Outputs in order; the last carries `finish` with kStop or kLength.
  std::vector<TurnPiece> add(engine::Output&& output);

  bool is_finished() const { return finish_.has_value(); }
  // Once finished.
  const engine::Finish& finish() const;
  TurnEnd end() const;
  // The model stopped, or was cut, before it answered.
  bool ended_in_reasoning() const { return parser_.end() == text::OutputEnd::kInReasoning; }
  // The last call was cut or faulty: its arguments are no complete JSON.
  bool has_unfinished_call() const { return parser_.has_unfinished_call(); }

  // All that was said so far; the ids of its calls are in call_ids().
  const text::Message& message() const { return parser_.message(); }
  const std::vector<std::string>& call_ids() const { return call_ids_; }
  // completion_tokens, reasoning_tokens and cached_tokens.
  const UsageCounts& usage() const { return usage_; }

 private:
  void count_tokens(const engine::Output& output);
  void append(text::OutputDelta&& delta, std::vector<TurnPiece>& pieces);

  text::OutputParser parser_;
  std::string call_id_prefix_;
  std::optional<int32_t> think_end_id_;
  std::vector<std::string> call_ids_;  // one per call begun so far
  UsageCounts usage_;
  bool is_reasoning_ = false;  // tokens still count as reasoning
  std::optional<engine::Finish> finish_;
};

}  // namespace nibble::server

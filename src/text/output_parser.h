// The inverse of the chat encoder: generated text to reasoning, content and tool calls,
// incrementally. Grammar: section "tools and DSML calls" of the model's reference encoder, with the
// tolerances below.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/chat.h"

namespace nibble::text {

// What one more piece of generated text made certain. Markup never appears in any of the strings.
struct OutputDelta {
  std::string reasoning;
  std::string content;
  struct ToolCallDelta {
    int32_t index = 0;      // position among the message's calls
    std::string name;       // set in a call's first delta, then empty
    std::string arguments;  // the next piece of the JSON text of the arguments
  };
  std::vector<ToolCallDelta> tool_calls;  // at most one per call

  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

// How the generated text ended, seen from its markup.
enum class OutputEnd {
  kText,         // content; also when a malformed block was given back as content
  kToolCalls,    // at least one call, and every block was closed
  kCutToolCall,  // the text ended inside a block: the finish reason is "length", never "tool_calls"
  kInReasoning,  // the text ended before </think>
};

// Owner: one sequence. Takes UTF-8 in which special tokens are kept. Feeding the same text in any
// split, within characters too, gives the same concatenated deltas, and these equal message().
//
// Reasoning runs to the first </think>, whatever it contains. Content runs to the tool-call block,
// less up to two newlines before it (also none, also at the very start). A block holds invokes; an
// invoke holds parameters, or one JSON object as a whole; white space between elements is free.
// Text after a block is content again, and further blocks may follow; white space between blocks
// and after the last one is dropped. A tag that the prompt already ended with (</think> in chat
// mode, <think> in thinking mode) is dropped at the very start. A text that ends within the opening
// marker, past its "<", has been cut there: the fragment is dropped.
//
// A call is announced with its first certain argument. String values stream as they grow; other
// values follow in one piece, verbatim, once they are complete and valid JSON. A malformed block
// (bad or duplicate parameter, invalid JSON value, stray text, no call at all) is given back: the
// text from the faulty invoke on (from the block's start, with its newlines, if no invoke stands
// before the fault) and everything after it is content, verbatim. Calls completed before the fault
// stand. When the faulty call was announced already, it stays in the message with incomplete
// arguments, never closed to look valid; has_unfinished_call() tells.
class OutputParser final {
 public:
  struct Options {
    ThinkingMode thinking = ThinkingMode::kChat;  // kThinking: the text starts inside <think>
    bool parse_tool_calls = true;                 // false: DSML markup is ordinary content
  };
  explicit OutputParser(const Options& options);

  // Amortised cost: linear in the piece.
  OutputDelta push(std::string_view piece);
  // Call exactly once, at the end of generation; releases held-back text.
  OutputDelta finish();

  // Valid after finish().
  OutputEnd end() const;
  // The last of the message's calls was announced but not completed; a response that is not
  // streamed leaves it out unless it reports the cut.
  bool has_unfinished_call() const { return call_.is_announced; }
  // The whole message so far; after finish() it is final. Reasoning is present exactly in thinking
  // mode. Tool call ids are empty: the caller makes them.
  const Message& message() const { return message_; }

 private:
  enum class State {
    kLead,  // the very start
    kReasoning,
    kContent,
    kVerbatim,  // content without markup: a malformed block, or tool calls are off
    kBlock,     // between invokes
    kInvokeName,
    kInvokeBody,  // between parameters
    kParameterName,
    kParameterKind,  // behind string="
    kStringValue,
    kJsonValue,
    kJsonBody,    // one object instead of parameters
    kAfterBlock,  // white space behind a block
  };
  enum class Progress { kNeedsMore, kAdvanced };

  // The call whose invoke element is being read.
  struct OpenCall {
    std::string name;
    std::unordered_set<std::string> keys;
    std::string pending;  // argument text that waits for a first certain value
    bool is_announced = false;
  };

  Progress step();
  Progress read_lead();
  Progress read_reasoning();
  Progress read_content();
  Progress read_verbatim();
  Progress read_block();
  Progress read_invoke_name();
  Progress read_invoke_body();
  Progress read_parameter_name();
  Progress read_parameter_kind();
  Progress read_string_value();
  Progress read_json_value();
  Progress read_json_body();
  Progress read_after_block();

  void leave_lead();
  State content_state() const;
  Progress advance(size_t num_bytes, State next);
  Progress give_back_block();
  void complete_call(std::string_view last_arguments);
  void emit_arguments(std::string_view text);
  void emit_reasoning(size_t num_bytes);
  void emit_content(size_t num_bytes);
  OutputEnd finish_content();

  std::string_view rest() const { return std::string_view(buffer_).substr(cursor_); }
  void skip_space();
  std::optional<size_t> search(std::string_view needle);
  void drop_consumed();

  Options options_;
  State state_ = State::kLead;
  Message message_;
  OutputDelta delta_;  // since the last push
  // Text not yet final: what a fault would give back (at most one invoke), then what is unread.
  std::string buffer_;
  size_t cursor_ = 0;    // first unread byte of the buffer
  size_t searched_ = 0;  // the needle searched for does not begin before this byte
  OpenCall call_;
  size_t num_block_calls_ = 0;  // completed in the current block
  bool has_closed_block_ = false;
  std::optional<OutputEnd> end_;
};

}  // namespace nibble::text

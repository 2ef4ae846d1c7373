// The inverse of the chat encoder: generated text to reasoning, content and tool calls, incrementally.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat.h"

namespace nibble::text {

// What one more piece of generated text made certain. Markup never appears in any of the strings.
struct OutputDelta {
  std::string reasoning;
  std::string content;
  struct ToolCallDelta {
    int32_t index = 0;        // position among the message's calls
    std::string name;         // set in a call's first delta, then empty
    std::string arguments;    // the next piece of the JSON text of the arguments
  };
  std::vector<ToolCallDelta> tool_calls;

  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

// How the generated text ended, seen from its markup.
enum class OutputEnd {
  kText,          // content (or reasoning) only
  kToolCalls,     // at least one call and the block was closed
  kCutToolCall,   // the text ended inside a tool call block: the finish reason is "length", never "tool_calls"
  kInReasoning,   // the text ended before </think>
};

// Owner: one sequence. Feeding the same text in any split gives the same concatenated message. A malformed block
// (duplicate parameter, bad JSON value, stray text) is given back as content, never dropped, never half-parsed.
class OutputParser final {
 public:
  struct Options {
    ThinkingMode thinking = ThinkingMode::kChat;  // kThinking: the text starts inside <think>
    bool parse_tool_calls = true;                 // false: DSML markup is ordinary content
  };
  explicit OutputParser(const Options& options);

  OutputDelta push(std::string_view piece);
  // Call once at the end of generation; releases held-back text.
  OutputDelta finish();

  // Valid after finish().
  OutputEnd end() const;
  // The whole message so far; after finish() it is final. Tool call ids are empty: the caller makes them.
  const Message& message() const { return message_; }

 private:
  Message message_;
  Options options_;
};

}  // namespace nibble::text

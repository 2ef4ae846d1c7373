// Chat messages and their rendering to the DeepSeek-V4 prompt string. Source: encoding of
// DeepSeek-V4, sections "messages to prompt", "tools and DSML calls" and "reasoning effort" of the
// model's reference encoder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace nibble::text {

enum class Role { kSystem, kDeveloper, kUser, kAssistant, kTool, kLatestReminder };

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // the JSON text of the arguments object, as the API carries it
};

// One part of list-valued content. The encoder joins parts by an empty line; a server that wants
// them concatenated does so beforehand. Types other than "text" are rendered as `[Unsupported
// TYPE]`, as the reference does.
struct ContentPart {
  std::string type;
  std::string text;
};

struct Message {
  Role role = Role::kUser;
  std::string content{};             // null content renders as empty
  std::vector<ContentPart> parts{};  // list-valued content; replaces `content` when not empty
  std::optional<std::string> reasoning_content{};
  std::vector<ToolCall> tool_calls{};            // assistant
  std::string tool_call_id{};                    // tool
  json::Array tools{};                           // system or developer: the bare `function` objects
  std::optional<json::Value> response_format{};  // system or developer
  std::string task{};        // internal tasks of the encoder, e.g. "action"; usually empty
  bool without_eos = false;  // assistant prefix to be continued
};

enum class ThinkingMode { kChat, kThinking };
enum class Effort { kLow, kHigh, kMax };
// The effort prefixes moved between checkpoint generations: April has {high: none, max: A}, later
// ones {low: none, high: A, max: B}.
enum class Generation { kApril, kJuly };
// The effort that writes no prefix: plain thinking.
constexpr Effort plain_effort(Generation generation) {
  return generation == Generation::kApril ? Effort::kHigh : Effort::kLow;
}

struct RenderOptions {
  ThinkingMode thinking = ThinkingMode::kChat;
  bool drop_thinking = true;  // forced off when any message has tools; no effect in chat mode
  Effort effort = Effort::kHigh;
  Generation generation = Generation::kApril;
  bool add_bos = true;
};

// The prompt and the byte ranges in which special tokens may match: everything the encoder itself
// wrote. Everything a client supplied (contents, reasoning and call values of the history, schemas)
// lies outside of them, so it cannot inject turns, whatever it spells.
struct Prompt {
  std::string text;
  std::vector<ByteRange> special_ranges;
};

// Adjacent user and tool messages fold into one user turn, its tool results in the order of the
// latest calls. In thinking mode with `drop_thinking`, everything before the last user or developer
// message looks as in chat mode. The effort prefix is written with and without BOS. Linear in the
// size of the messages. kInvalidArgument, naming messages[i] in `message` and `param`, for what
// would be lost or ambiguous: an empty list, a call without a name, tools or calls on the wrong
// role, a tool that is no object, an unknown task.
Result<Prompt> render_chat(const std::vector<Message>& messages, const RenderOptions& options);

// The prompt as token ids. kUnsupported where the tokenizer has no token of its own for a marker of
// the format: spelled out in pieces, it would be text that the model was not trained on.
Result<std::vector<int32_t>> encode_prompt(const Prompt& prompt, const Tokenizer& tokenizer);

}  // namespace nibble::text

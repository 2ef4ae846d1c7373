// The body of POST /v1/chat/completions: read, checked, rendered, encoded. Pure functions; any
// thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "server/generation_fields.h"
#include "server/output_constraint.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace nibble::server {

struct ChatRequest {
  GenerationFields fields;
  std::vector<text::Message> messages;  // tools attached
  text::RenderOptions render;
  OutputConstraint constraint;
  bool parse_tool_calls = false;
  bool include_reasoning = true;
  int64_t num_unknown_fields = 0;

  // The answer starts inside <think>: thinking mode, unless an assistant message is continued.
  bool starts_in_reasoning() const;
};

Result<ChatRequest> parse_chat_request(const json::Value& body, const ServedModel& model);

// The ids of the whole prompt. Only what the encoder wrote itself can become special tokens.
Result<std::vector<int32_t>> encode_chat(const ChatRequest& request,
                                         const text::Tokenizer& tokenizer);

}  // namespace nibble::server

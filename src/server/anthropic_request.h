// The bodies of POST /v1/messages and /v1/messages/count_tokens, Anthropic's protocol: read and
// checked, to the chat request that they mean. Pure functions; any thread.
#pragma once

#include "base/json.h"
#include "base/result.h"
#include "server/chat_request.h"
#include "server/generation_fields.h"

namespace nibble::server {

enum class AnthropicPurpose {
  kMessage,      // max_tokens is required
  kCountTokens,  // and has no meaning
};

// Blocks: text, thinking, tool_use and tool_result; redacted thinking of other servers is dropped,
// other kinds are kUnsupported. A last message of the assistant is continued. Server tools are
// kUnsupported. Params are paths such as "messages[2].content[0].tool_use_id".
Result<ChatRequest> parse_anthropic_request(const json::Value& body,
                                            const ServedModel& model,
                                            AnthropicPurpose purpose);

}  // namespace nibble::server

// The body of POST /v1/responses: read and checked, to the chat request that it means. Pure
// functions; any thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "server/chat_request.h"
#include "server/generation_fields.h"

namespace nibble::server {

struct ResponsesRequest {
  ChatRequest chat;
  json::Object settings;  // as the response repeats them: instructions, tools, text, ...
  json::Array items;      // the conversation up to here: those of earlier responses, then the input
  bool store = true;
  bool background = false;
  bool wants_encrypted_reasoning = false;
  std::vector<std::string> custom_tools;  // their names; the others are functions
  std::string note;  // what was left out of the request, for a header; often empty
};

// The items of an earlier response of the same client.
using FindItems = std::function<Result<json::Array>(const std::string& response_id)>;

// Tools: functions and custom tools; web searches are left out with a note, other hosted tools are
// kUnsupported. Params are paths such as "input[2].content[0].type".
Result<ResponsesRequest> parse_responses_request(const json::Value& body,
                                                 const ServedModel& model,
                                                 const FindItems& find_items);

}  // namespace nibble::server

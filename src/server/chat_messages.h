// The messages and tools of a chat request, from JSON to what the chat encoder renders.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/chat.h"

namespace nibble::server {

// Roles: system, developer (as system), user, assistant, tool, function (legacy, as tool),
// latest_reminder. Content is a string or text parts; reasoning of earlier turns may be called
// reasoning_content or reasoning. kInvalidArgument or kUnsupported (e.g. image parts) with the
// param, such as "messages[2].content[0].type".
// `continue_last`: the last message is the assistant's and goes on, as if it had "prefix": true.
Result<std::vector<text::Message>> read_messages(const json::Array& messages,
                                                 bool continue_last = false);

// The bare `function` objects of a `tools` array.
Result<json::Array> read_tools(const json::Array& tools);

// Names go into the markup of the prompt as they are: kInvalidArgument for quotes, angle brackets
// and control characters, and for names that are empty or very long.
Result<void> check_function_name(const std::string& name, std::string param);

// Gives `tools` to the first system message, which is made when there is none.
void attach_tools(std::vector<text::Message>& messages, json::Array tools);

}  // namespace nibble::server

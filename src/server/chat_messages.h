// The messages and tools of a chat request, from JSON to what the chat encoder renders, and the
// parts of them that the chat protocols share.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "server/field_reader.h"
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

// A kind of content part and its member that is text.
struct TextPart {
  std::string_view type;
  std::string_view key = "text";
};
// A string, or parts of these kinds; kUnsupported for parts of others.
Result<std::vector<std::string>> read_texts(const json::Value& content,
                                            const std::string& path,
                                            std::initializer_list<TextPart> kinds);

// A tool whose members are its own, to the bare `function` object: name, description, strict, and
// the schema of its arguments under `schema_key`.
Result<json::Object> read_flat_tool(FieldReader& reader, std::string_view schema_key);

// The assistant's message at the end of the conversation, which begins there if it has to.
text::Message& open_turn_of_assistant(std::vector<text::Message>& messages);

// Names go into the markup of the prompt as they are: kInvalidArgument for quotes, angle brackets
// and control characters, and for names that are empty or very long.
Result<void> check_function_name(const std::string& name, std::string param);

// Gives `tools` to the first system message, which is made when there is none.
void attach_tools(std::vector<text::Message>& messages, json::Array tools);

}  // namespace nibble::server

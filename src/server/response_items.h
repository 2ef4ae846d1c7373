// Items of the Responses API, of which a conversation consists: to messages for the model, and as
// lists for clients. Pure functions but for the ids that they make; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "server/field_reader.h"
#include "text/chat.h"

namespace nibble::server {

// Kinds: message (text), function_call, function_call_output, custom_tool_call,
// custom_tool_call_output and reasoning; others are kUnsupported. What the assistant said in one
// turn, an item each, becomes one message.
class ItemReader final {
 public:
  // Appends to `messages`, which must outlive it.
  explicit ItemReader(std::vector<text::Message>& messages) : messages_(messages) {}

  // `path` precedes the params of errors: "input[2]".
  Result<void> read(const json::Value& item, const std::string& path);
  // Goes on with a system message that is the last.
  void add_system(const std::string& text);

 private:
  Result<void> read_message(FieldReader& reader);
  Result<void> read_reasoning(FieldReader& reader);
  Result<void> read_call(FieldReader& reader);
  Result<void> read_custom_call(FieldReader& reader);
  Result<void> read_output(FieldReader& reader);
  bool is_assistants_turn() const;
  text::Message& assistant(bool begins_anew);

  std::vector<text::Message>& messages_;
};

// Reasoning in the form that clients carry opaquely from turn to turn ("encrypted_content"). It is
// marked as this server's, not encrypted: it is the client's own.
std::string opaque_reasoning(const std::string& reasoning);

// A custom tool takes free text: to the model it is a function with one string, its input.
// `input`: the schema of that string.
json::Object custom_tool_schema(json::Object input);
std::string custom_tool_arguments(const std::string& input);
// The input that the model wrote; arguments that are something else are the input themselves.
std::string custom_tool_input(const std::string& arguments);

// Gives an id to every item that has none.
void name_items(json::Array& items);

struct ItemPage {
  std::string after;  // the id of the item before the page; empty: from the start
  int32_t limit = 20;
  bool newest_first = true;
};
// {object, data, first_id, last_id, has_more}: items with ids, messages with their text as parts.
// kInvalidArgument with the param "after" for an id that no item has.
Result<json::Object> list_items(json::Array items, const ItemPage& page);

}  // namespace nibble::server

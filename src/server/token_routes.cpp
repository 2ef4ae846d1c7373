#include "server/token_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "server/chat_request.h"
#include "server/field_reader.h"

namespace nibble::server {
namespace {

Result<const json::Object*> as_object(const json::Value& body) {
  if (body.as_object() == nullptr) return wrong_type("body", "an object", body);
  return body.as_object();
}

// The check of every route: an absent name means the model there is.
Result<void> check_model(FieldReader& reader, const ServedModel& model) {
  std::optional<std::string> name;
  TRY(reader.read("model", name));
  const bool is_known =
      !name || std::find(model.names.begin(), model.names.end(), *name) != model.names.end();
  if (is_known) return {};
  return Error{Errc::kNotFound,
               fmt::format("this server has the model '{}' only", model.names.front()),
               "model_not_found",
               "model"};
}

Result<std::vector<int32_t>> encode_prompt(const std::string& prompt,
                                           bool add_special_tokens,
                                           const ServedModel& model,
                                           const text::Tokenizer& tokenizer) {
  TRY_ASSIGN(std::vector<int32_t> ids, tokenizer.encode_with_specials(prompt));
  const int32_t bos = model.completion_bos_id;
  const bool wants_bos = add_special_tokens && bos >= 0 && (ids.empty() || ids.front() != bos);
  if (wants_bos) ids.insert(ids.begin(), bos);
  return ids;
}

Result<std::vector<int32_t>> encode_messages(const json::Value& body,
                                             const ServedModel& model,
                                             const text::Tokenizer& tokenizer) {
  TRY_ASSIGN(const ChatRequest chat, parse_chat_request(body, model));
  return encode_chat(chat, tokenizer);
}

json::Array token_strings(const std::vector<int32_t>& ids, const text::Tokenizer& tokenizer) {
  json::Array strings;
  strings.reserve(ids.size());
  // Parts of a character are no text by themselves: they come out as U+FFFD.
  for (const int32_t id : ids) strings.emplace_back(tokenizer.decode({&id, 1}).value());
  return strings;
}

}  // namespace

Result<json::Object> tokenize(const json::Value& body,
                              const ServedModel& model,
                              const text::Tokenizer& tokenizer) {
  TRY_ASSIGN(const json::Object* fields, as_object(body));
  FieldReader reader(*fields);
  TRY(check_model(reader, model));
  std::optional<std::string> prompt;
  bool add_special_tokens = true;
  bool return_token_strs = false;
  TRY(reader.read("prompt", prompt));
  TRY(reader.read("add_special_tokens", add_special_tokens));
  TRY(reader.read("return_token_strs", return_token_strs));
  const bool has_messages = reader.any("messages") != nullptr;
  if (prompt.has_value() == has_messages) {
    return wrong_value("prompt", "expected either prompt or messages");
  }
  TRY_ASSIGN(const std::vector<int32_t> ids,
             prompt ? encode_prompt(*prompt, add_special_tokens, model, tokenizer)
                    : encode_messages(body, model, tokenizer));
  json::Array tokens(ids.begin(), ids.end());
  json::Object answer = json::make_object({{"tokens", std::move(tokens)},
                                           {"count", static_cast<int64_t>(ids.size())},
                                           {"max_model_len", model.max_context}});
  if (return_token_strs) answer.set("token_strs", token_strings(ids, tokenizer));
  return answer;
}

Result<json::Object> detokenize(const json::Value& body,
                                const ServedModel& model,
                                const text::Tokenizer& tokenizer) {
  TRY_ASSIGN(const json::Object* fields, as_object(body));
  FieldReader reader(*fields);
  TRY(check_model(reader, model));
  TRY_ASSIGN(const json::Array* tokens, reader.array("tokens"));
  if (tokens == nullptr) return wrong_value("tokens", "is missing");
  std::vector<int32_t> ids;
  ids.reserve(tokens->size());
  for (const json::Value& token : *tokens) {
    TRY_ASSIGN(const int64_t id, to_integer(token, "tokens", {0, model.vocab_size - 1}));
    ids.push_back(static_cast<int32_t>(id));
  }
  TRY_ASSIGN(std::string text, tokenizer.decode(ids));
  return json::make_object({{"prompt", text}, {"text", std::move(text)}});
}

}  // namespace nibble::server

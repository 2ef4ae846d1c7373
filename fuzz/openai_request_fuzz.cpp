// Bodies of completion requests: never a crash; what is accepted holds only ids and numbers that
// the engine may index with, and errors name what they are about.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "server/anthropic_request.h"
#include "server/chat_request.h"
#include "server/completion_request.h"
#include "server/responses_request.h"
#include "text/tokenizer.h"

namespace {

using nibble::Error;
using nibble::Result;
using nibble::server::AnthropicPurpose;
using nibble::server::ChatRequest;
using nibble::server::GenerationFields;
using nibble::server::ResponsesRequest;
using nibble::server::ServedModel;

constexpr int32_t kVocabSize = 4096;

const nibble::text::Tokenizer& tokenizer() {
  static const std::unique_ptr<nibble::text::Tokenizer> loaded =
      nibble::text::load_tokenizer(nibble::Path(NIBBLE_SOURCE_DIR) / "models/tiny-v4").value();
  return *loaded;
}

void check_id(int32_t id) { CHECK(id >= 0 && id < kVocabSize) << id; }

void check_fields(const GenerationFields& fields) {
  CHECK(fields.n >= 1 && fields.n <= nibble::server::kMaxN) << fields.n;
  CHECK(fields.sampling.max_tokens >= 0 && fields.sampling.min_tokens >= 0);
  CHECK(fields.sampling.temperature >= 0 && fields.sampling.temperature <= 2);
  CHECK(fields.sampling.top_p > 0 && fields.sampling.top_p <= 1);
  CHECK(fields.sampling.top_k >= 0 && fields.sampling.top_k < kVocabSize);
  for (const int32_t id : fields.sampling.stop_token_ids) check_id(id);
  for (const auto& [id, bias] : fields.sampling.logit_bias) check_id(id);
}

void check_error(const Error& error) { CHECK(!error.message.empty()); }

void check_chat(const Result<ChatRequest>& chat) {
  if (!chat.ok()) return check_error(chat.error());
  CHECK(chat->num_unknown_fields >= 0);
  check_fields(chat->fields);
  const auto ids = nibble::server::encode_chat(*chat, tokenizer());
  if (!ids.ok()) return check_error(ids.error());
  CHECK(!ids->empty());
}

// What is kept of a response is read again when a later one continues it.
void check_response(const Result<ResponsesRequest>& response) {
  if (!response.ok()) return check_error(response.error());
  check_chat(response->chat);
  const std::string kept = nibble::json::dump(response->items, nibble::json::Style::kCompact);
  CHECK(nibble::json::parse(kept).ok());
}

Result<nibble::json::Array> find_items(const std::string&) {
  return nibble::json::Array{nibble::json::make_object({{"role", "user"}, {"content", "x"}})};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ServedModel model = {
      .names = {"m"}, .vocab_size = kVocabSize, .max_context = 4096, .default_sampling = {}};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto body = nibble::json::parse(text);
  if (!body.ok()) return 0;

  check_chat(nibble::server::parse_chat_request(*body, model));
  for (const auto purpose : {AnthropicPurpose::kMessage, AnthropicPurpose::kCountTokens}) {
    check_chat(nibble::server::parse_anthropic_request(*body, model, purpose));
  }
  check_response(nibble::server::parse_responses_request(*body, model, &find_items));
  const auto completion = nibble::server::parse_completion_request(*body, model, tokenizer());
  if (!completion.ok()) {
    check_error(completion.error());
    return 0;
  }
  check_fields(completion->fields);
  for (const auto& prompt : completion->prompts) {
    CHECK(!prompt.ids.empty());
    for (const int32_t id : prompt.ids) check_id(id);
  }
  return 0;
}

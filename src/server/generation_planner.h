// From the bodies of completion requests to what the engine has to do and how the reply is
// rendered: one function per protocol. Safe to use from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "server/chat_request.h"
#include "server/generation.h"
#include "server/generation_fields.h"
#include "server/http_message.h"
#include "server/key_id.h"
#include "server/metrics.h"
#include "server/response_store.h"
#include "text/tokenizer.h"

namespace nibble::server {

class GenerationPlanner final {
 public:
  // All of them must outlive it.
  GenerationPlanner(const ServedModel& model,
                    const std::string& version,
                    const text::Tokenizer& tokenizer,
                    ResponseStore& responses,
                    Metrics& metrics)
      : model_(model),
        version_(version),
        tokenizer_(tokenizer),
        responses_(responses),
        metrics_(metrics) {}

  Result<GenerationPlan> chat(const HttpRequest& request) const;
  Result<GenerationPlan> completion(const HttpRequest& request) const;
  Result<GenerationPlan> response(const HttpRequest& request) const;
  Result<GenerationPlan> anthropic_message(const HttpRequest& request) const;

  // The tokens of the prompt that a message request would give.
  Result<int32_t> count_anthropic_tokens(const HttpRequest& request) const;

 private:
  Result<json::Array> find_items(KeyId owner, const std::string& response_id) const;
  std::function<void(StoredResponse)> keeper(KeyId owner,
                                             const std::string& response_id,
                                             bool is_background) const;
  ReplyEnvelope envelope(std::string_view id_prefix, const GenerationFields& fields) const;
  // The request's thinking budget becomes that of its sequences.
  Result<void> limit_reasoning(GenerationPlan& plan, const ChatRequest& chat) const;
  Result<void> add_chat_sequences(GenerationPlan& plan,
                                  ChatRequest& chat,
                                  const std::vector<int32_t>& prompt_ids,
                                  KeyId owner) const;

  const ServedModel& model_;
  const std::string& version_;
  const text::Tokenizer& tokenizer_;
  ResponseStore& responses_;
  Metrics& metrics_;
};

}  // namespace nibble::server

// One request from start to end, seen from the thread that asked for it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/interrupt.h"
#include "cli/session.h"
#include "engine/engine.h"
#include "text/chat.h"
#include "text/output_parser.h"

namespace nibble::cli {

// Runs the request and calls `on_text` with each piece of its text, on this thread. Ctrl-C cancels
// it: the finish then says so. An error of the engine or of `on_text` is returned.
Result<engine::Finish> complete(engine::Engine& engine,
                                engine::Request request,
                                const InterruptGuard& interrupt,
                                const std::function<Result<void>(std::string_view)>& on_text);

// A conversation to token ids: only what the chat format itself writes may become special tokens.
Result<std::vector<int32_t>> encode_chat(const std::vector<text::Message>& messages,
                                         text::ThinkingMode thinking,
                                         text::Generation generation,
                                         const text::Tokenizer& tokenizer);

// Lets the special tokens that AnswerPrinter reads, and no others, into the text of an answer.
void show_markup(engine::SamplingParams& sampling, const text::Tokenizer& tokenizer);

// The model's input as text, special tokens included; starts with `bos_token_id` unless that is -1
// or there already.
Result<std::vector<int32_t>> encode_raw(std::string_view prompt,
                                        int32_t bos_token_id,
                                        const text::Tokenizer& tokenizer);

// Prints the answer to a conversation as it comes. Reasoning is set off: dim on a terminal, between
// <think> and </think> elsewhere.
class AnswerPrinter final {
 public:
  explicit AnswerPrinter(text::ThinkingMode thinking);

  Result<void> push(std::string_view text);
  // The end of the answer; afterwards message() is complete.
  Result<void> finish();

  const text::Message& message() const { return parser_.message(); }

 private:
  Result<void> print(const text::OutputDelta& delta);
  Result<void> end_reasoning();

  text::OutputParser parser_;
  bool is_in_reasoning_ = false;
};

}  // namespace nibble::cli

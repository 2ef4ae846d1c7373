#include "cli/completion.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "cli/console.h"
#include "text/chat_protocol.h"

namespace nibble::cli {
namespace {

// Signals cannot wake a condition variable; this is how long Ctrl-C may take.
constexpr std::chrono::milliseconds kInterruptPoll(50);

// Outputs on their way from the engine thread to ours; at most max_tokens of one request.
class OutputChannel final {
 public:
  void push(engine::Output&& output) {
    {
      const std::lock_guard lock(mutex_);
      outputs_.push_back(std::move(output));
    }
    ready_.notify_one();
  }
  std::optional<engine::Output> pop(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!ready_.wait_for(lock, timeout, [this] { return !outputs_.empty(); })) return std::nullopt;
    std::optional<engine::Output> output(std::move(outputs_.front()));
    outputs_.pop_front();
    return output;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<engine::Output> outputs_;
};

}  // namespace

Result<engine::Finish> complete(engine::Engine& engine,
                                engine::Request request,
                                const InterruptGuard& interrupt,
                                const std::function<Result<void>(std::string_view)>& on_text) {
  // Shared with the sink, which the engine keeps until the finish.
  const auto channel = std::make_shared<OutputChannel>();
  const std::string id = request.id;
  TRY(engine.submit(std::move(request),
                    [channel](engine::Output&& output) { channel->push(std::move(output)); }));
  Result<void> written;
  while (true) {
    if (interrupt.is_set() || !written.ok()) engine.cancel(id);
    std::optional<engine::Output> output = channel->pop(kInterruptPoll);
    if (!output) continue;
    if (written.ok() && !output->text.empty()) written = on_text(output->text);
    if (!output->finish) continue;
    TRY(std::move(written));
    if (output->finish->reason == engine::FinishReason::kError) {
      return std::move(output->finish->error);
    }
    return std::move(*output->finish);
  }
}

Result<std::vector<int32_t>> encode_chat(const std::vector<text::Message>& messages,
                                         text::ThinkingMode thinking,
                                         text::Generation generation,
                                         const text::Tokenizer& tokenizer) {
  TRY_ASSIGN(const text::Prompt prompt,
             text::render_chat(messages,
                               {.thinking = thinking,
                                .effort = text::plain_effort(generation),
                                .generation = generation}));
  return text::encode_prompt(prompt, tokenizer);
}

void show_markup(engine::SamplingParams& sampling, const text::Tokenizer& tokenizer) {
  for (const std::string_view tag : {text::kThinkOpen, text::kThinkClose}) {
    const std::optional<int32_t> id = tokenizer.added_token(tag);
    if (id) sampling.visible_special_ids.push_back(*id);
  }
}

Result<std::vector<int32_t>> encode_raw(std::string_view prompt,
                                        int32_t bos_token_id,
                                        const text::Tokenizer& tokenizer) {
  TRY_ASSIGN(std::vector<int32_t> ids, tokenizer.encode_with_specials(prompt));
  const bool has_bos = bos_token_id < 0 || (!ids.empty() && ids.front() == bos_token_id);
  if (!has_bos) ids.insert(ids.begin(), bos_token_id);
  return ids;
}

AnswerPrinter::AnswerPrinter(text::ThinkingMode thinking)
    : parser_({.thinking = thinking, .parse_tool_calls = false}) {}

Result<void> AnswerPrinter::push(std::string_view text) { return print(parser_.push(text)); }

Result<void> AnswerPrinter::finish() {
  TRY(print(parser_.finish()));
  return end_reasoning();
}

Result<void> AnswerPrinter::print(const text::OutputDelta& delta) {
  if (!delta.reasoning.empty()) {
    if (!is_in_reasoning_) TRY(write_output(output_is_terminal() ? "\x1b[2m" : "<think>"));
    is_in_reasoning_ = true;
    TRY(write_model_text(delta.reasoning));
  }
  if (delta.content.empty()) return {};
  TRY(end_reasoning());
  return write_model_text(delta.content);
}

Result<void> AnswerPrinter::end_reasoning() {
  if (!is_in_reasoning_) return {};
  is_in_reasoning_ = false;
  return write_output(output_is_terminal() ? "\x1b[0m\n" : "</think>\n");
}

}  // namespace nibble::cli

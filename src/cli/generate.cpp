#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/console.h"
#include "cli/session.h"

namespace nibble::cli {
namespace {

constexpr int64_t kMaxPromptBytes = 64 << 20;

Result<std::string> read_prompt(const GenerateFlags& flags) {
  if (flags.prompt) return *flags.prompt;
  if (flags.prompt_file) return read_file(*flags.prompt_file, kMaxPromptBytes);
  return read_input(kMaxPromptBytes);
}

std::vector<text::Message> conversation(const std::string& system, const std::string& prompt) {
  std::vector<text::Message> messages;
  if (!system.empty()) messages.push_back({.role = text::Role::kSystem, .content = system});
  messages.push_back({.role = text::Role::kUser, .content = prompt});
  return messages;
}

}  // namespace

Result<void> run_generate(const GenerateFlags& flags) {
  if (flags.raw && (flags.think || !flags.system.empty())) {
    return invalid_argument("--raw takes the prompt as it is: --think and --system do not apply");
  }
  TRY_ASSIGN(const std::string prompt, read_prompt(flags));
  TRY_ASSIGN(Session session, open_session(flags.model, {}));
  print_note(session.times.describe());
  const auto thinking = flags.think ? text::ThinkingMode::kThinking : text::ThinkingMode::kChat;

  engine::Request request;
  request.id = "generate";
  request.sampling = sampling_params(flags.sampling, session.defaults.generation);
  if (flags.raw) {
    TRY_ASSIGN(request.prompt_ids,
               encode_raw(prompt, session.defaults.bos_token_id, *session.tokenizer));
  } else {
    show_markup(request.sampling, *session.tokenizer);
    TRY_ASSIGN(request.prompt_ids,
               encode_chat(conversation(flags.system, prompt),
                           thinking,
                           session.defaults.chat_generation,
                           *session.tokenizer));
  }

  const InterruptGuard interrupt;
  AnswerPrinter printer(thinking);
  const auto on_text = [&](std::string_view text) {
    return flags.raw ? write_model_text(text) : printer.push(text);
  };
  TRY_ASSIGN(const engine::Finish finish,
             complete(*session.engine, std::move(request), interrupt, on_text));
  if (!flags.raw) TRY(printer.finish());
  TRY(write_output("\n"));
  print_note(speed_line(finish));
  print_note(kernel_line(session.routed_modules, session.plan.options.device.info()));
  if (finish.reason == engine::FinishReason::kCancelled) {
    return Error{Errc::kCancelled, "interrupted", {}, {}};
  }
  return {};
}

}  // namespace nibble::cli

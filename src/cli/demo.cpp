#include <fmt/core.h>

#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/console.h"
#include "cli/session.h"

namespace nibble::cli {
namespace {

constexpr std::string_view kQuestion = "What is the capital of France?";

}  // namespace

Result<void> run_demo(const DemoFlags& flags) {
  TRY_ASSIGN(Session session, open_session(flags.model, {}));
  TRY(write_output(fmt::format("{} loaded in {:.2f} s, {:.0f} MB\n\n> {}\n",
                               flags.model.model.string(),
                               session.load_seconds,
                               static_cast<double>(session.memory_bytes) / 1e6,
                               kQuestion)));
  engine::Request request;
  request.id = "demo";
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 200;
  show_markup(request.sampling, *session.tokenizer);
  TRY_ASSIGN(request.prompt_ids,
             encode_chat({{.role = text::Role::kUser, .content = std::string(kQuestion)}},
                         text::ThinkingMode::kChat,
                         session.defaults.chat_generation,
                         *session.tokenizer));
  const InterruptGuard interrupt;
  AnswerPrinter printer(text::ThinkingMode::kChat);
  TRY_ASSIGN(const engine::Finish finish,
             complete(*session.engine, std::move(request), interrupt, [&](std::string_view text) {
               return printer.push(text);
             }));
  TRY(printer.finish());
  return write_output(
      fmt::format("\n\n{}\n{}\n",
                  speed_line(finish),
                  kernel_line(session.routed_modules, session.plan.options.device.info())));
}

}  // namespace nibble::cli

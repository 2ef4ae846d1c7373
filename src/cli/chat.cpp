#include <fmt/core.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/console.h"
#include "cli/session.h"

namespace nibble::cli {
namespace {

constexpr std::string_view kHelp =
    "/think    let the model reason before it answers\n"
    "/nothink  answer at once\n"
    "/reset    forget the conversation\n"
    "/help     this list\n"
    "/quit     leave (also Ctrl-D)\n"
    "Ctrl-C stops an answer.\n";

// A line of standard input without its line end; nullopt at its end or at Ctrl-C.
std::optional<std::string> read_line() {
  char* buffer = nullptr;
  size_t capacity = 0;
  const ssize_t length = ::getline(&buffer, &capacity, stdin);
  std::optional<std::string> line;
  if (length >= 0) line.emplace(buffer, static_cast<size_t>(length));
  std::free(buffer);
  if (line && line->ends_with('\n')) line->pop_back();
  if (line && line->ends_with('\r')) line->pop_back();
  return line;
}

class Conversation final {
 public:
  Conversation(Session& session, const ChatFlags& flags)
      : session_(session), flags_(flags), is_thinking_(flags.think) {
    reset();
  }

  // Reads lines until the end of input, /quit, or Ctrl-C at the prompt.
  Result<void> run() {
    while (true) {
      if (output_is_terminal()) TRY(write_output("> "));
      const std::optional<std::string> line = read_line();
      if (interrupt_.is_set()) return Error{Errc::kCancelled, "interrupted", {}, {}};
      if (!line || *line == "/quit") return {};
      if (line->empty()) continue;
      TRY(line->front() == '/' ? obey(*line) : answer(*line));
    }
  }

 private:
  void reset() {
    messages_.clear();
    if (flags_.system.empty()) return;
    messages_.push_back({.role = text::Role::kSystem, .content = flags_.system});
  }

  Result<void> obey(const std::string& command) {
    if (command == "/think") {
      is_thinking_ = true;
    } else if (command == "/nothink") {
      is_thinking_ = false;
    } else if (command == "/reset") {
      reset();
    } else if (command == "/help") {
      return write_output(kHelp);
    } else {
      print_note("unknown command; /help lists them");
    }
    return {};
  }

  // A failed or stopped answer leaves the conversation as it was.
  Result<void> answer(const std::string& text) {
    messages_.push_back({.role = text::Role::kUser, .content = replace_invalid_utf8(text)});
    Result<text::Message> reply = generate();
    if (reply.ok()) {
      messages_.push_back(std::move(*reply));
      return {};
    }
    messages_.pop_back();
    if (interrupt_.is_set()) {
      interrupt_.clear();
      return {};
    }
    if (reply.error().code != Errc::kInvalidArgument) return std::move(reply).error();
    print_error(reply.error());  // too long, for example: /reset helps
    return {};
  }

  Result<text::Message> generate() {
    const auto thinking = is_thinking_ ? text::ThinkingMode::kThinking : text::ThinkingMode::kChat;
    engine::Request request;
    request.id = "chat";
    request.sampling = sampling_params(flags_.sampling, session_.defaults.generation);
    show_markup(request.sampling, *session_.tokenizer);
    TRY_ASSIGN(
        request.prompt_ids,
        encode_chat(messages_, thinking, session_.defaults.chat_generation, *session_.tokenizer));
    AnswerPrinter printer(thinking);
    TRY_ASSIGN(
        const engine::Finish finish,
        complete(*session_.engine, std::move(request), interrupt_, [&](std::string_view piece) {
          return printer.push(piece);
        }));
    TRY(printer.finish());
    TRY(write_output("\n"));
    if (errors_are_terminal()) print_note(speed_line(finish));
    if (finish.reason == engine::FinishReason::kCancelled) {
      return Error{Errc::kCancelled, "interrupted", {}, {}};
    }
    return printer.message();
  }

  Session& session_;
  const ChatFlags& flags_;
  InterruptGuard interrupt_;
  std::vector<text::Message> messages_;
  bool is_thinking_;
};

}  // namespace

Result<void> run_chat(const ChatFlags& flags) {
  TRY_ASSIGN(Session session, open_session(flags.model, {}));
  if (output_is_terminal())
    print_note(kernel_line(session.routed_modules, session.plan.options.device.info()));
  return Conversation(session, flags).run();
}

}  // namespace nibble::cli

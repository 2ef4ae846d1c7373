#include "text/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "text/chat_protocol.h"

namespace nibble::text {
namespace {

constexpr std::string_view kActionTask = "action";
constexpr std::array<std::string_view, 7> kTasks = {
    kActionTask, "query", "authority", "domain", "title", "extracted_url", "read_url"};

// Markers that are one token each in every released tokenizer.
constexpr std::array kMarkers = {kBeginOfSentence,
                                 kEndOfSentence,
                                 kUserTag,
                                 kAssistantTag,
                                 kLatestReminderTag,
                                 kThinkOpen,
                                 kThinkClose};

// Builds the prompt and keeps apart what the encoder wrote and what a client supplied.
class PromptWriter final {
 public:
  // Protocol text: special tokens may match in it.
  void protocol(std::string_view text) {
    if (text.empty()) return;
    auto& ranges = prompt_.special_ranges;
    const size_t begin = prompt_.text.size();
    if (ranges.empty() || ranges.back().end != begin) ranges.push_back({begin, begin});
    prompt_.text += text;
    ranges.back().end = prompt_.text.size();
  }

  // Text of a client: always ordinary text, whatever it spells.
  void client(std::string_view text) { prompt_.text += text; }

  Prompt take() { return std::move(prompt_); }

 private:
  Prompt prompt_;
};

// What stands between two turn tags: a message, or adjacent user and tool messages folded into one
// user turn.
struct Turn {
  Role role = Role::kUser;
  std::vector<const Message*> messages;  // exactly one unless the role is kUser
  std::string_view task;

  const Message& message() const { return *messages.front(); }
  bool asks() const { return role == Role::kUser || role == Role::kDeveloper; }
};

Error fault_at(std::string path, std::string_view fault) {
  Error error = invalid_argument(fmt::format("{}: {}", path, fault));
  error.param = std::move(path);
  return error;
}

Result<void> check_tool_calls(const Message& message, const std::string& path) {
  if (message.tool_calls.empty()) return {};
  if (message.role != Role::kAssistant) {
    return fault_at(path + ".tool_calls", "only assistant messages carry tool calls");
  }
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    if (message.tool_calls[i].name.empty()) {
      return fault_at(fmt::format("{}.tool_calls[{}].function.name", path, i),
                      "is empty, expected the name of a function");
    }
  }
  return {};
}

Result<void> check_tools(const Message& message, const std::string& path) {
  const bool may_declare = message.role == Role::kSystem || message.role == Role::kDeveloper;
  if (!may_declare && !message.tools.empty()) {
    return fault_at(path + ".tools", "only system and developer messages declare tools");
  }
  if (!may_declare && message.response_format) {
    return fault_at(path + ".response_format",
                    "only system and developer messages carry a response format");
  }
  for (size_t i = 0; i < message.tools.size(); ++i) {
    if (message.tools[i].is_object()) continue;
    return fault_at(fmt::format("{}.tools[{}]", path, i),
                    fmt::format("{}, expected a function object", message.tools[i].kind_name()));
  }
  return {};
}

Result<void> check_messages(std::span<const Message> messages) {
  if (messages.empty()) return fault_at("messages", "is empty, expected at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    const std::string path = fmt::format("messages[{}]", i);
    TRY(check_tools(message, path));
    TRY(check_tool_calls(message, path));
    const bool is_known_task = std::ranges::find(kTasks, message.task) != kTasks.end();
    if (!message.task.empty() && !is_known_task) {
      return fault_at(path + ".task",
                      fmt::format("unknown task, expected one of {}", fmt::join(kTasks, ", ")));
    }
  }
  return {};
}

// A tool message joins a user turn before it; a user message does so unless that turn carries a
// task.
bool joins(const Message& message, const Turn& previous) {
  if (previous.role != Role::kUser) return false;
  return message.role == Role::kTool || (message.role == Role::kUser && previous.task.empty());
}

std::vector<Turn> fold(std::span<const Message> messages) {
  std::vector<Turn> turns;
  for (const Message& message : messages) {
    if (turns.empty() || !joins(message, turns.back())) {
      const Role role = message.role == Role::kTool ? Role::kUser : message.role;
      turns.push_back({.role = role, .messages = {}, .task = {}});
    }
    turns.back().messages.push_back(&message);
    if (!message.task.empty()) turns.back().task = message.task;
  }
  return turns;
}

// Call id to position. A call without id cannot be referred to.
std::unordered_map<std::string_view, size_t> call_positions(std::span<const ToolCall> calls) {
  std::unordered_map<std::string_view, size_t> positions;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].id.empty()) positions[calls[i].id] = i;
  }
  return positions;
}

// Sorts the tool results of each turn, among the slots that hold results, into the order of the
// latest calls. A result with an unknown call id counts as one of the first call.
void order_tool_results(std::span<Turn> turns) {
  std::unordered_map<std::string_view, size_t> positions;
  const auto position = [&](const Message* result) {
    const auto found = positions.find(result->tool_call_id);
    return found == positions.end() ? size_t{0} : found->second;
  };
  for (Turn& turn : turns) {
    if (!turn.message().tool_calls.empty()) positions = call_positions(turn.message().tool_calls);
    std::vector<const Message*> results;
    for (const Message* message : turn.messages) {
      if (message->role == Role::kTool) results.push_back(message);
    }
    std::ranges::stable_sort(results, {}, position);
    auto next = results.begin();
    for (const Message*& message : turn.messages) {
      if (message->role == Role::kTool) message = *next++;
    }
  }
}

// Index of the last user or developer turn; -1 without one.
ptrdiff_t last_asking_turn(std::span<const Turn> turns) {
  const auto found =
      std::find_if(turns.rbegin(), turns.rend(), [](const Turn& t) { return t.asks(); });
  return std::distance(found, turns.rend()) - 1;
}

void drop_old_developer_turns(std::vector<Turn>& turns) {
  const auto last = turns.begin() + std::max<ptrdiff_t>(last_asking_turn(turns), 0);
  turns.erase(
      std::remove_if(turns.begin(), last, [](const Turn& t) { return t.role == Role::kDeveloper; }),
      last);
}

std::string_view effort_prefix(Effort effort, Generation generation) {
  const bool is_april = generation == Generation::kApril;
  switch (effort) {
    case Effort::kLow:
      return {};
    case Effort::kHigh:
      return is_april ? std::string_view() : kAbsoluteMaximumEffort;
    case Effort::kMax:
      return is_april ? kAbsoluteMaximumEffort : kBeyondMaximumEffort;
  }
  return {};
}

class Renderer final {
 public:
  Renderer(std::vector<Turn> turns, const RenderOptions& options, bool drops_thinking)
      : turns_(std::move(turns)),
        is_thinking_(options.thinking == ThinkingMode::kThinking),
        first_thinking_turn_(drops_thinking ? last_asking_turn(turns_) : -1) {
    if (options.add_bos) out_.protocol(kBeginOfSentence);
    if (is_thinking_) out_.protocol(effort_prefix(options.effort, options.generation));
  }

  Prompt render() {
    for (size_t i = 0; i < turns_.size(); ++i) {
      write_turn(i);
      write_transition(i);
    }
    return out_.take();
  }

 private:
  // Turns before the first thinking one look as in chat mode.
  bool thinks(size_t index) const {
    return is_thinking_ && static_cast<ptrdiff_t>(index) >= first_thinking_turn_;
  }

  void write_turn(size_t index) {
    const Turn& turn = turns_[index];
    switch (turn.role) {
      case Role::kSystem:
        return write_instructions(turn.message());
      case Role::kDeveloper:
        out_.protocol(kUserTag);
        return write_instructions(turn.message());
      case Role::kLatestReminder:
        out_.protocol(kLatestReminderTag);
        return write_content(turn.message());
      case Role::kAssistant:
        return write_assistant(index);
      case Role::kUser:
      case Role::kTool:
        return write_user(turn);
    }
  }

  void write_content(const Message& message) {
    if (message.parts.empty()) return out_.client(message.content);
    bool is_first = true;
    for (const ContentPart& part : message.parts) {
      if (!std::exchange(is_first, false)) out_.protocol("\n\n");
      if (part.type == "text") {
        out_.client(part.text);
      } else {
        out_.client(fmt::format("[Unsupported {}]", part.type));
      }
    }
  }

  void write_instructions(const Message& message) {
    write_content(message);
    if (!message.tools.empty()) {
      out_.protocol("\n\n");
      out_.protocol(kToolsHead);
      for (const json::Value& tool : message.tools) {
        out_.client(json::dump(tool, json::Style::kPython));
        out_.protocol("\n");
      }
      out_.protocol(kToolsTail);
    }
    if (message.response_format) {
      out_.protocol("\n\n");
      out_.protocol(kResponseFormatHead);
      out_.client(json::dump(*message.response_format, json::Style::kPython));
    }
  }

  void write_user(const Turn& turn) {
    out_.protocol(kUserTag);
    bool is_first = true;
    for (const Message* message : turn.messages) {
      if (!std::exchange(is_first, false)) out_.protocol("\n\n");
      const bool is_result = message->role == Role::kTool;
      if (is_result) out_.protocol(kToolResultOpen);
      write_content(*message);
      if (is_result) out_.protocol(kToolResultClose);
    }
  }

  void write_assistant(size_t index) {
    const Message& message = turns_[index].message();
    const bool answers_task = index > 0 && !turns_[index - 1].task.empty();
    if (thinks(index) && !answers_task) {
      out_.client(message.reasoning_content.value_or(std::string()));
      out_.protocol(kThinkClose);
    }
    write_content(message);
    write_tool_calls(message.tool_calls);
    if (!message.without_eos) out_.protocol(kEndOfSentence);
  }

  void write_tool_calls(std::span<const ToolCall> calls) {
    if (calls.empty()) return;
    out_.protocol("\n\n");
    out_.protocol(kToolCallsOpen);
    for (const ToolCall& call : calls) {
      out_.protocol("\n");
      out_.protocol(kInvokeOpen);
      out_.client(call.name);
      out_.protocol("\">\n");
      write_arguments(call.arguments);
      out_.protocol("\n");
      out_.protocol(kInvokeClose);
    }
    out_.protocol("\n");
    out_.protocol(kToolCallsClose);
  }

  // What is not an object becomes one parameter named "arguments", so that the model sees what it
  // once wrote.
  void write_arguments(const std::string& arguments) {
    const Result<json::Value> parsed = json::parse(arguments);
    if (!parsed.ok() || !parsed->is_object()) return write_parameter("arguments", arguments);
    bool is_first = true;
    for (const json::Member& member : *parsed->as_object()) {
      if (!std::exchange(is_first, false)) out_.protocol("\n");
      write_parameter(member.key, member.value);
    }
  }

  // Strings stand raw, without any escaping; everything else is JSON.
  void write_parameter(std::string_view key, const json::Value& value) {
    const std::string* string = value.as_string();
    out_.protocol(kParameterOpen);
    out_.client(key);
    out_.protocol(kParameterKind);
    out_.protocol(string != nullptr ? "true\">" : "false\">");
    out_.client(string != nullptr ? *string : json::dump(value, json::Style::kPython));
    out_.protocol(kParameterClose);
  }

  void write_transition(size_t index) {
    const bool is_last = index + 1 == turns_.size();
    const Role next = is_last ? Role::kAssistant : turns_[index + 1].role;
    if (next != Role::kAssistant && next != Role::kLatestReminder) return;
    const Turn& turn = turns_[index];
    if (turn.task == kActionTask) {
      write_assistant_opening(is_thinking_);
      write_task_token(turn.task);
    } else if (!turn.task.empty()) {
      write_task_token(turn.task);
    } else if (turn.asks()) {
      write_assistant_opening(thinks(index));
    }
  }

  void write_assistant_opening(bool with_thinking) {
    out_.protocol(kAssistantTag);
    out_.protocol(with_thinking ? kThinkOpen : kThinkClose);
  }

  void write_task_token(std::string_view task) {
    out_.protocol(fmt::format("<\uff5c{}\uff5c>", task));
  }

  PromptWriter out_;
  std::vector<Turn> turns_;
  bool is_thinking_;
  ptrdiff_t first_thinking_turn_;
};

}  // namespace

Result<Prompt> render_chat(const std::vector<Message>& messages, const RenderOptions& options) {
  TRY(check_messages(messages));
  const bool has_tools =
      std::ranges::any_of(messages, [](const Message& m) { return !m.tools.empty(); });
  const bool drops_thinking = options.drop_thinking && !has_tools;
  std::vector<Turn> turns = fold(messages);
  order_tool_results(turns);
  if (drops_thinking && options.thinking == ThinkingMode::kThinking) {
    drop_old_developer_turns(turns);
  }
  return Renderer(std::move(turns), options, drops_thinking).render();
}

Result<std::vector<int32_t>> encode_prompt(const Prompt& prompt, const Tokenizer& tokenizer) {
  for (const std::string_view marker : kMarkers) {
    if (tokenizer.added_token(marker)) continue;
    const bool is_used = std::ranges::any_of(prompt.special_ranges, [&](const ByteRange& range) {
      const std::string_view text(prompt.text);
      return text.substr(range.begin, range.end - range.begin).find(marker) !=
             std::string_view::npos;
    });
    if (!is_used) continue;
    return unsupported(fmt::format(
        "tokenizer.json: added_tokens: has no \"{}\", expected it as a token of the chat "
        "format. Fetch the file again, or use raw completions.",
        marker));
  }
  return tokenizer.encode(prompt.text, prompt.special_ranges);
}

}  // namespace nibble::text

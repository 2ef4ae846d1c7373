#include "bench_client/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/hash.h"

namespace nibble::bench_client {
namespace {

// A length around `length`, at least 1.
int32_t drawn_length(int32_t length, double range_ratio, Random& random) {
  if (range_ratio <= 0) return length;
  const auto low = static_cast<int64_t>(std::floor(length * (1.0 - range_ratio)));
  const auto high = static_cast<int64_t>(std::ceil(length * (1.0 + range_ratio)));
  return static_cast<int32_t>(std::max<int64_t>(random.between(low, high), 1));
}

Result<void> check_input_length(int32_t length, int32_t template_tokens) {
  if (length > template_tokens) return {};
  return invalid_argument(
      fmt::format("--random-input-len {}: the server's template alone takes {} tokens; ask for "
                  "more",
                  length,
                  template_tokens));
}

// A turn whose words fill up a prompt of a drawn length, of which `taken` tokens are there already.
Turn random_turn(const DatasetOptions& options,
                 const PromptWords& words,
                 int32_t taken,
                 Random& random) {
  const int32_t length = drawn_length(options.input_len, options.range_ratio, random);
  const int32_t num_words = std::max(length - taken, 1);
  return {.text = random_text(words, num_words, random),
          .prompt_tokens = num_words + taken,
          .output_tokens = drawn_length(options.output_len, options.range_ratio, random)};
}

std::vector<Conversation> make_random(const DatasetOptions& options,
                                      const PromptWords& words,
                                      Random& random) {
  std::vector<Conversation> conversations;
  conversations.reserve(static_cast<size_t>(options.num_prompts));
  for (int32_t i = 0; i < options.num_prompts; ++i) {
    conversations.push_back(
        {.turns = {random_turn(options, words, words.template_tokens, random)}});
  }
  return conversations;
}

std::vector<Conversation> make_shared_prefix(const DatasetOptions& options,
                                             const PromptWords& words,
                                             Random& random) {
  std::vector<Conversation> conversations;
  for (int32_t group = 0; group < options.num_groups; ++group) {
    const std::string prefix = random_text(words, options.prefix_len, random);
    for (int32_t i = 0; i < options.prompts_per_group; ++i) {
      Turn turn = random_turn(options, words, words.template_tokens, random);
      turn.text = prefix + turn.text;
      turn.prompt_tokens += options.prefix_len;
      conversations.push_back({.turns = {std::move(turn)}});
    }
  }
  random.shuffle(conversations);
  return conversations;
}

// Only the first prompt's length is known: later ones hold answers.
std::vector<Conversation> make_multi_turn(const DatasetOptions& options,
                                          const PromptWords& words,
                                          Random& random) {
  std::vector<Conversation> conversations;
  for (int32_t i = 0; i < options.num_prompts; ++i) {
    Conversation conversation;
    for (int32_t k = 0; k < options.num_turns; ++k) {
      Turn turn = random_turn(options, words, words.template_tokens, random);
      if (k > 0) turn.prompt_tokens = 0;
      conversation.turns.push_back(std::move(turn));
    }
    conversations.push_back(std::move(conversation));
  }
  return conversations;
}

// --- files

std::string_view text_member(const json::Value& value, std::string_view key) {
  const json::Value* member = value.find(key);
  const std::string* text = member == nullptr ? nullptr : member->as_string();
  return text == nullptr ? std::string_view() : *text;
}

int32_t length_member(const json::Value& entry) {
  for (const std::string_view key : {"output_tokens", "max_tokens", "output_len"}) {
    const json::Value* member = entry.find(key);
    const auto length = member == nullptr ? std::nullopt : member->as_int64();
    if (length && *length > 0 && *length <= 1 << 24) return static_cast<int32_t>(*length);
  }
  return 0;
}

// The last message of the user is the turn; what stands before it opens the conversation.
Conversation from_messages(const json::Array& messages) {
  Conversation conversation;
  for (const json::Value& message : messages) {
    conversation.opening.push_back(
        {std::string(text_member(message, "role")), std::string(text_member(message, "content"))});
  }
  while (!conversation.opening.empty() && conversation.opening.back().role != "user") {
    conversation.opening.pop_back();
  }
  if (conversation.opening.empty()) return {};
  conversation.turns.push_back({.text = std::move(conversation.opening.back().content)});
  conversation.opening.pop_back();
  return conversation;
}

// ShareGPT: the first exchange, as other benchmarks take it. `answer` is what the file says to it.
Conversation from_sharegpt(const json::Array& parts, std::string_view& answer) {
  if (parts.size() < 2) return {};
  const std::string_view question = text_member(parts[0], "value");
  if (text_member(parts[0], "from") == "gpt" || question.empty()) return {};
  answer = text_member(parts[1], "value");
  return {.turns = {{.text = std::string(question)}}};
}

Result<Conversation> from_entry(const json::Value& entry,
                                const DatasetOptions& options,
                                const text::Tokenizer* tokenizer) {
  Conversation conversation;
  std::string_view answer;
  const json::Value* messages = entry.find("messages");
  const json::Value* parts = entry.find("conversations");
  if (messages != nullptr && messages->is_array()) {
    conversation = from_messages(*messages->as_array());
  } else if (parts != nullptr && parts->is_array()) {
    conversation = from_sharegpt(*parts->as_array(), answer);
  } else if (!text_member(entry, "prompt").empty()) {
    conversation.turns = {{.text = std::string(text_member(entry, "prompt"))}};
  } else {
    return invalid_argument("expected \"prompt\", \"messages\" or \"conversations\"");
  }
  if (conversation.turns.empty()) return conversation;
  int32_t length = options.file_output_len > 0 ? options.file_output_len : length_member(entry);
  if (length == 0 && !answer.empty()) {
    if (tokenizer == nullptr) {
      return invalid_argument(
          "the length of its answer is unknown: give --tokenizer DIR or --output-len N");
    }
    TRY_ASSIGN(const std::vector<int32_t> ids, tokenizer->encode(answer, {}));
    length = std::max(static_cast<int32_t>(ids.size()), 1);
  }
  if (length > 0) conversation.turns.front().output_tokens = length;
  return conversation;
}

Error at_line(const Path& file, size_t line, const Error& error) {
  return invalid_argument(fmt::format("{}:{}: {}", file.string(), line, error.message));
}

// The entries with the number of the line (of an array: of the entry) that holds each.
Result<std::vector<std::pair<size_t, json::Value>>> read_entries(const Path& file) {
  constexpr int64_t kMaxFileBytes = int64_t{4} << 30;
  const json::Limits limits = {.max_nodes = 100'000'000, .max_bytes = kMaxFileBytes};
  TRY_ASSIGN(const std::string text, read_file(file, kMaxFileBytes));
  std::vector<std::pair<size_t, json::Value>> entries;
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '[') {
    Result<json::Value> parsed = json::parse(text, limits);
    if (!parsed.ok()) return at_line(file, 1, parsed.error());
    for (json::Value& entry : *parsed->as_array()) {
      entries.emplace_back(entries.size() + 1, std::move(entry));
    }
    return entries;
  }
  std::string_view rest = text;
  for (size_t line = 1; !rest.empty(); ++line) {
    const std::string_view one = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    if (one.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Result<json::Value> parsed = json::parse(one, limits);
    if (!parsed.ok()) return at_line(file, line, parsed.error());
    entries.emplace_back(line, std::move(parsed).value());
  }
  return entries;
}

}  // namespace

const char* dataset_name(DatasetKind kind) {
  switch (kind) {
    case DatasetKind::kRandom:
      return "random";
    case DatasetKind::kSharedPrefix:
      return "shared-prefix";
    case DatasetKind::kMultiTurn:
      return "multi-turn";
    case DatasetKind::kFile:
      return "file";
  }
  return "random";
}

Result<std::vector<Conversation>> make_dataset(const DatasetOptions& options,
                                               const PromptWords& words,
                                               Random& random) {
  const auto shortest = static_cast<int32_t>(options.input_len * (1.0 - options.range_ratio));
  TRY(check_input_length(shortest, words.template_tokens));
  if (options.kind == DatasetKind::kSharedPrefix) return make_shared_prefix(options, words, random);
  if (options.kind == DatasetKind::kMultiTurn) return make_multi_turn(options, words, random);
  return make_random(options, words, random);
}

Result<std::vector<Conversation>> read_dataset(const DatasetOptions& options,
                                               const text::Tokenizer* tokenizer,
                                               Random& random) {
  TRY_ASSIGN(const auto entries, read_entries(options.file));
  std::vector<Conversation> conversations;
  for (const auto& [line, entry] : entries) {
    Result<Conversation> conversation = from_entry(entry, options, tokenizer);
    if (!conversation.ok()) return at_line(options.file, line, conversation.error());
    if (!conversation->turns.empty()) conversations.push_back(std::move(conversation).value());
  }
  if (conversations.empty()) {
    return invalid_argument(fmt::format("{}: holds no prompt", options.file.string()));
  }
  random.shuffle(conversations);
  const auto wanted = static_cast<size_t>(options.num_prompts);
  if (conversations.size() > wanted) conversations.resize(wanted);
  return conversations;
}

std::string dataset_hash(const std::vector<Conversation>& conversations) {
  HashStream hash;
  const auto add = [&hash](std::string_view text) {
    const size_t size = text.size();
    hash.update(std::as_bytes(std::span(&size, 1)));
    hash.update(std::as_bytes(std::span(text.data(), text.size())));
  };
  for (const Conversation& conversation : conversations) {
    for (const Message& message : conversation.opening) {
      add(message.role);
      add(message.content);
    }
    for (const Turn& turn : conversation.turns) {
      add(turn.text);
      hash.update(std::as_bytes(std::span(&turn.output_tokens, 1)));
    }
  }
  return fmt::format("{:016x}", hash.digest());
}

int64_t count_turns(const std::vector<Conversation>& conversations) {
  int64_t count = 0;
  for (const Conversation& conversation : conversations) {
    count += static_cast<int64_t>(conversation.turns.size());
  }
  return count;
}

}  // namespace nibble::bench_client

#include "grammar/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "grammar/automaton.h"
#include "grammar/configurations.h"
#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/json_text.h"
#include "grammar/markup.h"
#include "grammar/regex.h"

namespace nibble::grammar {
namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

Result<void> check_size(size_t num_bytes, const Limits& limits) {
  if (static_cast<int64_t>(num_bytes) <= limits.max_source_bytes) return {};
  return invalid_argument(
      fmt::format("it has {} bytes, expected at most {}", num_bytes, limits.max_source_bytes));
}

Result<void> check_json_size(const json::Value& value, const Limits& limits) {
  return check_size(json::dump(value, json::Style::kCompact).size(), limits);
}

Result<ExprId> compile_choice(const Choice& choice, Rules& rules, const Limits& limits) {
  size_t num_bytes = 0;
  for (const std::string& option : choice.options) {
    num_bytes += option.size();
    if (!is_valid_utf8(option)) return invalid_argument("a choice is not valid UTF-8");
  }
  TRY(check_size(num_bytes, limits));
  if (choice.options.empty()) return invalid_argument("expected at least one choice");
  return rules.one_of(choice.options);
}

Result<ExprId> compile_content(const Content& content,
                               const ToolUse* tools,
                               JsonText& text,
                               const Limits& limits) {
  Rules& rules = text.rules();
  return std::visit(
      Overloaded{[&](const FreeText&) -> Result<ExprId> {
                   if (tools != nullptr) return text_without_markup(rules);
                   return rules.repeat(rules.code_point(CodePointSet::all()), 0, std::nullopt);
                 },
                 [&](const JsonSchema& source) -> Result<ExprId> {
                   TRY(check_json_size(source.schema, limits));
                   return SchemaCompiler(text, source.schema).compile({});
                 },
                 [&](const JsonObject&) -> Result<ExprId> { return text.any_object(); },
                 [&](const Regex& source) -> Result<ExprId> {
                   TRY(check_size(source.pattern.size(), limits));
                   return compile_regex(
                       source.pattern, RegexUse::kWhole, TextAlphabet(rules, Spelling::kPlain));
                 },
                 [&](const Choice& source) { return compile_choice(source, rules, limits); },
                 [&](const Ebnf& source) -> Result<ExprId> {
                   TRY(check_size(source.text.size(), limits));
                   TRY_ASSIGN(const RuleId root, compile_ebnf(source.text, rules));
                   return rules.call(root);
                 }},
      content);
}

// reasoning? (content | calls)      or, of free text:  reasoning? content calls?
Result<ExprId> compile_spec(const Spec& spec,
                            JsonText& text,
                            const Vocabulary& vocabulary,
                            const Limits& limits) {
  Rules& rules = text.rules();
  const ToolUse* tools = spec.tools && !spec.tools->tools.empty() ? &*spec.tools : nullptr;
  ExprId answer = rules.never();
  if (tools == nullptr || !tools->is_required) {
    TRY_ASSIGN(answer, compile_content(spec.content, tools, text, limits));
  }
  if (tools != nullptr) {
    for (const ToolDefinition& tool : tools->tools) {
      if (tool.parameters) TRY(check_json_size(*tool.parameters, limits));
    }
    TRY_ASSIGN(const ExprId calls, tool_calls(text, *tools, vocabulary));
    const bool is_free = std::holds_alternative<FreeText>(spec.content);
    answer = is_free && !tools->is_required ? rules.sequence({answer, rules.optional(calls)})
                                            : rules.choice({answer, calls});
  }
  if (!spec.begins_in_reasoning) return answer;
  TRY_ASSIGN(const ExprId before, reasoning(rules, vocabulary));
  return rules.sequence({before, answer});
}

void append_part(std::string& key, std::string_view part) {
  key += fmt::format("{}:", part.size());
  key += part;
}

}  // namespace

std::string cache_key(const Spec& spec) {
  std::string key = fmt::format("{}{}", spec.content.index(), spec.begins_in_reasoning ? 'r' : '-');
  std::visit(Overloaded{[](const FreeText&) {},
                        [](const JsonObject&) {},
                        [&](const JsonSchema& source) {
                          append_part(key, json::dump(source.schema, json::Style::kCompact));
                        },
                        [&](const Regex& source) { append_part(key, source.pattern); },
                        [&](const Choice& source) {
                          for (const std::string& option : source.options) append_part(key, option);
                        },
                        [&](const Ebnf& source) { append_part(key, source.text); }},
             spec.content);
  if (!spec.tools) return key;
  key += fmt::format("|{}{}", spec.tools->is_required, spec.tools->allows_parallel);
  for (const ToolDefinition& tool : spec.tools->tools) {
    append_part(key, tool.name);
    key += tool.is_strict ? 's' : '-';
    append_part(key, tool.parameters ? json::dump(*tool.parameters, json::Style::kCompact) : "");
  }
  return key;
}

// One sequence's place in a grammar: where it was before any token, and after each. kDead stands
// for "the end was accepted".
struct Matcher::Position {
  std::vector<ConfigurationId> history;
};

struct Grammar::State {
  State(Automaton made, std::shared_ptr<const Vocabulary> tokens, const Limits& bounds)
      : limits(bounds),
        vocabulary(std::move(tokens)),
        automaton(std::move(made)),
        configurations(automaton, *vocabulary, limits) {}

  // Keeps the caches within their bound; the sequences in progress say what they need.
  void make_room() {
    if (!configurations.is_full()) return;
    std::vector<ConfigurationId*> live;
    for (Matcher::Position* position : positions) {
      for (ConfigurationId& id : position->history) live.push_back(&id);
    }
    configurations.keep_only(live);
  }

  const Limits limits;
  const std::shared_ptr<const Vocabulary> vocabulary;
  const Automaton automaton;
  std::mutex mutex;  // guards what follows
  Configurations configurations;
  std::unordered_set<Matcher::Position*> positions;
};

Grammar::Grammar(std::unique_ptr<State> state) : state_(std::move(state)) {}
Grammar::~Grammar() = default;

const Vocabulary& Grammar::vocabulary() const { return *state_->vocabulary; }
int32_t Grammar::num_states() const { return state_->automaton.num_states(); }

int64_t Grammar::size_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->automaton.size_bytes() + state_->configurations.cached_bytes();
}

Result<std::shared_ptr<const Grammar>> compile(const Spec& spec,
                                               std::shared_ptr<const Vocabulary> vocabulary,
                                               const Limits& limits) {
  Rules rules(limits.max_expressions);
  JsonText text(rules);
  TRY_ASSIGN(const ExprId whole, compile_spec(spec, text, *vocabulary, limits));
  const RuleId root = rules.add_rule("whole text", whole);
  TRY_ASSIGN(Automaton automaton, Automaton::make(rules, root, *vocabulary, limits));
  auto state =
      std::make_unique<Grammar::State>(std::move(automaton), std::move(vocabulary), limits);
  return std::shared_ptr<const Grammar>(new Grammar(std::move(state)));
}

Matcher::Matcher(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), position_(std::make_unique<Position>()) {
  Grammar::State& state = *grammar_->state_;
  const std::lock_guard lock(state.mutex);
  position_->history.push_back(state.configurations.initial());
  state.positions.insert(position_.get());
}

Matcher::~Matcher() {
  Grammar::State& state = *grammar_->state_;
  const std::lock_guard lock(state.mutex);
  state.positions.erase(position_.get());
}

bool Matcher::is_ended() const { return position_->history.back() == Configurations::kDead; }

Result<void> Matcher::fill_allowed(std::span<uint64_t> words) {
  Grammar::State& state = *grammar_->state_;
  const Vocabulary& vocabulary = *state.vocabulary;
  CHECK(words.size() == vocabulary.num_mask_words()) << words.size();
  const std::lock_guard lock(state.mutex);
  state.make_room();
  const ConfigurationId now = position_->history.back();
  TRY_ASSIGN(const std::span<const uint64_t> mask, state.configurations.mask(now));
  std::copy(mask.begin(), mask.end(), words.begin());
  const bool is_stuck = std::all_of(mask.begin(), mask.end(), [](uint64_t w) { return w == 0; });
  if (!is_stuck && !state.configurations.can_end(now)) return {};
  for (const int32_t eos : vocabulary.eos_token_ids()) {
    words[static_cast<size_t>(eos) / 64] |= uint64_t{1} << (eos % 64);
  }
  return {};
}

Result<void> Matcher::accept(int32_t token_id) {
  Grammar::State& state = *grammar_->state_;
  const Vocabulary& vocabulary = *state.vocabulary;
  const auto refuse = [&] {
    return invalid_argument(fmt::format("token {} is not allowed here", token_id));
  };
  const std::lock_guard lock(state.mutex);
  state.make_room();
  const ConfigurationId now = position_->history.back();
  if (vocabulary.is_eos(token_id)) {
    TRY_ASSIGN(const std::span<const uint64_t> mask, state.configurations.mask(now));
    const bool is_stuck = std::all_of(mask.begin(), mask.end(), [](uint64_t w) { return w == 0; });
    if (!is_stuck && !state.configurations.can_end(now)) return refuse();
    position_->history.push_back(Configurations::kDead);
    return {};
  }
  const std::string_view bytes = vocabulary.spelling(token_id);
  if (bytes.empty()) return refuse();
  TRY_ASSIGN(const ConfigurationId next, state.configurations.advance(now, bytes));
  if (next == Configurations::kDead) return refuse();
  position_->history.push_back(next);
  return {};
}

void Matcher::rollback(int32_t num_tokens) {
  CHECK(num_tokens >= 0 && num_tokens <= num_accepted()) << num_tokens;
  const std::lock_guard lock(grammar_->state_->mutex);
  position_->history.resize(position_->history.size() - static_cast<size_t>(num_tokens));
}

bool Matcher::can_end() const {
  const std::lock_guard lock(grammar_->state_->mutex);
  return is_ended() || grammar_->state_->configurations.can_end(position_->history.back());
}

bool Matcher::is_complete() const {
  const std::lock_guard lock(grammar_->state_->mutex);
  return is_ended() || position_->history.back() == Configurations::kEnd;
}

int32_t Matcher::num_accepted() const {
  return static_cast<int32_t>(position_->history.size()) - 1;
}

}  // namespace nibble::grammar

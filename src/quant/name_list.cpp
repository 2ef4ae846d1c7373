#include "quant/name_list.h"

#include <fmt/format.h>

#include <utility>

namespace nibble::quant {
namespace {

// Takes the steps off `budget`.
bool matches(const Regex& regex, std::string_view name, int64_t& budget) {
  int64_t steps = 0;
  const bool is_match = regex.matches_prefix(name, steps);
  budget -= steps;
  return is_match;
}

}  // namespace

void NameList::add(std::string_view text,
                   std::string_view source,
                   Dialect dialect,
                   std::vector<Diagnostic>& diagnostics) {
  const size_t entry = entries_.size();
  entries_.push_back(
      {.text = std::string(text), .source = std::string(source), .dialect = dialect});
  const bool has_regex = dialect == Dialect::kCompressedTensors || dialect == Dialect::kQuark;
  if (has_regex && text.substr(0, 3) == "re:") {
    Result<Regex> regex = Regex::compile(text.substr(3));
    if (!regex.ok()) {
      diagnostics.push_back({.severity = Severity::kWarning,
                             .code = "Q-D5",
                             .message = fmt::format("{}: {} is not evaluated: {}. The stored bytes "
                                                    "decide for the modules that it names.",
                                                    source,
                                                    quoted(text),
                                                    regex.error().message)});
      entries_.back().is_used = true;
      return;
    }
    patterns_.push_back({.kind = Pattern::Kind::kRegex,
                         .text = {},
                         .regex = std::move(regex).value(),
                         .entry = entry,
                         .steps_per_byte = 0});
    return;
  }
  const bool has_globs = dialect != Dialect::kCompressedTensors && dialect != Dialect::kSubstring;
  if (has_globs && is_glob(text)) {
    const bool covers_below = dialect == Dialect::kGptOss;
    patterns_.push_back({.kind = covers_below ? Pattern::Kind::kGlobPrefix : Pattern::Kind::kGlob,
                         .text = std::string(text),
                         .regex = std::nullopt,
                         .entry = entry,
                         .steps_per_byte = 1 + static_cast<int64_t>(text.size()) / 8});
    return;
  }
  const bool names_experts =
      text.size() >= 8 && text.substr(text.size() - 8) == ".experts";  // covers all of them
  const bool covers_below = names_experts || dialect == Dialect::kSubstring ||
                            dialect == Dialect::kGptOss || dialect == Dialect::kQuark;
  literals_.try_emplace(std::string(text), Literal{.entry = entry, .covers_below = covers_below});
  if (dialect == Dialect::kSubstring) {
    patterns_.push_back({.kind = Pattern::Kind::kSubstring,
                         .text = std::string(text),
                         .regex = std::nullopt,
                         .entry = entry});
  }
}

std::optional<size_t> NameList::match(std::string_view name) {
  std::optional<size_t> found;
  std::string_view parent = name;
  while (!parent.empty()) {
    const auto it = literals_.find(std::string(parent));
    if (it != literals_.end() && (parent.size() == name.size() || it->second.covers_below)) {
      entries_[it->second.entry].is_used = true;
      if (!found) found = it->second.entry;
    }
    const size_t dot = parent.rfind('.');
    parent = dot == std::string_view::npos ? std::string_view() : parent.substr(0, dot);
  }
  for (const Pattern& pattern : patterns_) {
    Entry& entry = entries_[pattern.entry];
    if (found && entry.is_used) continue;  // nothing new to learn
    if (budget_ <= 0) break;
    budget_ -= pattern.steps_per_byte * static_cast<int64_t>(name.size() + 1);
    bool is_match = false;
    switch (pattern.kind) {
      case Pattern::Kind::kGlob:
        is_match = glob_matches(pattern.text, name);
        break;
      case Pattern::Kind::kGlobPrefix:
        is_match = glob_matches(pattern.text, name) || glob_matches(pattern.text + ".*", name);
        break;
      case Pattern::Kind::kSubstring:
        is_match = name.find(pattern.text) != std::string_view::npos;
        break;
      case Pattern::Kind::kRegex:
        is_match = matches(*pattern.regex, name, budget_);
        break;
    }
    if (!is_match) continue;
    entry.is_used = true;
    if (!found) found = pattern.entry;
  }
  return found;
}

}  // namespace nibble::quant

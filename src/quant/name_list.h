// Lists of module names and patterns in configuration files, in the dialect of the tool that wrote
// them. Bounded work on hostile lists.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "quant/diagnostic.h"
#include "quant/name_pattern.h"

namespace nibble::quant {

// How the entries of a list are to be read.
enum class Dialect : uint8_t {
  kCompressedTensors,  // "re:" or exact
  kModelOpt,           // globs over the whole name
  kSubstring,          // exact, dotted prefix, substring
  kGptOss,             // '*' and everything below
  kQuark,              // "re:", globs, exact or dotted prefix
};

// A list of names and patterns. Literals are looked up, patterns are tried in turn.
class NameList final {
 public:
  struct Entry {
    std::string text;
    std::string source;  // "ignore in config.json"
    Dialect dialect = Dialect::kModelOpt;
    bool is_used = false;
  };

  static constexpr int64_t kMaxSteps = 20'000'000'000;
  explicit NameList(int64_t max_steps = kMaxSteps) : budget_(max_steps) {}

  // Patterns that cannot be compiled are reported and never match.
  void add(std::string_view text,
           std::string_view source,
           Dialect dialect,
           std::vector<Diagnostic>& diagnostics);

  bool empty() const { return entries_.empty(); }
  const std::vector<Entry>& entries() const { return entries_; }

  // The index of an entry that matches `name`, or nothing. All matching entries become used. Of a
  // hostile list only literals are looked up once patterns have cost a few seconds.
  std::optional<size_t> match(std::string_view name);
  bool is_exhausted() const { return budget_ <= 0; }

 private:
  struct Pattern {
    enum class Kind : uint8_t { kGlob, kGlobPrefix, kSubstring, kRegex };
    Kind kind = Kind::kGlob;
    std::string text;
    std::optional<Regex> regex;
    size_t entry = 0;
    int64_t steps_per_byte = 1;  // of a name, at most about; 0: counted
  };
  struct Literal {
    size_t entry = 0;
    bool covers_below = false;
  };
  std::vector<Entry> entries_;
  std::vector<Pattern> patterns_;
  std::unordered_map<std::string, Literal> literals_;
  int64_t budget_;  // steps that patterns may still take
};

}  // namespace nibble::quant

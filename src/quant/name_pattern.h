// The two pattern languages of exclusion and target lists: globs and the regular expressions that
// Python's re.match takes. Patterns come from files of strangers, so both are matched in time
// linear in the name; constructs that would need backtracking (look-around, back references) are
// refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nibble::quant {

// fnmatch over the whole name: '*' any run (dots too), '?' one character, '[a-z]' and '[!a-z]'.
bool glob_matches(std::string_view pattern, std::string_view name);
// Whether a pattern has any of * ? [.
bool is_glob(std::string_view pattern);

// A regular expression, matched from the start of a name but not necessarily to its end.
// Literals, '.', classes, \d \w \s and their negations, groups, '|', '*' '+' '?' '{m,n}' (lazy
// forms mean the same), '^' and '$'. States are simulated side by side: no backtracking.
class Regex final {
 public:
  // kUnsupported names the construct. At most 4 KiB of pattern and 10,000 states.
  static Result<Regex> compile(std::string_view pattern);

  bool matches_prefix(std::string_view name) const;
  // The same; adds the states entered to `steps`.
  bool matches_prefix(std::string_view name, int64_t& steps) const;

 private:
  struct State {
    enum class Kind : uint8_t { kSet, kSplit, kBegin, kEnd, kMatch };
    Kind kind = Kind::kMatch;
    int32_t set = 0;  // kSet: index into sets_
    int32_t next = -1;
    int32_t other = -1;  // kSplit
  };
  // Which of the 256 bytes a step accepts.
  struct ByteSet {
    uint64_t bits[4] = {};
    bool contains(unsigned char c) const { return ((bits[c >> 6] >> (c & 63)) & 1) != 0; }
    void add(unsigned char c) { bits[c >> 6] |= uint64_t{1} << (c & 63); }
  };
  class Compiler;
  class Runner;

  std::vector<State> states_;
  std::vector<ByteSet> sets_;
  int32_t start_ = 0;
};

}  // namespace nibble::quant

#include "quant/name_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/utf8.h"

namespace nibble::quant {
namespace {

// One "[...]" of a glob. Sets `end` behind it; nullopt when it is not closed and so is a literal.
std::optional<bool> glob_class_matches(std::string_view pattern,
                                       size_t begin,
                                       char c,
                                       size_t& end) {
  size_t i = begin + 1;
  const bool is_negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (is_negated) ++i;
  bool found = false;
  for (const size_t first = i; i < pattern.size() && (pattern[i] != ']' || i == first); ++i) {
    char low = pattern[i];
    char high = low;
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      high = pattern[i + 2];
      i += 2;
    }
    found = found || (low <= c && c <= high);
  }
  if (i >= pattern.size()) return std::nullopt;
  end = i + 1;
  return found != is_negated;
}

}  // namespace

bool is_glob(std::string_view pattern) {
  return pattern.find_first_of("*?[") != std::string_view::npos;
}

bool glob_matches(std::string_view pattern, std::string_view name) {
  // The last '*' is the only one worth retrying: what an earlier one could take, it can take too.
  size_t p = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;
  size_t retry = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = n;
      continue;
    }
    size_t next = p + 1;
    bool is_match = false;
    if (p < pattern.size()) {
      const std::optional<bool> in_class =
          pattern[p] == '[' ? glob_class_matches(pattern, p, name[n], next) : std::nullopt;
      is_match = in_class.value_or(pattern[p] == '?' || pattern[p] == name[n]);
    }
    if (is_match) {
      p = next;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

namespace {

constexpr size_t kMaxPatternBytes = 4096;
constexpr size_t kMaxStates = 10'000;
constexpr int32_t kMaxRepeat = 256;
constexpr int32_t kMaxGroupDepth = 64;

}  // namespace

// Recursive descent to a graph of states (Thompson's construction). A fragment is entered at
// `first` and left through the open ends in `out`.
class Regex::Compiler final {
 public:
  explicit Compiler(std::string_view pattern) : pattern_(pattern) {}

  Result<Regex> compile() {
    if (pattern_.size() > kMaxPatternBytes) return refuse("more than 4096 bytes");
    TRY_ASSIGN(Fragment all, alternatives(0));
    if (position_ != pattern_.size()) return refuse("an unmatched )");
    TRY_ASSIGN(const int32_t match, add({.kind = State::Kind::kMatch}));
    connect(all, match);
    regex_.start_ = all.first;
    return std::move(regex_);
  }

 private:
  // An open end: the `next` or `other` of a state.
  struct End {
    int32_t state = 0;
    bool is_other = false;
  };
  struct Fragment {
    int32_t first = 0;
    std::vector<End> out;
  };

  Error refuse(std::string_view what) const {
    return unsupported(
        fmt::format("regular expression {}: {} at byte {}; expected one that can be matched in "
                    "linear time",
                    escape_for_display(pattern_.substr(0, 200)),
                    what,
                    position_));
  }
  bool at_end() const { return position_ == pattern_.size(); }
  char peek() const { return pattern_[position_]; }
  bool take(char c) {
    if (at_end() || peek() != c) return false;
    ++position_;
    return true;
  }
  bool take(std::string_view text) {
    if (pattern_.substr(position_, text.size()) != text) return false;
    position_ += text.size();
    return true;
  }

  Result<int32_t> add(State state) {
    if (regex_.states_.size() >= kMaxStates) return refuse("too many states");
    regex_.states_.push_back(state);
    return static_cast<int32_t>(regex_.states_.size()) - 1;
  }
  void connect(const Fragment& fragment, int32_t target) {
    for (const End& end : fragment.out) {
      State& state = regex_.states_[static_cast<size_t>(end.state)];
      (end.is_other ? state.other : state.next) = target;
    }
  }
  Result<Fragment> single(State state) {
    TRY_ASSIGN(const int32_t index, add(state));
    return Fragment{index, {{index, false}}};
  }
  Result<Fragment> set(const ByteSet& bytes) {
    regex_.sets_.push_back(bytes);
    return single(
        {.kind = State::Kind::kSet, .set = static_cast<int32_t>(regex_.sets_.size()) - 1});
  }
  // Matches nothing and goes on.
  Result<Fragment> empty() {
    TRY_ASSIGN(const int32_t index, add({.kind = State::Kind::kSplit}));
    return Fragment{index, {{index, false}}};
  }

  Result<Fragment> alternatives(int32_t depth) {
    if (depth > kMaxGroupDepth) return refuse("groups nested too deeply");
    TRY_ASSIGN(Fragment all, sequence(depth));
    while (take('|')) {
      TRY_ASSIGN(Fragment other, sequence(depth));
      TRY_ASSIGN(const int32_t split,
                 add({.kind = State::Kind::kSplit, .next = all.first, .other = other.first}));
      all.first = split;
      all.out.insert(all.out.end(), other.out.begin(), other.out.end());
    }
    return all;
  }

  Result<Fragment> sequence(int32_t depth) {
    TRY_ASSIGN(Fragment all, empty());
    while (!at_end() && peek() != '|' && peek() != ')') {
      TRY_ASSIGN(Fragment next, repeated(depth));
      connect(all, next.first);
      all.out = std::move(next.out);
    }
    return all;
  }

  struct Count {
    int32_t min = 1;
    int32_t max = 1;  // -1: no limit
  };

  // A quantifier at the current position; {1, 1} when there is none.
  Result<Count> count() {
    Count count;
    if (take('*')) {
      count = {0, -1};
    } else if (take('+')) {
      count = {1, -1};
    } else if (take('?')) {
      count = {0, 1};
    } else if (!at_end() && peek() == '{') {
      const size_t begin = position_;
      ++position_;
      const std::optional<int32_t> low = number();
      std::optional<int32_t> high = low;
      if (take(',')) high = !at_end() && peek() == '}' ? std::optional(-1) : number();
      if (!low || !high || !take('}')) {
        position_ = begin;  // a literal brace, as in Python
        return Count{};
      }
      if (*low > kMaxRepeat || *high > kMaxRepeat || (*high >= 0 && *high < *low)) {
        return refuse("a repetition out of range");
      }
      count = {*low, *high};
    } else {
      return count;
    }
    if (take('+')) return refuse("a possessive quantifier");
    take('?');  // lazy: which match is found first makes no difference here
    return count;
  }

  std::optional<int32_t> number() {
    int32_t value = 0;
    const size_t begin = position_;
    while (!at_end() && peek() >= '0' && peek() <= '9' && position_ - begin < 6) {
      value = value * 10 + (peek() - '0');
      ++position_;
    }
    if (position_ == begin) return std::nullopt;
    return value;
  }

  // The atom is compiled again for each copy: its text is parsed from the same place.
  Result<Fragment> repeated(int32_t depth) {
    const size_t begin = position_;
    TRY_ASSIGN(Fragment first, atom(depth));
    const size_t end_of_atom = position_;
    TRY_ASSIGN(const Count count, this->count());
    const size_t end = position_;
    if (count.min == 1 && count.max == 1) return first;
    const auto copy = [&]() -> Result<Fragment> {
      position_ = begin;
      Result<Fragment> fragment = atom(depth);
      DCHECK(!fragment.ok() || position_ == end_of_atom);
      position_ = end;
      return fragment;
    };
    TRY_ASSIGN(Fragment all, empty());
    for (int32_t i = 0; i < count.min; ++i) {
      TRY_ASSIGN(Fragment next, copy());
      connect(all, next.first);
      all.out = std::move(next.out);
    }
    if (count.max < 0) {
      TRY_ASSIGN(Fragment loop, copy());
      TRY_ASSIGN(const int32_t split, add({.kind = State::Kind::kSplit, .next = loop.first}));
      connect(all, split);
      connect(loop, split);
      all.out = {{split, true}};
      return all;
    }
    std::vector<End> skipped;
    for (int32_t i = count.min; i < count.max; ++i) {
      TRY_ASSIGN(Fragment next, copy());
      TRY_ASSIGN(const int32_t split, add({.kind = State::Kind::kSplit, .next = next.first}));
      connect(all, split);
      skipped.push_back({split, true});
      all.out = std::move(next.out);
    }
    all.out.insert(all.out.end(), skipped.begin(), skipped.end());
    return all;
  }

  Result<Fragment> atom(int32_t depth) {
    const char c = peek();
    if (c == '*' || c == '+' || c == '?') return refuse("a quantifier without an atom");
    ++position_;
    if (c == '(') {
      if (take('?') && !take(':')) return refuse("a look-around or named group");
      TRY_ASSIGN(Fragment group, alternatives(depth + 1));
      if (!take(')')) return refuse("an unclosed group");
      return group;
    }
    if (c == '^') return single({.kind = State::Kind::kBegin});
    if (c == '$') return single({.kind = State::Kind::kEnd});
    ByteSet bytes;
    if (c == '.') {
      for (int32_t i = 0; i < 256; ++i) {
        if (i != '\n') bytes.add(static_cast<unsigned char>(i));
      }
    } else if (c == '[') {
      TRY(bracket(bytes));
    } else if (c == '\\') {
      TRY(escape(bytes));
    } else {
      bytes.add(static_cast<unsigned char>(c));
    }
    return set(bytes);
  }

  static bool in_named_class(char name, int32_t c) {
    const bool is_digit = c >= '0' && c <= '9';
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (name == 'd') return is_digit;
    if (name == 'w') return is_digit || is_letter || c == '_';
    return c == ' ' || (c >= '\t' && c <= '\r');
  }

  // What follows a backslash.
  Result<void> escape(ByteSet& bytes) {
    if (at_end()) return refuse("a backslash at the end");
    const char c = pattern_[position_++];
    const char lower = static_cast<char>(c | 0x20);
    if (lower == 'd' || lower == 'w' || lower == 's') {
      for (int32_t i = 0; i < 256; ++i) {
        if (in_named_class(lower, i) == (c == lower)) bytes.add(static_cast<unsigned char>(i));
      }
      return {};
    }
    if (c == 'n' || c == 't') {
      bytes.add(c == 'n' ? '\n' : '\t');
      return {};
    }
    if (in_named_class('w', c) && c != '_') return refuse("an unknown escape or back reference");
    bytes.add(static_cast<unsigned char>(c));
    return {};
  }

  // The rest of "[...]".
  Result<void> bracket(ByteSet& bytes) {
    ByteSet inside;
    const bool is_negated = take('^');
    for (bool is_first = true; at_end() || peek() != ']' || is_first; is_first = false) {
      if (at_end()) return refuse("an unclosed class");
      const char low = pattern_[position_++];
      if (low == '\\') {
        TRY(escape(inside));
        continue;
      }
      char high = low;
      if (position_ + 1 < pattern_.size() && peek() == '-' && pattern_[position_ + 1] != ']') {
        high = pattern_[position_ + 1];
        position_ += 2;
      }
      if (high == '\\' || high < low) return refuse("a bad range");
      for (int32_t i = low; i <= high; ++i) inside.add(static_cast<unsigned char>(i));
    }
    ++position_;
    for (int32_t i = 0; i < 256; ++i) {
      const auto c = static_cast<unsigned char>(i);
      if (inside.contains(c) != is_negated) bytes.add(c);
    }
    return {};
  }

  std::string_view pattern_;
  size_t position_ = 0;
  Regex regex_;
};

// Steps all states that a prefix of the name can be in.
class Regex::Runner final {
 public:
  Runner(const Regex& regex, std::string_view name)
      : regex_(regex), name_(name), seen_(regex.states_.size(), -1) {}

  int64_t steps() const { return steps_; }

  bool matches_prefix() {
    enter(regex_.start_, 0);
    for (size_t i = 0; !is_matched_ && i < name_.size() && !current_.empty(); ++i) {
      std::vector<int32_t> states;
      states.swap(current_);
      for (const int32_t index : states) {
        const State& state = regex_.states_[static_cast<size_t>(index)];
        const ByteSet& set = regex_.sets_[static_cast<size_t>(state.set)];
        if (set.contains(static_cast<unsigned char>(name_[i]))) enter(state.next, i + 1);
      }
    }
    return is_matched_;
  }

 private:
  // Adds `first` and what it reaches without a character. Each state enters once per position.
  void enter(int32_t first, size_t position) {
    pending_.push_back(first);
    while (!pending_.empty()) {
      const int32_t index = pending_.back();
      pending_.pop_back();
      if (index < 0) continue;
      int64_t& seen = seen_[static_cast<size_t>(index)];
      if (seen == static_cast<int64_t>(position)) continue;
      seen = static_cast<int64_t>(position);
      ++steps_;
      const State& state = regex_.states_[static_cast<size_t>(index)];
      switch (state.kind) {
        case State::Kind::kSet:
          current_.push_back(index);
          break;
        case State::Kind::kSplit:
          pending_.push_back(state.next);
          pending_.push_back(state.other);
          break;
        case State::Kind::kBegin:
          if (position == 0) pending_.push_back(state.next);
          break;
        case State::Kind::kEnd:
          if (position == name_.size()) pending_.push_back(state.next);
          break;
        case State::Kind::kMatch:
          is_matched_ = true;
          break;
      }
    }
  }

  const Regex& regex_;
  std::string_view name_;
  std::vector<int64_t> seen_;
  std::vector<int32_t> current_;
  std::vector<int32_t> pending_;
  bool is_matched_ = false;
  int64_t steps_ = 0;
};

Result<Regex> Regex::compile(std::string_view pattern) { return Compiler(pattern).compile(); }

bool Regex::matches_prefix(std::string_view name) const {
  return Runner(*this, name).matches_prefix();
}

bool Regex::matches_prefix(std::string_view name, int64_t& steps) const {
  Runner runner(*this, name);
  const bool is_match = runner.matches_prefix();
  steps += runner.steps();
  return is_match;
}

}  // namespace nibble::quant

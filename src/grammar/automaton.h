// A grammar as one machine over bytes: states with byte edges and edges that call other rules. A
// call continues at its target once the called rule has read its text. Immutable, any thread.
//
// What construction guarantees:
//   - No edge is empty: each reads at least one byte; rules that may read nothing are bypassed.
//   - Every state can reach the end of its rule, also within the limit on recursion, and through
//     bytes that single tokens spell. So whatever has been read can be completed.
//   - No rule calls itself before it has read a byte.
#pragma once

#include <array>
#include <bitset>
#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "grammar/expression.h"
#include "grammar/limits.h"
#include "grammar/vocabulary.h"

namespace nibble::grammar {

struct ByteEdge {
  uint8_t first_class = 0;  // byte classes are numbered along the bytes, so that ranges stay ranges
  uint8_t last_class = 0;
  int32_t target = 0;
};

struct CallEdge {
  int32_t rule = 0;
  int32_t target = 0;

  friend constexpr auto operator<=>(const CallEdge&, const CallEdge&) = default;
};

struct AutomatonState {
  int32_t bytes_begin = 0;
  int32_t bytes_end = 0;
  int32_t calls_begin = 0;
  int32_t calls_end = 0;
  bool is_accepting = false;  // the rule may end here
  // The rule that the state belongs to can call itself, directly or not.
  bool is_in_recursion = false;
  // Recursive activations that must still nest for the rule to end from here.
  uint16_t needed_recursion = 0;
};

struct AutomatonRule {
  int32_t start = 0;
  // Left corners come later: a rule calls only rules of higher rank before it reads a byte.
  int32_t rank = 0;
  std::bitset<256> first_classes;  // of its first byte
};

class Automaton final {
 public:
  // kInvalidArgument: too many states, left recursion, or no text satisfies the grammar.
  static Result<Automaton> make(const Rules& rules,
                                RuleId root,
                                const Vocabulary& vocabulary,
                                const Limits& limits);

  // State 0 is the end of the whole text: accepting, without edges.
  static constexpr int32_t kEnd = 0;

  const AutomatonState& state(int32_t index) const { return states_[static_cast<size_t>(index)]; }
  std::span<const ByteEdge> byte_edges(const AutomatonState& state) const {
    return {byte_edges_.data() + state.bytes_begin, byte_edges_.data() + state.bytes_end};
  }
  std::span<const CallEdge> call_edges(const AutomatonState& state) const {
    return {call_edges_.data() + state.calls_begin, call_edges_.data() + state.calls_end};
  }
  const AutomatonRule& rule(int32_t index) const { return rules_[static_cast<size_t>(index)]; }
  int32_t root() const { return root_; }
  bool accepts_empty() const { return accepts_empty_; }

  int32_t class_of(uint8_t byte) const { return class_of_[byte]; }
  int32_t num_classes() const { return num_classes_; }
  int32_t num_states() const { return static_cast<int32_t>(states_.size()); }
  int64_t size_bytes() const;

 private:
  friend class AutomatonBuilder;

  std::vector<AutomatonState> states_;
  std::vector<ByteEdge> byte_edges_;
  std::vector<CallEdge> call_edges_;
  std::vector<AutomatonRule> rules_;
  int32_t root_ = 0;
  bool accepts_empty_ = false;
  std::array<uint8_t, 256> class_of_{};
  int32_t num_classes_ = 0;
};

}  // namespace nibble::grammar

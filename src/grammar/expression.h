// The common form of every constraint: rules whose bodies are expressions over bytes. The readers
// of schemas, regular expressions and EBNF build it; the automaton is made from it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "grammar/code_points.h"

namespace nibble::grammar {

using ExprId = Id<struct ExprTag>;
using RuleId = Id<struct RuleTag>;

// Byte that no UTF-8 text has. It introduces a control token: kControlByte, then the token's id in
// three bytes, most significant first. Automaton and token trie share this spelling.
inline constexpr uint8_t kControlByte = 0xFF;
inline constexpr int32_t kMaxControlTokenId = (1 << 24) - 1;
std::string control_token_spelling(int32_t token_id);

// A step of a graph: `label` is read from node `from` to node `to`.
struct GraphEdge {
  int32_t from = 0;
  int32_t to = 0;
  ExprId label;
};

struct Expr {
  static constexpr int32_t kGraphStart = 0;
  static constexpr int32_t kGraphEnd = 1;

  enum class Kind {
    kNever,    // no text at all
    kEmpty,    // the empty text
    kBytes,    // `bytes`, one after the other
    kControl,  // `bytes` is the spelling of a control token
    kByteRange,
    kSequence,
    kChoice,
    kRepeat,  // one child, min to max times; max -1: without end
    kGraph,   // a way along `edges` from kGraphStart to kGraphEnd, of `max` nodes
    kCall,
  };
  Kind kind = Kind::kNever;
  uint8_t first_byte = 0;  // kByteRange, inclusive
  uint8_t last_byte = 0;
  int32_t min = 0;
  int32_t max = 0;
  RuleId rule;
  std::string bytes;
  std::vector<ExprId> children;
  std::vector<GraphEdge> edges;
};

// Builds expressions. Trivial cases fold: a sequence with never() is never(), a choice drops it.
// When more than the permitted expressions are made, everything becomes never() and is_exhausted()
// tells; readers need not check in between, since their input is bounded.
class Rules final {
 public:
  explicit Rules(int32_t max_expressions);

  ExprId never() const { return ExprId{0}; }
  ExprId empty() const { return ExprId{1}; }
  ExprId bytes(std::string_view text);
  ExprId control_token(int32_t token_id);
  ExprId byte_range(uint8_t first, uint8_t last);
  // One code point of the set, in UTF-8. Surrogates are never part of it.
  ExprId code_point(const CodePointSet& set);
  ExprId sequence(std::span<const ExprId> parts);
  ExprId sequence(std::initializer_list<ExprId> parts) {
    return sequence({parts.begin(), parts.size()});
  }
  ExprId choice(std::span<const ExprId> options);
  ExprId choice(std::initializer_list<ExprId> options) {
    return choice({options.begin(), options.size()});
  }
  // One of the texts, as a tree over common prefixes.
  ExprId one_of(std::vector<std::string> texts);
  ExprId optional(ExprId body) { return choice({empty(), body}); }
  ExprId repeat(ExprId body, int32_t min, std::optional<int32_t> max);
  // Nodes are 0 to num_nodes - 1, at least kGraphStart and kGraphEnd. Every edge counts as an
  // expression.
  ExprId graph(int32_t num_nodes, std::vector<GraphEdge> edges);

  // A rule must be defined before the automaton is made; calls may come earlier.
  RuleId add_rule(std::string name);
  void define(RuleId rule, ExprId body);
  RuleId add_rule(std::string name, ExprId body);
  ExprId call(RuleId rule);
  // `body` behind a call, so that using it often costs one edge each; small ones stay in place.
  ExprId shared(ExprId body);

  const Expr& operator[](ExprId id) const { return exprs_[static_cast<size_t>(id.value)]; }
  // Made so far, with the edges of graphs.
  int64_t num_expressions() const { return static_cast<int64_t>(exprs_.size()) + num_edges_; }
  int32_t max_expressions() const { return max_expressions_; }
  int32_t num_rules() const { return static_cast<int32_t>(bodies_.size()); }
  ExprId body(RuleId rule) const { return bodies_[static_cast<size_t>(rule.value)]; }
  const std::string& name(RuleId rule) const { return names_[static_cast<size_t>(rule.value)]; }
  bool is_exhausted() const { return is_exhausted_; }

 private:
  ExprId add(Expr expr);
  bool is_never(ExprId id) const { return id == never(); }
  bool is_empty(ExprId id) const { return id == empty(); }
  ExprId one_of_sorted(std::span<const std::string> texts, size_t offset);

  int32_t max_expressions_;
  int64_t num_edges_ = 0;
  bool is_exhausted_ = false;
  std::vector<Expr> exprs_;
  std::vector<ExprId> bodies_;
  std::vector<std::string> names_;
};

}  // namespace nibble::grammar

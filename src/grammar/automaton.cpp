#include "grammar/automaton.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/check.h"

namespace nibble::grammar {
namespace {

constexpr int32_t kNone = -1;
// All states in which nothing but the end of the rule can follow are one.
constexpr int32_t kDone = 1;
constexpr int32_t kNumFixedStates = 2;

struct RawByteEdge {
  uint8_t first = 0;
  uint8_t last = 0;
  int32_t target = 0;

  friend constexpr auto operator<=>(const RawByteEdge&, const RawByteEdge&) = default;
};

template <class T>
void sort_unique(std::vector<T>& items) {
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
}

// A state while edges may still be empty.
struct RawState {
  int32_t rule = 0;
  bool is_end = false;
  std::vector<RawByteEdge> bytes;
  std::vector<CallEdge> calls;
  std::vector<int32_t> jumps;  // empty edges
};

struct RawRule {
  int32_t start = kNone;
  int32_t end = kNone;
  bool is_nullable = false;
  bool is_recursive = false;
  int32_t rank = kNone;
};

// An edge seen from its target.
struct Predecessor {
  int32_t state = 0;
  int32_t rule = kNone;  // the rule that the edge calls
};

size_t index(int32_t i) { return static_cast<size_t>(i); }

}  // namespace

// Steps of construction, in the order of make(). Every step is linear in states and edges, which
// the limits bound.
class AutomatonBuilder final {
 public:
  AutomatonBuilder(const Rules& rules, const Vocabulary& vocabulary, const Limits& limits)
      : source_(rules), vocabulary_(vocabulary), limits_(limits) {}

  Result<Automaton> make(RuleId root) {
    build_rules(root.value);
    if (source_.is_exhausted() || is_exhausted_) return too_large();
    find_nullable_rules();
    remove_jumps();
    if (is_exhausted_) return too_large();
    find_recursive_rules();
    find_needed_recursion();
    remove_dead_edges();
    const RawRule& top = rules_[index(root.value)];
    const bool has_text = needed_[index(top.start)] != kNone;
    if (!has_text && !top.is_nullable) {
      return invalid_argument(fmt::format("no text can satisfy it (within {} nested recursions)",
                                          limits_.max_recursion));
    }
    TRY(rank_rules());
    return emit(root.value);
  }

 private:
  Error too_large() const {
    return invalid_argument(fmt::format(
        "it is too large: expected at most {} states, {} edges and {} syntax nodes; shorten "
        "lists and counts",
        limits_.max_states,
        limits_.max_edges,
        limits_.max_expressions));
  }

  int32_t add_state(int32_t rule) {
    if (static_cast<int32_t>(states_.size()) >= limits_.max_states) {
      is_exhausted_ = true;
      return 0;
    }
    states_.emplace_back();
    states_.back().rule = rule;
    return static_cast<int32_t>(states_.size()) - 1;
  }

  bool count_edge() {
    if (++num_edges_ > limits_.max_edges) is_exhausted_ = true;
    return !is_exhausted_;
  }

  // Rules that nothing calls stay without states.
  void build_rules(int32_t root) {
    rules_.resize(index(source_.num_rules()));
    states_.resize(kNumFixedStates);
    reach_rule(root);
    while (!unbuilt_.empty() && !is_exhausted_) {
      const int32_t rule = unbuilt_.back();
      unbuilt_.pop_back();
      build(source_.body(RuleId{rule}), rules_[index(rule)].start, rules_[index(rule)].end);
    }
  }

  void reach_rule(int32_t rule) {
    RawRule& reached = rules_[index(rule)];
    if (reached.start != kNone) return;
    reached.start = add_state(rule);
    reached.end = add_state(rule);
    states_[index(reached.end)].is_end = true;
    unbuilt_.push_back(rule);
  }

  // Adds what reads `id` between two states. Nothing ever leads back to `from` or on from `to`
  // except what the caller adds.
  void build(ExprId id, int32_t from, int32_t to) {
    if (is_exhausted_) return;
    const Expr& expr = source_[id];
    switch (expr.kind) {
      case Expr::Kind::kNever:
        return;
      case Expr::Kind::kEmpty:
        return add_jump(from, to);
      case Expr::Kind::kBytes:
      case Expr::Kind::kControl:
        return build_bytes(expr, from, to);
      case Expr::Kind::kByteRange:
        return add_range(expr.first_byte, expr.last_byte, from, to);
      case Expr::Kind::kSequence:
        for (size_t i = 0; i < expr.children.size(); ++i) {
          const bool is_last = i + 1 == expr.children.size();
          const int32_t next = is_last ? to : add_state(states_[index(from)].rule);
          build(expr.children[i], from, next);
          from = next;
        }
        return;
      case Expr::Kind::kChoice:
        for (const ExprId child : expr.children) build(child, from, to);
        return;
      case Expr::Kind::kRepeat:
        return build_repeat(expr, from, to);
      case Expr::Kind::kGraph:
        return build_graph(expr, from, to);
      case Expr::Kind::kCall:
        if (!count_edge()) return;
        reach_rule(expr.rule.value);
        states_[index(from)].calls.push_back({.rule = expr.rule.value, .target = to});
        return;
    }
  }

  void add_jump(int32_t from, int32_t to) {
    if (count_edge()) states_[index(from)].jumps.push_back(to);
  }

  void build_bytes(const Expr& expr, int32_t from, int32_t to) {
    for (size_t i = 0; i < expr.bytes.size() && !is_exhausted_; ++i) {
      const bool is_last = i + 1 == expr.bytes.size();
      const int32_t next = is_last ? to : add_state(states_[index(from)].rule);
      const auto byte = static_cast<uint8_t>(expr.bytes[i]);
      if (expr.kind == Expr::Kind::kControl) {
        if (count_edge()) states_[index(from)].bytes.push_back({byte, byte, next});
      } else {
        add_range(byte, byte, from, next);
      }
      from = next;
    }
  }

  // Less the bytes that no token spells.
  void add_range(uint8_t first, uint8_t last, int32_t from, int32_t to) {
    for (int32_t byte = first; byte <= last; ++byte) {
      if (!vocabulary_.can_spell(static_cast<uint8_t>(byte))) continue;
      const int32_t begin = byte;
      while (byte < last && vocabulary_.can_spell(static_cast<uint8_t>(byte + 1))) ++byte;
      if (!count_edge()) return;
      states_[index(from)].bytes.push_back(
          {static_cast<uint8_t>(begin), static_cast<uint8_t>(byte), to});
    }
  }

  void build_repeat(const Expr& expr, int32_t from, int32_t to) {
    const ExprId body = expr.children.front();
    const int32_t rule = states_[index(from)].rule;
    const int32_t num_copies = expr.max < 0 ? expr.min : expr.max;
    for (int32_t i = 0; i < num_copies && !is_exhausted_; ++i) {
      if (i >= expr.min) add_jump(from, to);
      const int32_t next = add_state(rule);
      build(body, from, next);
      from = next;
    }
    if (expr.max >= 0) return add_jump(from, to);
    const int32_t loop = add_state(rule);
    const int32_t loop_end = add_state(rule);
    add_jump(from, loop);
    build(body, loop, loop_end);
    add_jump(loop_end, loop);
    add_jump(loop, to);
  }

  void build_graph(const Expr& expr, int32_t from, int32_t to) {
    std::vector<int32_t> nodes;
    nodes.reserve(static_cast<size_t>(expr.max));
    for (int32_t i = 0; i < expr.max; ++i) nodes.push_back(add_state(states_[index(from)].rule));
    if (is_exhausted_) return;
    add_jump(from, nodes[Expr::kGraphStart]);
    add_jump(nodes[Expr::kGraphEnd], to);
    for (const GraphEdge& edge : expr.edges) {
      build(edge.label, nodes[index(edge.from)], nodes[index(edge.to)]);
    }
  }

  // A rule is nullable when its end can be reached without reading: backwards from the ends.
  void find_nullable_rules() {
    std::vector<std::vector<Predecessor>> predecessors(states_.size());
    std::vector<std::vector<CallEdgeAt>> callers(rules_.size());
    for (int32_t i = 0; i < num_states(); ++i) {
      for (const int32_t target : states_[index(i)].jumps) {
        predecessors[index(target)].push_back({.state = i});
      }
      for (const CallEdge& call : states_[index(i)].calls) {
        predecessors[index(call.target)].push_back({.state = i, .rule = call.rule});
        callers[index(call.rule)].push_back({i, call.target});
      }
    }
    std::vector<bool> reaches_end(states_.size());
    std::vector<int32_t> queue;
    const auto mark = [&](int32_t state) {
      if (!reaches_end[index(state)]) queue.push_back(state);
      reaches_end[index(state)] = true;
    };
    for (int32_t i = 0; i < num_states(); ++i) {
      if (states_[index(i)].is_end) mark(i);
    }
    while (!queue.empty()) {
      const int32_t state = queue.back();
      queue.pop_back();
      for (const Predecessor& from : predecessors[index(state)]) {
        if (from.rule == kNone || rules_[index(from.rule)].is_nullable) mark(from.state);
      }
      RawRule& rule = rules_[index(states_[index(state)].rule)];
      if (rule.start != state || rule.is_nullable) continue;
      rule.is_nullable = true;
      for (const CallEdgeAt& call : callers[index(states_[index(state)].rule)]) {
        if (reaches_end[index(call.target)]) mark(call.state);
      }
    }
  }

  // Gives every state the edges of all states it reaches without reading. A start state does not
  // accept: whoever calls a nullable rule can also pass it by.
  void remove_jumps() {
    std::vector<RawState> reduced(states_.size());
    std::vector<int32_t> seen(states_.size(), kNone);
    std::vector<int32_t> stack;
    num_edges_ = 0;
    for (int32_t i = kNumFixedStates; i < num_states() && !is_exhausted_; ++i) {
      RawState& state = reduced[index(i)];
      state.rule = states_[index(i)].rule;
      const auto visit = [&](int32_t reached) {
        if (seen[index(reached)] == i || !count_edge()) return;
        seen[index(reached)] = i;
        stack.push_back(reached);
      };
      visit(i);
      while (!stack.empty()) {
        const RawState& reached = states_[index(stack.back())];
        stack.pop_back();
        state.is_end |= reached.is_end;
        for (const int32_t target : reached.jumps) visit(target);
        for (const CallEdge& call : reached.calls) {
          if (rules_[index(call.rule)].is_nullable) visit(call.target);
          if (count_edge()) state.calls.push_back(call);
        }
        for (const RawByteEdge& edge : reached.bytes) {
          if (count_edge()) state.bytes.push_back(edge);
        }
      }
      state.is_end &= rules_[index(state.rule)].start != i;
      sort_unique(state.calls);
      sort_unique(state.bytes);
    }
    states_ = std::move(reduced);
    states_[Automaton::kEnd].is_end = true;
    states_[kDone].is_end = true;
  }

  // Strongly connected components of "calls" (Tarjan), without recursion.
  void find_recursive_rules() {
    std::vector<std::vector<int32_t>> callees(rules_.size());
    for (int32_t i = kNumFixedStates; i < num_states(); ++i) {
      const RawState& state = states_[index(i)];
      for (const CallEdge& call : state.calls) callees[index(state.rule)].push_back(call.rule);
    }
    std::vector<int32_t> order(rules_.size(), kNone);
    std::vector<int32_t> low(rules_.size());
    std::vector<bool> is_open(rules_.size());
    std::vector<int32_t> open;
    std::vector<std::pair<int32_t, size_t>> path;  // rule, next callee
    int32_t next_order = 0;
    for (int32_t first = 0; first < static_cast<int32_t>(rules_.size()); ++first) {
      if (order[index(first)] != kNone) continue;
      path.push_back({first, 0});
      while (!path.empty()) {
        const int32_t rule = path.back().first;
        if (path.back().second == 0 && order[index(rule)] == kNone) {
          sort_unique(callees[index(rule)]);
          order[index(rule)] = low[index(rule)] = next_order++;
          open.push_back(rule);
          is_open[index(rule)] = true;
        }
        if (path.back().second < callees[index(rule)].size()) {
          const int32_t callee = callees[index(rule)][path.back().second++];
          if (callee == rule) rules_[index(rule)].is_recursive = true;
          if (order[index(callee)] == kNone) {
            path.push_back({callee, 0});
          } else if (is_open[index(callee)]) {
            low[index(rule)] = std::min(low[index(rule)], order[index(callee)]);
          }
          continue;
        }
        path.pop_back();
        if (!path.empty()) {
          int32_t& parent_low = low[index(path.back().first)];
          parent_low = std::min(parent_low, low[index(rule)]);
        }
        if (low[index(rule)] == order[index(rule)]) close_component(rule, open, is_open);
      }
    }
  }

  void close_component(int32_t root, std::vector<int32_t>& open, std::vector<bool>& is_open) {
    const bool is_single = open.back() == root;
    while (true) {
      const int32_t rule = open.back();
      open.pop_back();
      is_open[index(rule)] = false;
      if (!is_single) rules_[index(rule)].is_recursive = true;
      if (rule == root) return;
    }
  }

  int32_t call_cost(int32_t rule, int32_t needed_by_rule) const {
    return needed_by_rule + (rules_[index(rule)].is_recursive ? 1 : 0);
  }

  // needed_[state]: the least nesting with which its rule can end, kNone beyond the limit. States
  // are settled in increasing order, backwards from the ends.
  void find_needed_recursion() {
    std::vector<std::vector<Predecessor>> predecessors(states_.size());
    std::vector<std::vector<CallEdgeAt>> callers(rules_.size());
    for (int32_t i = kNumFixedStates; i < num_states(); ++i) {
      for (const RawByteEdge& edge : states_[index(i)].bytes) {
        predecessors[index(edge.target)].push_back({.state = i});
      }
      for (const CallEdge& call : states_[index(i)].calls) {
        predecessors[index(call.target)].push_back({.state = i, .rule = call.rule});
        callers[index(call.rule)].push_back({i, call.target});
      }
    }
    needed_.assign(states_.size(), kNone);
    std::vector<std::vector<int32_t>> levels(index(limits_.max_recursion) + 1);
    const auto schedule = [&](int32_t state, int32_t level) {
      if (level <= limits_.max_recursion && needed_[index(state)] == kNone) {
        levels[index(level)].push_back(state);
      }
    };
    for (int32_t i = 0; i < num_states(); ++i) {
      if (states_[index(i)].is_end) schedule(i, 0);
    }
    for (int32_t level = 0; level <= limits_.max_recursion; ++level) {
      while (!levels[index(level)].empty()) {
        const int32_t state = levels[index(level)].back();
        levels[index(level)].pop_back();
        if (needed_[index(state)] != kNone) continue;
        needed_[index(state)] = level;
        for (const Predecessor& from : predecessors[index(state)]) {
          if (from.rule == kNone) {
            schedule(from.state, level);
            continue;
          }
          const int32_t needed = needed_[index(rules_[index(from.rule)].start)];
          if (needed != kNone) schedule(from.state, std::max(level, call_cost(from.rule, needed)));
        }
        const int32_t rule = states_[index(state)].rule;
        if (state < kNumFixedStates || rules_[index(rule)].start != state) continue;
        for (const CallEdgeAt& call : callers[index(rule)]) {
          const int32_t needed = needed_[index(call.target)];
          if (needed != kNone) schedule(call.state, std::max(needed, call_cost(rule, level)));
        }
      }
    }
  }

  void remove_dead_edges() {
    for (RawState& state : states_) {
      const auto is_dead = [&](int32_t target) { return needed_[index(target)] == kNone; };
      std::erase_if(state.bytes, [&](const RawByteEdge& edge) { return is_dead(edge.target); });
      std::erase_if(state.calls, [&](const CallEdge& call) {
        const int32_t start = rules_[index(call.rule)].start;
        return is_dead(call.target) || is_dead(start) ||
               call_cost(call.rule, needed_[index(start)]) > limits_.max_recursion;
      });
    }
  }

  // Depth-first over left corners; a rule met again while it is open begins with itself.
  Result<void> rank_rules() {
    int32_t next_rank = static_cast<int32_t>(rules_.size());
    std::vector<bool> is_open(rules_.size());
    std::vector<std::pair<int32_t, size_t>> path;  // rule, next call of its start
    for (int32_t first = 0; first < static_cast<int32_t>(rules_.size()); ++first) {
      if (rules_[index(first)].start == kNone || rules_[index(first)].rank != kNone) continue;
      path.push_back({first, 0});
      is_open[index(first)] = true;
      while (!path.empty()) {
        const int32_t rule = path.back().first;
        const auto& calls = states_[index(rules_[index(rule)].start)].calls;
        if (path.back().second == calls.size()) {
          rules_[index(rule)].rank = --next_rank;
          is_open[index(rule)] = false;
          path.pop_back();
          continue;
        }
        const int32_t callee = calls[path.back().second++].rule;
        if (is_open[index(callee)]) {
          return invalid_argument(
              fmt::format("rule '{}' begins with itself (left recursion); write a repetition",
                          source_.name(RuleId{callee})));
        }
        if (rules_[index(callee)].rank != kNone) continue;
        path.push_back({callee, 0});
        is_open[index(callee)] = true;
      }
    }
    return {};
  }

  Automaton emit(int32_t root) {
    Automaton out;
    number_classes(out);
    number_states(root);
    out.states_.resize(new_order_.size());
    for (size_t i = 0; i < new_order_.size(); ++i) emit_state(new_order_[i], out.states_[i], out);
    out.rules_.resize(rules_.size());
    for (size_t i = 0; i < rules_.size(); ++i) {
      out.rules_[i].rank = rules_[i].rank;
      if (rules_[i].start != kNone) out.rules_[i].start = new_index_[index(rules_[i].start)];
    }
    emit_first_classes(out);
    out.root_ = root;
    out.accepts_empty_ = rules_[index(root)].is_nullable;
    return out;
  }

  void number_classes(Automaton& out) const {
    std::array<bool, 257> begins{};
    for (const RawState& state : states_) {
      for (const RawByteEdge& edge : state.bytes) {
        begins[edge.first] = true;
        begins[size_t{edge.last} + 1] = true;
      }
    }
    int32_t current = 0;
    for (size_t byte = 0; byte < 256; ++byte) {
      if (byte > 0 && begins[byte]) ++current;
      out.class_of_[byte] = static_cast<uint8_t>(current);
    }
    out.num_classes_ = current + 1;
  }

  bool is_done(int32_t state) const {
    const RawState& raw = states_[index(state)];
    return state != Automaton::kEnd && raw.is_end && raw.bytes.empty() && raw.calls.empty();
  }

  int32_t resolved(int32_t state) const { return is_done(state) ? kDone : state; }

  // Keeps what the root can reach; starts of rules that nothing reaches map to kDone.
  void number_states(int32_t root) {
    new_index_.assign(states_.size(), kNone);
    const auto reach = [&](int32_t state) {
      if (new_index_[index(state)] != kNone) return;
      new_index_[index(state)] = static_cast<int32_t>(new_order_.size());
      new_order_.push_back(state);
    };
    reach(Automaton::kEnd);
    reach(kDone);
    reach(rules_[index(root)].start);
    for (size_t i = 0; i < new_order_.size(); ++i) {
      const RawState& state = states_[index(new_order_[i])];
      for (const RawByteEdge& edge : state.bytes) reach(resolved(edge.target));
      for (const CallEdge& call : state.calls) {
        reach(resolved(call.target));
        reach(rules_[index(call.rule)].start);
      }
    }
    for (int32_t& position : new_index_) {
      if (position == kNone) position = kDone;
    }
  }

  void emit_state(int32_t old, AutomatonState& state, Automaton& out) const {
    const RawState& raw = states_[index(old)];
    state.is_accepting = raw.is_end;
    state.is_in_recursion = old >= kNumFixedStates && rules_[index(raw.rule)].is_recursive;
    state.needed_recursion = static_cast<uint16_t>(std::max(needed_[index(old)], 0));
    state.bytes_begin = static_cast<int32_t>(out.byte_edges_.size());
    for (const RawByteEdge& edge : raw.bytes) {
      out.byte_edges_.push_back({.first_class = out.class_of_[edge.first],
                                 .last_class = out.class_of_[edge.last],
                                 .target = new_index_[index(resolved(edge.target))]});
    }
    state.bytes_end = static_cast<int32_t>(out.byte_edges_.size());
    state.calls_begin = static_cast<int32_t>(out.call_edges_.size());
    for (const CallEdge& call : raw.calls) {
      out.call_edges_.push_back(
          {.rule = call.rule, .target = new_index_[index(resolved(call.target))]});
    }
    state.calls_end = static_cast<int32_t>(out.call_edges_.size());
  }

  // From the last rank to the first, so that callees are known.
  void emit_first_classes(Automaton& out) const {
    std::vector<int32_t> by_rank(rules_.size());
    std::iota(by_rank.begin(), by_rank.end(), 0);
    std::sort(by_rank.begin(), by_rank.end(), [&](int32_t a, int32_t b) {
      return rules_[index(a)].rank > rules_[index(b)].rank;
    });
    for (const int32_t rule : by_rank) {
      if (rules_[index(rule)].start == kNone) continue;
      std::bitset<256>& first = out.rules_[index(rule)].first_classes;
      const AutomatonState& start = out.state(out.rules_[index(rule)].start);
      for (const ByteEdge& edge : out.byte_edges(start)) {
        for (size_t c = edge.first_class; c <= edge.last_class; ++c) first.set(c);
      }
      for (const CallEdge& call : out.call_edges(start)) {
        first |= out.rules_[index(call.rule)].first_classes;
      }
    }
  }

  int32_t num_states() const { return static_cast<int32_t>(states_.size()); }

  struct CallEdgeAt {
    int32_t state = 0;
    int32_t target = 0;
  };

  const Rules& source_;
  const Vocabulary& vocabulary_;
  const Limits& limits_;
  bool is_exhausted_ = false;
  int32_t num_edges_ = 0;
  std::vector<RawRule> rules_;
  std::vector<RawState> states_;
  std::vector<int32_t> unbuilt_;
  std::vector<int32_t> needed_;
  std::vector<int32_t> new_index_;  // old state -> new
  std::vector<int32_t> new_order_;  // new state -> old
};

Result<Automaton> Automaton::make(const Rules& rules,
                                  RuleId root,
                                  const Vocabulary& vocabulary,
                                  const Limits& limits) {
  return AutomatonBuilder(rules, vocabulary, limits).make(root);
}

int64_t Automaton::size_bytes() const {
  return static_cast<int64_t>(
      states_.size() * sizeof(AutomatonState) + byte_edges_.size() * sizeof(ByteEdge) +
      call_edges_.size() * sizeof(CallEdge) + rules_.size() * sizeof(AutomatonRule));
}

}  // namespace nibble::grammar

#include "grammar/intersection.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nibble::grammar {
namespace {

constexpr int64_t kMaxStates = 200'000;  // of one operand
constexpr int64_t kMaxEdges = 2'000'000;
constexpr int32_t kStart = 0;
constexpr int32_t kEnd = 1;

size_t index(int32_t i) { return static_cast<size_t>(i); }

struct ByteStep {
  uint8_t first = 0;
  uint8_t last = 0;
  int32_t target = 0;
};

// A state's jumps are gone once the machine is made.
struct ByteState {
  std::vector<ByteStep> steps;
  std::vector<int32_t> jumps;
  bool is_accepting = false;
};

// An expression as a machine over bytes without calls. Calls are written out; one that stands at
// the end of its own rule leads back.
class ByteMachine final {
 public:
  ByteMachine(const Rules& rules, ExprId whole) : rules_(rules), states_(2) {
    build(whole, kStart, kEnd);
    remove_jumps();
  }

  bool is_too_large() const { return is_too_large_; }
  int64_t work() const { return work_; }
  const ByteState& state(int32_t i) const { return states_[index(i)]; }

 private:
  int32_t add_state() {
    if (static_cast<int64_t>(states_.size()) >= kMaxStates) {
      is_too_large_ = true;
      return kEnd;
    }
    states_.emplace_back();
    return static_cast<int32_t>(states_.size()) - 1;
  }

  void add_jump(int32_t from, int32_t to) {
    if (spend()) states_[index(from)].jumps.push_back(to);
  }

  void add_step(uint8_t first, uint8_t last, int32_t from, int32_t to) {
    if (spend()) states_[index(from)].steps.push_back({first, last, to});
  }

  bool spend() {
    if (++work_ > kMaxEdges) is_too_large_ = true;
    return !is_too_large_;
  }

  void build(ExprId id, int32_t from, int32_t to) {
    if (!spend()) return;
    const Expr& expr = rules_[id];
    switch (expr.kind) {
      case Expr::Kind::kNever:
        return;
      case Expr::Kind::kEmpty:
        return add_jump(from, to);
      case Expr::Kind::kBytes:
      case Expr::Kind::kControl:
        return build_bytes(expr, from, to);
      case Expr::Kind::kByteRange:
        return add_step(expr.first_byte, expr.last_byte, from, to);
      case Expr::Kind::kSequence:
        for (size_t i = 0; i < expr.children.size(); ++i) {
          const int32_t next = i + 1 == expr.children.size() ? to : add_state();
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
        return build_call(expr.rule, from, to);
    }
  }

  void build_bytes(const Expr& expr, int32_t from, int32_t to) {
    for (size_t i = 0; i < expr.bytes.size(); ++i) {
      const int32_t next = i + 1 == expr.bytes.size() ? to : add_state();
      const auto byte = static_cast<uint8_t>(expr.bytes[i]);
      add_step(byte, byte, from, next);
      from = next;
    }
  }

  void build_repeat(const Expr& expr, int32_t from, int32_t to) {
    const ExprId body = expr.children.front();
    const int32_t num_copies = expr.max < 0 ? expr.min : expr.max;
    for (int32_t i = 0; i < num_copies && !is_too_large_; ++i) {
      if (i >= expr.min) add_jump(from, to);
      const int32_t next = add_state();
      build(body, from, next);
      from = next;
    }
    if (expr.max >= 0) return add_jump(from, to);
    const int32_t loop = add_state();
    add_jump(from, loop);
    build(body, loop, loop);
    add_jump(loop, to);
  }

  void build_graph(const Expr& expr, int32_t from, int32_t to) {
    std::vector<int32_t> nodes;
    nodes.reserve(static_cast<size_t>(expr.max));
    for (int32_t i = 0; i < expr.max; ++i) nodes.push_back(add_state());
    if (is_too_large_) return;
    add_jump(from, nodes[Expr::kGraphStart]);
    add_jump(nodes[Expr::kGraphEnd], to);
    for (const GraphEdge& edge : expr.edges) {
      build(edge.label, nodes[index(edge.from)], nodes[index(edge.to)]);
    }
  }

  void build_call(RuleId rule, int32_t from, int32_t to) {
    const auto [known, is_new] = calls_.try_emplace({rule.value, to}, kEnd);
    if (!is_new) return add_jump(from, known->second);
    const int32_t start = add_state();
    known->second = start;
    add_jump(from, start);
    build(rules_.body(rule), start, to);
  }

  // Gives every state the steps of all states that it reaches without reading.
  void remove_jumps() {
    std::vector<ByteState> reduced(states_.size());
    std::vector<int32_t> seen(states_.size(), -1);
    std::vector<int32_t> stack;
    for (int32_t i = 0; i < static_cast<int32_t>(states_.size()) && !is_too_large_; ++i) {
      const auto visit = [&](int32_t reached) {
        if (seen[index(reached)] == i || !spend()) return;
        seen[index(reached)] = i;
        stack.push_back(reached);
      };
      visit(i);
      while (!stack.empty()) {
        const int32_t at = stack.back();
        stack.pop_back();
        reduced[index(i)].is_accepting |= at == kEnd;
        for (const int32_t target : states_[index(at)].jumps) visit(target);
        for (const ByteStep& step : states_[index(at)].steps) {
          if (spend()) reduced[index(i)].steps.push_back(step);
        }
      }
    }
    states_ = std::move(reduced);
  }

  const Rules& rules_;
  std::vector<ByteState> states_;
  std::map<std::pair<int32_t, int32_t>, int32_t> calls_;  // (rule, where it leads) -> its start
  int64_t work_ = 0;
  bool is_too_large_ = false;
};

struct ProductEdge {
  int32_t from = 0;
  int32_t to = 0;
  uint8_t first = 0;
  uint8_t last = 0;
};

// Pairs of states that some text reaches together, numbered as they are found.
class Product final {
 public:
  Product(const ByteMachine& a, const ByteMachine& b) : a_(a), b_(b) {
    reach(kStart, kStart);
    for (size_t i = 0; i < pairs_.size() && !is_too_large_; ++i) step(static_cast<int32_t>(i));
  }

  bool is_too_large() const { return is_too_large_; }
  int64_t work() const { return work_; }

  ExprId expression(Rules& rules) const {
    const std::vector<int32_t> nodes = number_useful();
    if (nodes.front() < 0) return rules.never();
    std::map<std::pair<uint8_t, uint8_t>, ExprId> labels;
    std::vector<GraphEdge> edges;
    // The first pair is the start; whatever accepts goes on to the end.
    int32_t num_nodes = 2;
    for (const int32_t node : nodes) num_nodes = std::max(num_nodes, node + 1);
    for (size_t i = 0; i < pairs_.size(); ++i) {
      if (accepts(pairs_[i])) edges.push_back({nodes[i], Expr::kGraphEnd, rules.empty()});
    }
    for (const ProductEdge& edge : edges_) {
      if (nodes[index(edge.from)] < 0 || nodes[index(edge.to)] < 0) continue;
      const auto [label, is_new] = labels.try_emplace({edge.first, edge.last});
      if (is_new) label->second = rules.byte_range(edge.first, edge.last);
      edges.push_back({nodes[index(edge.from)], nodes[index(edge.to)], label->second});
    }
    return rules.graph(num_nodes, std::move(edges));
  }

 private:
  using Pair = std::pair<int32_t, int32_t>;

  bool accepts(const Pair& pair) const {
    return a_.state(pair.first).is_accepting && b_.state(pair.second).is_accepting;
  }

  int32_t reach(int32_t a, int32_t b) {
    const uint64_t key = static_cast<uint64_t>(a) << 32 | static_cast<uint32_t>(b);
    const auto [known, is_new] = numbers_.try_emplace(key, static_cast<int32_t>(pairs_.size()));
    if (is_new) pairs_.push_back({a, b});
    if (static_cast<int64_t>(pairs_.size()) > kMaxProductStates) is_too_large_ = true;
    return known->second;
  }

  void step(int32_t from) {
    const Pair pair = pairs_[index(from)];
    for (const ByteStep& x : a_.state(pair.first).steps) {
      for (const ByteStep& y : b_.state(pair.second).steps) {
        if (++work_ > kMaxEdges) is_too_large_ = true;
        if (is_too_large_) return;
        const uint8_t first = std::max(x.first, y.first);
        const uint8_t last = std::min(x.last, y.last);
        if (first > last) continue;
        edges_.push_back({from, reach(x.target, y.target), first, last});
        if (static_cast<int64_t>(edges_.size()) > kMaxProductEdges) is_too_large_ = true;
      }
    }
  }

  // The node of each pair from which an accepting one can be reached; -1 for the others.
  std::vector<int32_t> number_useful() const {
    std::vector<std::vector<int32_t>> predecessors(pairs_.size());
    for (const ProductEdge& edge : edges_) predecessors[index(edge.to)].push_back(edge.from);
    std::vector<int32_t> nodes(pairs_.size(), -1);
    std::vector<int32_t> queue;
    int32_t next = Expr::kGraphEnd + 1;
    const auto mark = [&](int32_t pair) {
      if (nodes[index(pair)] >= 0) return;
      nodes[index(pair)] = pair == 0 ? Expr::kGraphStart : next++;
      queue.push_back(pair);
    };
    for (size_t i = 0; i < pairs_.size(); ++i) {
      if (accepts(pairs_[i])) mark(static_cast<int32_t>(i));
    }
    while (!queue.empty()) {
      const int32_t pair = queue.back();
      queue.pop_back();
      for (const int32_t from : predecessors[index(pair)]) mark(from);
    }
    return nodes;
  }

  const ByteMachine& a_;
  const ByteMachine& b_;
  std::unordered_map<uint64_t, int32_t> numbers_;
  std::vector<Pair> pairs_;
  std::vector<ProductEdge> edges_;
  int64_t work_ = 0;
  bool is_too_large_ = false;
};

}  // namespace

std::optional<ExprId> intersection(Rules& rules, ExprId a, ExprId b, int64_t& work) {
  const ByteMachine left(rules, a);
  const ByteMachine right(rules, b);
  work += left.work() + right.work();
  if (left.is_too_large() || right.is_too_large()) return std::nullopt;
  const Product product(left, right);
  work += product.work();
  if (product.is_too_large()) return std::nullopt;
  return product.expression(rules);
}

}  // namespace nibble::grammar

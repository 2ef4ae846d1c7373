#include "grammar/expression.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace nibble::grammar {

std::string control_token_spelling(int32_t token_id) {
  DCHECK(token_id >= 0 && token_id <= kMaxControlTokenId);
  std::string spelling(1, static_cast<char>(kControlByte));
  for (const int32_t shift : {16, 8, 0}) {
    spelling += static_cast<char>(static_cast<uint8_t>((token_id >> shift) & 0xFF));
  }
  return spelling;
}

Rules::Rules(int32_t max_expressions) : max_expressions_(max_expressions) {
  exprs_.push_back({.kind = Expr::Kind::kNever});
  exprs_.push_back({.kind = Expr::Kind::kEmpty});
}

ExprId Rules::add(Expr expr) {
  if (num_expressions() >= max_expressions_) {
    is_exhausted_ = true;
    return never();
  }
  exprs_.push_back(std::move(expr));
  return ExprId{static_cast<int32_t>(exprs_.size()) - 1};
}

ExprId Rules::bytes(std::string_view text) {
  if (text.empty()) return empty();
  Expr expr{.kind = Expr::Kind::kBytes};
  expr.bytes = text;
  return add(std::move(expr));
}

ExprId Rules::control_token(int32_t token_id) {
  Expr expr{.kind = Expr::Kind::kControl};
  expr.bytes = control_token_spelling(token_id);
  return add(std::move(expr));
}

ExprId Rules::byte_range(uint8_t first, uint8_t last) {
  return add({.kind = Expr::Kind::kByteRange, .first_byte = first, .last_byte = last});
}

ExprId Rules::code_point(const CodePointSet& set) {
  std::vector<ExprId> options;
  for (const Utf8Sequence& sequence : utf8_sequences(set)) {
    std::vector<ExprId> parts;
    for (int32_t i = 0; i < sequence.num_bytes; ++i) {
      const ByteRange8 range = sequence.bytes[static_cast<size_t>(i)];
      parts.push_back(byte_range(range.first, range.last));
    }
    options.push_back(this->sequence(parts));
  }
  return choice(options);
}

ExprId Rules::sequence(std::span<const ExprId> parts) {
  Expr expr{.kind = Expr::Kind::kSequence};
  for (const ExprId part : parts) {
    if (is_never(part)) return never();
    if (!is_empty(part)) expr.children.push_back(part);
  }
  if (expr.children.empty()) return empty();
  return expr.children.size() == 1 ? expr.children.front() : add(std::move(expr));
}

ExprId Rules::choice(std::span<const ExprId> options) {
  Expr expr{.kind = Expr::Kind::kChoice};
  for (const ExprId option : options) {
    if (!is_never(option)) expr.children.push_back(option);
  }
  if (expr.children.empty()) return never();
  return expr.children.size() == 1 ? expr.children.front() : add(std::move(expr));
}

ExprId Rules::one_of(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return one_of_sorted(texts, 0);
}

// The texts agree on everything before `offset`.
ExprId Rules::one_of_sorted(std::span<const std::string> texts, size_t offset) {
  if (texts.empty()) return never();
  std::vector<ExprId> options;
  if (texts.front().size() == offset) {
    options.push_back(empty());
    texts = texts.subspan(1);
  }
  while (!texts.empty()) {
    const char byte = texts.front()[offset];
    const auto end = std::find_if(
        texts.begin(), texts.end(), [&](const std::string& text) { return text[offset] != byte; });
    const auto group = texts.first(static_cast<size_t>(end - texts.begin()));
    // Sorted, so what first and last have in common all have.
    const std::string& first = group.front();
    const std::string& last = group.back();
    size_t common = offset;
    while (common < first.size() && common < last.size() && first[common] == last[common]) {
      ++common;
    }
    const std::string_view prefix = std::string_view(first).substr(offset, common - offset);
    const ExprId head = bytes(prefix);
    options.push_back(sequence({head, one_of_sorted(group, common)}));
    texts = texts.subspan(group.size());
  }
  return choice(options);
}

ExprId Rules::repeat(ExprId body, int32_t min, std::optional<int32_t> max) {
  DCHECK(min >= 0 && (!max || *max >= min));
  if (is_never(body)) return min == 0 ? empty() : never();
  if (is_empty(body) || max == 0) return empty();
  if (min == 1 && max == 1) return body;
  const bool is_copied = min > 1 || max.value_or(0) > 1;
  Expr expr{.kind = Expr::Kind::kRepeat, .min = min, .max = max.value_or(-1)};
  expr.children = {is_copied ? shared(body) : body};
  return add(std::move(expr));
}

ExprId Rules::graph(int32_t num_nodes, std::vector<GraphEdge> edges) {
  std::erase_if(edges, [&](const GraphEdge& edge) { return is_never(edge.label); });
  if (edges.empty()) return never();
  num_edges_ += static_cast<int64_t>(edges.size());
  Expr expr{.kind = Expr::Kind::kGraph, .max = num_nodes};
  expr.edges = std::move(edges);
  return add(std::move(expr));
}

RuleId Rules::add_rule(std::string name) {
  bodies_.push_back(never());
  names_.push_back(std::move(name));
  return RuleId{static_cast<int32_t>(bodies_.size()) - 1};
}

void Rules::define(RuleId rule, ExprId body) { bodies_[static_cast<size_t>(rule.value)] = body; }

RuleId Rules::add_rule(std::string name, ExprId body) {
  const RuleId rule = add_rule(std::move(name));
  define(rule, body);
  return rule;
}

ExprId Rules::call(RuleId rule) {
  Expr expr{.kind = Expr::Kind::kCall};
  expr.rule = rule;
  return add(std::move(expr));
}

ExprId Rules::shared(ExprId body) {
  constexpr size_t kSmall = 4;
  const Expr& expr = (*this)[body];
  switch (expr.kind) {
    case Expr::Kind::kSequence:
    case Expr::Kind::kChoice:
    case Expr::Kind::kRepeat:
    case Expr::Kind::kGraph:
      return call(add_rule("part", body));
    case Expr::Kind::kBytes:
    case Expr::Kind::kControl:
      return expr.bytes.size() <= kSmall ? body : call(add_rule("text", body));
    case Expr::Kind::kNever:
    case Expr::Kind::kEmpty:
    case Expr::Kind::kByteRange:
    case Expr::Kind::kCall:
      return body;
  }
  return body;
}

}  // namespace nibble::grammar

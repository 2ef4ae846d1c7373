#include "grammar/json_text.h"

#include <string>
#include <string_view>
#include <vector>

#include "grammar/decimal_range.h"

namespace nibble::grammar {

// The rule exists before its body, so that bodies may refer to it.
template <class Make>
ExprId JsonText::once(RuleId& rule, const char* name, Make make) {
  if (!rule.is_valid()) {
    rule = rules_.add_rule(name);
    rules_.define(rule, make());
  }
  return rules_.call(rule);
}

ExprId JsonText::space() {
  return once(space_, "white space", [&] {
    const ExprId indent = rules_.repeat(rules_.bytes(" "), 0, kMaxIndent);
    return rules_.choice(
        {rules_.empty(), rules_.bytes(" "), rules_.sequence({rules_.bytes("\n"), indent})});
  });
}

ExprId JsonText::colon() {
  return once(colon_, "colon", [&] {
    return rules_.sequence({rules_.bytes(":"), rules_.optional(rules_.bytes(" "))});
  });
}

ExprId JsonText::comma() {
  return once(comma_, "comma", [&] { return rules_.sequence({rules_.bytes(","), space()}); });
}

ExprId JsonText::bracketed(char open, ExprId elements, char close) {
  const ExprId begin = rules_.bytes({&open, 1});
  const ExprId end = rules_.bytes({&close, 1});
  return rules_.sequence({begin, space(), elements, space(), end});
}

ExprId JsonText::any_object() {
  return once(object_, "object", [&] {
    const ExprId member = rules_.sequence({any_string(), colon(), any_value()});
    const ExprId more = rules_.repeat(rules_.sequence({comma(), member}), 0, std::nullopt);
    return bracketed('{', rules_.optional(rules_.sequence({member, more})), '}');
  });
}

ExprId JsonText::any_array() {
  return once(array_, "array", [&] {
    const ExprId more = rules_.repeat(rules_.sequence({comma(), any_value()}), 0, std::nullopt);
    return bracketed('[', rules_.optional(rules_.sequence({any_value(), more})), ']');
  });
}

ExprId JsonText::any_value() {
  return once(value_, "value", [&] {
    return rules_.choice(
        {any_object(), any_array(), any_string(), any_number(), boolean(), null()});
  });
}

ExprId JsonText::character() {
  return once(character_, "character", [&] { return alphabet_.any_character(); });
}

ExprId JsonText::any_string() {
  return once(
      string_, "string", [&] { return quoted(rules_.repeat(character(), 0, std::nullopt)); });
}

ExprId JsonText::any_integer() {
  return once(integer_, "integer", [&] { return decimal_in_range(rules_, {}); });
}

// Within the range of doubles.
ExprId JsonText::any_number() {
  return once(number_, "number", [&] {
    const ExprId digit = rules_.byte_range('0', '9');
    const ExprId fraction = rules_.sequence(
        {rules_.bytes("."), rules_.repeat(digit, 1, static_cast<int32_t>(kMaxFractionDigits))});
    const ExprId sign = rules_.choice({rules_.empty(), rules_.bytes("+"), rules_.bytes("-")});
    const ExprId exponent = rules_.sequence(
        {rules_.choice({rules_.bytes("e"), rules_.bytes("E")}), sign, rules_.repeat(digit, 1, 2)});
    const DecimalBound zero = {.value = {.is_negative = false, .integer = "0", .fraction = {}}};
    const ExprId integer = decimal_in_range(rules_, {.lower = zero, .upper = std::nullopt});
    return rules_.sequence({rules_.optional(rules_.bytes("-")),
                            integer,
                            rules_.optional(fraction),
                            rules_.optional(exponent)});
  });
}

ExprId JsonText::boolean() { return rules_.choice({rules_.bytes("true"), rules_.bytes("false")}); }

ExprId JsonText::null() { return rules_.bytes("null"); }

ExprId JsonText::quoted(ExprId text) {
  return rules_.sequence({rules_.bytes("\""), text, rules_.bytes("\"")});
}

ExprId JsonText::constant(const json::Value& value) {
  if (!value.is_array() && !value.is_object()) {
    return rules_.bytes(json::dump(value, json::Style::kCompact));
  }
  std::vector<ExprId> parts;
  if (const json::Array* items = value.as_array()) {
    for (const json::Value& item : *items) {
      if (!parts.empty()) parts.push_back(comma());
      parts.push_back(constant(item));
    }
    return bracketed('[', rules_.sequence(parts), ']');
  }
  for (const json::Member& member : *value.as_object()) {
    if (!parts.empty()) parts.push_back(comma());
    parts.push_back(rules_.bytes(json::dump(json::Value(member.key), json::Style::kCompact)));
    parts.push_back(colon());
    parts.push_back(constant(member.value));
  }
  return bracketed('{', rules_.sequence(parts), '}');
}

}  // namespace nibble::grammar

// Random schemas of the subset against a validator that knows nothing of grammars: whatever is
// generated is valid, and of values written the declared way exactly the valid ones are accepted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/utf8.h"
#include "grammar/grammar_testing.h"

namespace nibble::grammar {
namespace {

using json::Array;
using json::Object;
using json::Value;

// --- the validator: JSON Schema 2020-12 by the words of its specification. Texts of the tests are
// ASCII, numbers are exact in doubles.

bool is_equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  if (a.is_array() && b.is_array()) {
    return std::equal(a.as_array()->begin(),
                      a.as_array()->end(),
                      b.as_array()->begin(),
                      b.as_array()->end(),
                      is_equal);
  }
  if (a.is_object() && b.is_object()) {
    return a.as_object()->size() == b.as_object()->size() &&
           std::all_of(a.as_object()->begin(), a.as_object()->end(), [&](const json::Member& m) {
             const Value* other = b.find(m.key);
             return other != nullptr && is_equal(m.value, *other);
           });
  }
  return json::dump(a, json::Style::kCompact) == json::dump(b, json::Style::kCompact);
}

class Validator final {
 public:
  explicit Validator(const Value& root) : root_(root) {}

  bool is_valid(const Value& value) const { return fits(value, root_); }

 private:
  bool fits(const Value& value, const Value& schema) const {
    if (const bool* permits = schema.as_bool()) return *permits;
    return fits_type(value, schema) && fits_values(value, schema) && fits_others(value, schema) &&
           (!value.is_number() || fits_number(exact(value), schema)) &&
           (!value.is_string() || fits_string(*value.as_string(), schema)) &&
           (!value.is_array() || fits_array(*value.as_array(), schema)) &&
           (!value.is_object() || fits_object(value, schema));
  }

  static bool is_type(const Value& value, const std::string& type) {
    if (type == "integer") {
      return value.is_number() && *value.as_double() == std::floor(*value.as_double());
    }
    return type == value.kind_name() || (type == "number" && value.is_number());
  }

  static bool fits_type(const Value& value, const Value& schema) {
    const Value* type = schema.find("type");
    if (type == nullptr) return true;
    if (type->is_string()) return is_type(value, *type->as_string());
    return std::any_of(type->as_array()->begin(), type->as_array()->end(), [&](const Value& name) {
      return is_type(value, *name.as_string());
    });
  }

  static bool fits_values(const Value& value, const Value& schema) {
    const Value* only = schema.find("const");
    if (only != nullptr && !is_equal(value, *only)) return false;
    const Value* listed = schema.find("enum");
    return listed == nullptr ||
           std::any_of(listed->as_array()->begin(),
                       listed->as_array()->end(),
                       [&](const Value& item) { return is_equal(value, item); });
  }

  bool fits_others(const Value& value, const Value& schema) const {
    if (const Value* reference = schema.find("$ref")) {
      const std::string name = reference->as_string()->substr(std::string("#/$defs/").size());
      if (!fits(value, *root_.find("$defs")->find(name))) return false;
    }
    const auto count = [&](const char* keyword) {
      const Array& schemas = *schema.find(keyword)->as_array();
      return std::count_if(
          schemas.begin(), schemas.end(), [&](const Value& branch) { return fits(value, branch); });
    };
    if (const Value* all = schema.find("allOf")) {
      if (count("allOf") != static_cast<std::ptrdiff_t>(all->as_array()->size())) return false;
    }
    if (schema.find("anyOf") != nullptr && count("anyOf") == 0) return false;
    return schema.find("oneOf") == nullptr || count("oneOf") == 1;
  }

  // Integers of 64 bits and quarters, exactly.
  static long double exact(const Value& value) {
    const auto integer = value.as_int64();
    return integer ? static_cast<long double>(*integer) : *value.as_double();
  }

  static long double number(const Value& schema, const char* keyword, long double otherwise) {
    const Value* value = schema.find(keyword);
    return value == nullptr ? otherwise : exact(*value);
  }

  static bool fits_number(long double value, const Value& schema) {
    const long double divisor = number(schema, "multipleOf", 0);
    return value >= number(schema, "minimum", -HUGE_VAL) &&
           value <= number(schema, "maximum", HUGE_VAL) &&
           value > number(schema, "exclusiveMinimum", -HUGE_VAL) &&
           value < number(schema, "exclusiveMaximum", HUGE_VAL) &&
           (divisor == 0 || std::fmod(value, divisor) == 0);
  }

  static bool fits_string(const std::string& value, const Value& schema) {
    const auto length = static_cast<long double>(value.size());
    if (length < number(schema, "minLength", 0)) return false;
    if (length > number(schema, "maxLength", HUGE_VAL)) return false;
    const Value* pattern = schema.find("pattern");
    return pattern == nullptr ||
           std::regex_search(value, std::regex(*pattern->as_string(), std::regex::ECMAScript));
  }

  bool fits_array(const Array& value, const Value& schema) const {
    const auto length = static_cast<long double>(value.size());
    if (length < number(schema, "minItems", 0)) return false;
    if (length > number(schema, "maxItems", HUGE_VAL)) return false;
    const Value* unique = schema.find("uniqueItems");
    if (unique != nullptr && *unique->as_bool()) {
      for (size_t i = 0; i < value.size(); ++i) {
        for (size_t k = 0; k < i; ++k) {
          if (is_equal(value[i], value[k])) return false;
        }
      }
    }
    const Value* prefix = schema.find("prefixItems");
    const size_t num_prefix = prefix == nullptr ? 0 : prefix->as_array()->size();
    const Value* items = schema.find("items");
    for (size_t i = 0; i < value.size(); ++i) {
      const Value* own = i < num_prefix ? &(*prefix->as_array())[i] : items;
      if (own != nullptr && !fits(value[i], *own)) return false;
    }
    return true;
  }

  bool fits_object(const Value& value, const Value& schema) const {
    if (const Value* required = schema.find("required")) {
      for (const Value& name : *required->as_array()) {
        if (value.find(*name.as_string()) == nullptr) return false;
      }
    }
    const Value* listed = schema.find("properties");
    const Value* additional = schema.find("additionalProperties");
    return std::all_of(
        value.as_object()->begin(), value.as_object()->end(), [&](const json::Member& member) {
          const Value* own = listed == nullptr ? nullptr : listed->find(member.key);
          if (own == nullptr) own = additional;
          return own == nullptr || fits(member.value, *own);
        });
  }

  const Value& root_;
};

// --- random schemas

class SchemaMaker final {
 public:
  // Closed: all objects list the same names in the same order, and no others are permitted.
  enum class Members { kAny, kClosed };
  SchemaMaker(uint32_t seed, Members members) : random_(seed), members_(members) {}

  Value root() {
    Object definitions;
    definitions.insert("a", any(1));
    definitions.insert("b", object(1));
    has_definitions_ = true;
    Value made = any(3);
    if (!made.is_object()) made = Value(Object());
    made.as_object()->insert("$defs", Value(std::move(definitions)));
    return made;
  }

  int32_t pick(int32_t from, int32_t to) {
    return from + static_cast<int32_t>(random_() % static_cast<uint32_t>(to - from + 1));
  }
  bool flip() { return pick(0, 1) == 1; }

 private:
  Value any(int32_t depth) {
    switch (pick(0, depth > 0 ? 11 : 6)) {
      case 0:
        return json::make_object({{"type", flip() ? "null" : "boolean"}});
      case 1:
        return number("integer");
      case 2:
        return number("number");
      case 3:
      case 4:
        return string();
      case 5:
        return json::make_object({{"enum", Value(values())}});
      case 6:
        return has_definitions_ && flip() ? reference() : Value(flip());
      case 7:
      case 8:
        return array(depth - 1);
      case 9:
        return combination(depth - 1);
      default:
        return object(depth - 1);
    }
  }

  Value reference() {
    Object made = json::make_object({{"$ref", flip() ? "#/$defs/a" : "#/$defs/b"}});
    if (pick(0, 2) == 0) made.insert("maximum", 7);
    return made;
  }

  Value quarter(int32_t from, int32_t to) {
    return flip() ? Value(pick(from, to)) : Value(0.25 * pick(4 * from, 4 * to));
  }

  Value number(const char* type) {
    Object made = json::make_object({{"type", type}});
    if (flip()) made.insert(flip() ? "minimum" : "exclusiveMinimum", quarter(-15, 5));
    if (flip()) made.insert(flip() ? "maximum" : "exclusiveMaximum", quarter(4, 120));
    const double divisors[] = {0.25, 0.5, 1, 2, 3, 7, 10, 1.5};
    if (flip()) made.insert("multipleOf", divisors[pick(0, 7)]);
    return made;
  }

  Value string() {
    Object made = json::make_object({{"type", "string"}});
    if (flip()) made.insert("minLength", pick(0, 3));
    if (flip()) made.insert("maxLength", pick(3, 5));
    const char* patterns[] = {"^a", "b$", "^[ab]*$", "ab|ba", "^(a|bc)+$", "c{2}", "^.?b"};
    if (flip()) made.insert("pattern", patterns[pick(0, 6)]);
    return made;
  }

  Array values() {
    const Value all[] = {Value(1),
                         Value(2.5),
                         Value("a"),
                         Value("ab"),
                         Value(),
                         Value(true),
                         Value(json::make_object({{"p", 1}})),
                         Value(Array{1, "b"})};
    Array chosen;
    for (const Value& value : all) {
      if (flip()) chosen.push_back(value);
    }
    if (chosen.empty()) chosen.emplace_back("a");
    return chosen;
  }

  Value array(int32_t depth) {
    Object made = json::make_object({{"type", "array"}});
    const bool is_unique = pick(0, 3) == 0;
    if (is_unique) {
      made.insert("uniqueItems", true);
      made.insert("items", json::make_object({{"enum", Value(values())}}));
    } else {
      made.insert("items", any(depth));
      if (flip()) made.insert("prefixItems", Array{any(depth), any(depth)});
    }
    if (flip()) made.insert("minItems", pick(0, 2));
    if (flip()) made.insert("maxItems", pick(2, 3));
    return made;
  }

  Value object(int32_t depth) {
    Object listed;
    Array required;
    const bool is_closed = members_ == Members::kClosed;
    for (const char* name : {"p", "q", "r"}) {
      if (is_closed && pick(0, 2) == 0) listed.insert(name, flip());
      if (listed.find(name) != nullptr || (!is_closed && flip())) continue;
      listed.insert(name, any(depth));
      if (flip()) required.emplace_back(name);
    }
    Object made = json::make_object({{"type", "object"}});
    if (listed.empty()) listed.insert("p", any(depth));
    made.insert("properties", std::move(listed));
    if (flip()) made.insert("required", std::move(required));
    if (is_closed) {
      made.insert("additionalProperties", false);
    } else if (pick(0, 2) == 0) {
      made.insert("additionalProperties", flip() ? Value(false) : any(depth));
    }
    return made;
  }

  // Schemas of one type together, or alternatives of several.
  Value combination(int32_t depth) {
    const auto one = [&](int32_t kind) {
      return kind == 0   ? object(depth)
             : kind == 1 ? string()
                         : number(flip() ? "number" : "integer");
    };
    if (flip()) {
      const int32_t kind = pick(0, 2);
      return json::make_object({{"allOf", Value(Array{one(kind), one(kind)})}});
    }
    Object made = json::make_object({{"anyOf", Value(Array{one(pick(0, 2)), one(pick(0, 2))})}});
    if (pick(0, 2) == 0) made.insert("minLength", 2);
    if (pick(0, 2) == 0) made.insert("maximum", 50);
    return made;
  }

  std::mt19937 random_;
  Members members_;
  bool has_definitions_ = false;
};

// --- random values: near what the schemas say, members in the order of their names

class ValueMaker final {
 public:
  explicit ValueMaker(uint32_t seed) : random_(seed) {}

  Value any(int32_t depth) {
    switch (pick(0, depth > 0 ? 9 : 6)) {
      case 0:
        return {};
      case 1:
        return pick(0, 1) == 0;
      case 2:
        return pick(-20, 130);
      case 3: {
        const int32_t quarters = pick(-60, 500);
        return quarters % 4 == 0 ? Value(quarters / 4) : Value(0.25 * quarters);
      }
      case 4:
      case 5:
      case 6: {
        std::string text;
        for (int32_t i = pick(0, 5); i > 0; --i) text += static_cast<char>('a' + pick(0, 2));
        return text;
      }
      case 7:
      case 8: {
        Object made;
        for (const char* name : {"p", "q", "r"}) {
          if (pick(0, 1) == 0) made.insert(name, any(depth - 1));
        }
        return made;
      }
      default: {
        Array made;
        for (int32_t i = pick(0, 3); i > 0; --i) made.push_back(any(depth - 1));
        return made;
      }
    }
  }

  // A part of `value` replaced, removed or doubled.
  Value changed(const Value& value) {
    if (const Array* items = value.as_array(); items != nullptr && !items->empty()) {
      Array made = *items;
      const auto at = made.begin() + pick(0, static_cast<int32_t>(made.size()) - 1);
      switch (pick(0, 2)) {
        case 0:
          made.erase(at);
          return made;
        case 1: {
          const Value copy = *at;
          made.insert(at, copy);
          return made;
        }
        default:
          *at = changed(*at);
          return made;
      }
    }
    if (const Object* members = value.as_object(); members != nullptr && !members->empty()) {
      Object made = *members;
      const auto place = pick(0, static_cast<int32_t>(members->size()) - 1);
      const std::string name = (members->begin() + place)->key;
      if (pick(0, 2) == 0) {
        made.erase(name);
      } else {
        made.set(name, changed(*members->find(name)));
      }
      return made;
    }
    if (value.is_number() && pick(0, 1) == 0) {
      const double other = *value.as_double() + 0.25 * pick(-8, 8);
      return other == std::floor(other) ? Value(static_cast<int64_t>(other)) : Value(other);
    }
    if (value.is_string() && pick(0, 1) == 0) {
      return *value.as_string() + static_cast<char>('a' + pick(0, 2));
    }
    return any(1);
  }

 private:
  int32_t pick(int32_t from, int32_t to) {
    return from + static_cast<int32_t>(random_() % static_cast<uint32_t>(to - from + 1));
  }

  std::mt19937 random_;
};

// A random text of the grammar, brief where it can be; empty when it became too long.
std::string generated(const std::shared_ptr<const Grammar>& grammar, std::mt19937& random) {
  Matcher matcher(grammar);
  std::string text;
  while (!matcher.is_complete()) {
    const std::set<int32_t> tokens = allowed(matcher);
    int32_t chosen = -1;
    for (const int32_t closing : {kTestEos, int32_t{'"'}, int32_t{'}'}, int32_t{']'}}) {
      const bool is_wanted = chosen < 0 && tokens.contains(closing);
      if (is_wanted && (text.size() > 60 || random() % 4 == 0)) chosen = closing;
    }
    // Letters and digits that values are about, else anything printable.
    for (int32_t tries = 0; chosen < 0 && tries < 8; ++tries) {
      const int32_t wish = static_cast<uint8_t>("abc0123456789.-\"{[\\"[random() % 19]);
      if (tokens.contains(wish)) chosen = wish;
    }
    if (chosen < 0) {
      auto place = tokens.begin();
      std::advance(place, static_cast<std::ptrdiff_t>(random() % tokens.size()));
      chosen = *place;
    }
    EXPECT_TRUE(matcher.accept(chosen).ok());
    if (chosen == kTestEos) break;
    text += static_cast<char>(chosen);
    if (text.size() > 600) return {};
  }
  return text;
}

bool is_ascii(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0 && c != '\\'; });
}

constexpr uint32_t kNumSchemas = 400;

TEST(SchemaPropertyTest, GeneratedTextsAreValid) {
  std::mt19937 random(1);
  int32_t num_checked = 0;
  for (uint32_t seed = 0; seed < kNumSchemas; ++seed) {
    const Value schema = SchemaMaker(seed, SchemaMaker::Members::kAny).root();
    const Validator validator(schema);
    const auto grammar = compile({.content = JsonSchema{schema}, .tools = {}}, test_vocabulary());
    if (!grammar.ok()) continue;
    for (int32_t round = 0; round < 6; ++round) {
      const std::string text = generated(*grammar, random);
      if (text.empty() || !is_ascii(text)) continue;
      const auto value = json::parse(text);
      if (!value.ok() && value.error().message.find("uplicate") != std::string::npos) continue;
      ASSERT_TRUE(value.ok()) << text;
      ++num_checked;
      EXPECT_TRUE(validator.is_valid(*value)) << json::dump(schema, json::Style::kCompact) << "\n"
                                              << text;
    }
  }
  EXPECT_GT(num_checked, 1000);
}

TEST(SchemaPropertyTest, ExactlyTheValidValuesAreAccepted) {
  std::mt19937 random(2);
  int32_t num_accepted = 0;
  int32_t num_refused = 0;
  for (uint32_t seed = 0; seed < kNumSchemas; ++seed) {
    const Value schema = SchemaMaker(seed, SchemaMaker::Members::kClosed).root();
    const Validator validator(schema);
    const auto grammar = compile({.content = JsonSchema{schema}, .tools = {}}, test_vocabulary());
    const bool is_empty =
        !grammar.ok() && grammar.error().message.find("no text") != std::string::npos;
    if (!grammar.ok() && !is_empty) continue;
    ValueMaker values(seed);
    std::vector<Value> pool;
    for (int32_t i = 0; i < 30; ++i) pool.push_back(values.any(3));
    for (int32_t i = 0; grammar.ok() && i < 4; ++i) {
      const std::string text = generated(*grammar, random);
      auto value = json::parse(text);
      if (!value.ok() || !is_ascii(text)) continue;
      for (int32_t k = 0; k < 8; ++k) pool.push_back(values.changed(*value));
      pool.push_back(*std::move(value));
    }
    for (const Value& value : pool) {
      const std::string text = json::dump(value, json::Style::kCompact);
      const bool is_valid = validator.is_valid(value);
      const bool is_accepted = grammar.ok() && accepts(*grammar, text);
      (is_accepted ? num_accepted : num_refused) += 1;
      EXPECT_TRUE(is_valid || !is_accepted) << json::dump(schema, json::Style::kCompact) << "\n"
                                            << text;
    }
  }
  EXPECT_GT(num_accepted, 1000);
  EXPECT_GT(num_refused, 1000);
}

}  // namespace
}  // namespace nibble::grammar

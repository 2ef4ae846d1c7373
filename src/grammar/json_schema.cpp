#include "grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <span>
#include <unordered_set>

#include "base/utf8.h"
#include "grammar/formats.h"
#include "grammar/regex.h"

namespace nibble::grammar {
namespace {

// Merging siblings into branches copies them.
constexpr size_t kMaxMerges = 32;
constexpr size_t kMaxOneOfBranches = 64;
// Names beside which other names are generated.
constexpr size_t kMaxExcludedNameBytes = 256;

constexpr std::string_view kAnnotations[] = {"title",
                                             "description",
                                             "default",
                                             "examples",
                                             "deprecated",
                                             "readOnly",
                                             "writeOnly",
                                             "$comment",
                                             "$schema",
                                             "$defs",
                                             "definitions"};

struct Keyword {
  std::string_view name;
  TypeSet applies_to = 0;  // the types whose values it restricts; 0: any
};
constexpr Keyword kKeywords[] = {{"type"},
                                 {"enum"},
                                 {"const"},
                                 {"$ref"},
                                 {"anyOf"},
                                 {"oneOf"},
                                 {"allOf"},
                                 {"properties", types::kObject},
                                 {"required", types::kObject},
                                 {"additionalProperties", types::kObject},
                                 {"items", types::kArray},
                                 {"prefixItems", types::kArray},
                                 {"minItems", types::kArray},
                                 {"maxItems", types::kArray},
                                 {"uniqueItems", types::kArray},
                                 {"minimum", types::kNumber},
                                 {"maximum", types::kNumber},
                                 {"exclusiveMinimum", types::kNumber},
                                 {"exclusiveMaximum", types::kNumber},
                                 {"minLength", types::kString},
                                 {"maxLength", types::kString},
                                 {"pattern", types::kString},
                                 {"format", types::kString}};

struct NamedType {
  std::string_view name;
  TypeSet types = 0;
};
constexpr NamedType kTypes[] = {{"null", types::kNull},
                                {"boolean", types::kBoolean},
                                {"integer", types::kInteger},
                                {"number", types::kNumber},
                                {"string", types::kString},
                                {"array", types::kArray},
                                {"object", types::kObject}};

template <class Table>
auto find_named(const Table& table, std::string_view name) {
  const auto* found = std::find_if(
      std::begin(table), std::end(table), [&](const auto& entry) { return entry.name == name; });
  return found == std::end(table) ? nullptr : found;
}

bool is_annotation(std::string_view key) {
  return std::find(std::begin(kAnnotations), std::end(kAnnotations), key) != std::end(kAnnotations);
}

// One more step of a JSON pointer (RFC 6901).
std::string child(const std::string& pointer, std::string_view key) {
  std::string result = pointer + '/';
  for (const char c : key) {
    if (c == '~') {
      result += "~0";
    } else if (c == '/') {
      result += "~1";
    } else {
      result += c;
    }
  }
  return result;
}

std::string child(const std::string& pointer, size_t index) {
  return fmt::format("{}/{}", pointer, index);
}

Error schema_error(const std::string& pointer, std::string_view text) {
  return {Errc::kInvalidArgument,
          fmt::format("schema at \"{}\": {}", escape_for_display(pointer), text),
          "invalid_schema",
          {}};
}

Error keyword_error(const std::string& pointer, std::string_view keyword, std::string_view text) {
  return {Errc::kInvalidArgument,
          fmt::format("schema keyword \"{}\" at \"{}\": {}",
                      escape_for_display(keyword),
                      escape_for_display(child(pointer, keyword)),
                      text),
          "invalid_schema",
          {}};
}

Result<void> check_keywords(const json::Object& schema, const std::string& pointer) {
  for (const json::Member& member : schema) {
    const bool is_root_id = member.key == "$id" && pointer.empty();
    if (is_annotation(member.key) || is_root_id) continue;
    if (find_named(kKeywords, member.key) == nullptr) {
      return keyword_error(pointer, member.key, "is not supported; see docs/structured-output.md");
    }
  }
  return {};
}

// The first keyword that restricts values, besides those given; nullptr when there is none.
const json::Member* other_keyword(const json::Object& schema,
                                  std::initializer_list<std::string_view> known) {
  const auto* found = std::find_if(schema.begin(), schema.end(), [&](const json::Member& member) {
    return !is_annotation(member.key) && member.key != "$id" &&
           std::find(known.begin(), known.end(), member.key) == known.end();
  });
  return found == schema.end() ? nullptr : found;
}

Result<TypeSet> named_type(const json::Value& name, const std::string& pointer) {
  const std::string* text = name.as_string();
  const NamedType* known = text == nullptr ? nullptr : find_named(kTypes, *text);
  if (known == nullptr) {
    return keyword_error(pointer,
                         "type",
                         "expected null, boolean, integer, number, string, array, object or an "
                         "array of these");
  }
  return known->types;
}

// What `type` says; nullopt without it.
Result<std::optional<TypeSet>> declared_types(const json::Object& schema,
                                              const std::string& pointer) {
  const json::Value* type = schema.find("type");
  if (type == nullptr) return std::optional<TypeSet>();
  const json::Array single = {*type};
  const json::Array* names = type->is_array() ? type->as_array() : &single;
  TypeSet result = 0;
  for (const json::Value& name : *names) {
    TRY_ASSIGN(const TypeSet types, named_type(name, pointer));
    result |= types;
  }
  return std::optional<TypeSet>(result);
}

// The types that the schema is about: what `type` says, else what its keywords apply to, else all.
Result<TypeSet> intended_types(const json::Object& schema, const std::string& pointer) {
  TRY_ASSIGN(const std::optional<TypeSet> declared, declared_types(schema, pointer));
  if (declared) return *declared;
  TypeSet inferred = 0;
  for (const json::Member& member : schema) {
    const Keyword* keyword = find_named(kKeywords, member.key);
    if (keyword != nullptr) inferred |= keyword->applies_to;
  }
  return inferred == 0 ? types::kAll : inferred;
}

Result<std::optional<int32_t>> count(const json::Object& schema,
                                     std::string_view keyword,
                                     const std::string& pointer) {
  const json::Value* value = schema.find(keyword);
  if (value == nullptr) return std::optional<int32_t>();
  std::optional<int64_t> number = value->as_int64();
  const std::optional<double> real = value->as_double();
  constexpr int64_t kMost = 100'000;
  if (!number && real && *real == std::floor(*real) && std::abs(*real) <= kMost) {
    number = static_cast<int64_t>(*real);
  }
  if (!number || *number < 0 || *number > kMost) {
    return keyword_error(pointer, keyword, fmt::format("expected an integer from 0 to {}", kMost));
  }
  return std::optional<int32_t>(static_cast<int32_t>(*number));
}

// The values of `const` or `enum`.
std::optional<json::Array> constant_values(const json::Object& schema) {
  if (const json::Value* value = schema.find("const")) return json::Array{*value};
  const json::Value* values = schema.find("enum");
  if (values == nullptr || !values->is_array()) return std::nullopt;
  return *values->as_array();
}

// Conservative: numbers that may be equal are.
bool may_be_equal(const json::Value& a, const json::Value& b) {
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  if (a.is_array() || a.is_object() || b.is_array() || b.is_object()) return a.kind() == b.kind();
  return json::dump(a, json::Style::kCompact) == json::dump(b, json::Style::kCompact);
}

bool are_disjoint(const std::optional<json::Array>& a, const std::optional<json::Array>& b) {
  constexpr size_t kMaxComparisons = 10'000;
  if (!a || !b || a->size() * b->size() > kMaxComparisons) return false;
  return std::none_of(a->begin(), a->end(), [&](const json::Value& x) {
    return std::any_of(
        b->begin(), b->end(), [&](const json::Value& y) { return may_be_equal(x, y); });
  });
}

// The names in `required`; malformed entries are left out.
std::unordered_set<std::string> required_members(const json::Object& schema) {
  std::unordered_set<std::string> names;
  const json::Value* required = schema.find("required");
  if (required == nullptr || !required->is_array()) return names;
  for (const json::Value& item : *required->as_array()) {
    if (item.is_string()) names.insert(*item.as_string());
  }
  return names;
}

std::optional<json::Array> member_constants(const json::Object& schema, const std::string& name) {
  const json::Value* properties = schema.find("properties");
  const json::Value* member = properties == nullptr ? nullptr : properties->find(name);
  if (member == nullptr || !member->is_object()) return std::nullopt;
  return constant_values(*member->as_object());
}

// A member that both require and whose permitted constants differ tells the two apart.
bool have_discriminator(const json::Object& a, const json::Object& b) {
  const json::Value* properties = a.find("properties");
  if (properties == nullptr || !properties->is_object()) return false;
  const std::unordered_set<std::string> required_a = required_members(a);
  const std::unordered_set<std::string> required_b = required_members(b);
  for (const json::Member& member : *properties->as_object()) {
    if (required_a.contains(member.key) && required_b.contains(member.key) &&
        are_disjoint(member_constants(a, member.key), member_constants(b, member.key))) {
      return true;
    }
  }
  return false;
}

std::u32string decode(std::string_view text) {
  std::u32string characters;
  while (!text.empty()) {
    const Utf8Char character = decode_utf8(text);
    characters += character.code_point;
    text.remove_prefix(static_cast<size_t>(character.num_bytes));
  }
  return characters;
}

// Texts of `character` that are none of `texts`, which are sorted and agree before `offset`. Depth:
// the length of the longest.
ExprId none_of(Rules& rules,
               const CodePointSet& character,
               std::span<const std::u32string> texts,
               size_t offset) {
  const ExprId any = rules.shared(rules.repeat(rules.code_point(character), 0, std::nullopt));
  if (texts.empty()) return any;
  std::vector<ExprId> options;
  if (texts.front().size() == offset) {
    texts = texts.subspan(1);
  } else {
    options.push_back(rules.empty());
  }
  CodePointSet others = character;
  while (!texts.empty()) {
    const char32_t next = texts.front()[offset];
    const auto end = std::find_if(texts.begin(), texts.end(), [&](const std::u32string& text) {
      return text[offset] != next;
    });
    const auto group = texts.first(static_cast<size_t>(end - texts.begin()));
    const CodePointSet single = {{next, next}};
    options.push_back(rules.sequence({rules.code_point(single.intersection(character)),
                                      none_of(rules, character, group, offset + 1)}));
    others = others.without(single);
    texts = texts.subspan(group.size());
  }
  options.push_back(rules.sequence({rules.code_point(others), any}));
  return rules.choice(options);
}

}  // namespace

TypeSet type_of(const json::Value& value) {
  switch (value.kind()) {
    case json::Kind::kNull:
      return types::kNull;
    case json::Kind::kBool:
      return types::kBoolean;
    case json::Kind::kInteger:
      return types::kInteger;
    case json::Kind::kFloat: {
      const double number = value.as_double().value_or(0.5);
      return number == std::floor(number) ? types::kInteger : types::kFraction;
    }
    case json::Kind::kString:
      return types::kString;
    case json::Kind::kArray:
      return types::kArray;
    case json::Kind::kObject:
      return types::kObject;
  }
  return types::kNull;
}

SchemaCompiler::SchemaCompiler(JsonText& text, const json::Value& root)
    : text_(text), rules_(text.rules()), root_(root) {}

Result<ExprId> SchemaCompiler::compile(const Wanted& wanted) {
  TRY_ASSIGN(const ExprId whole, value(root_, {.pointer = {}, .wanted = wanted}));
  TRY(compile_references());
  return whole;
}

// References wait until here, so that chains of them need no stack.
Result<void> SchemaCompiler::compile_references() {
  while (!pending_.empty() && !rules_.is_exhausted()) {
    const PendingReference next = std::move(pending_.back());
    pending_.pop_back();
    TRY_ASSIGN(const ExprId body, value(*next.schema, next.place));
    rules_.define(next.rule, body);
  }
  return {};
}

Result<ExprId> SchemaCompiler::value(const json::Value& schema, const Place& place) {
  if (const bool* permits = schema.as_bool()) {
    return *permits ? any(place.wanted.types, place) : rules_.never();
  }
  const json::Object* object = schema.as_object();
  if (object == nullptr) return schema_error(place.pointer, "expected an object or a boolean");
  TRY(check_keywords(*object, place.pointer));
  if (object->find("$ref") != nullptr) return reference(*object, place);
  for (const char* keyword : {"const", "enum"}) {
    if (object->find(keyword) != nullptr) return constants(*object, place);
  }
  for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
    if (object->find(keyword) != nullptr) return alternatives(*object, keyword, place);
  }
  TRY_ASSIGN(const TypeSet intended, intended_types(*object, place.pointer));
  return by_type(*object, intended & place.wanted.types, place);
}

Result<ExprId> SchemaCompiler::any(TypeSet wanted, const Place& place) {
  return by_type(json::Object(), wanted, place);
}

// Keywords of types that are not wanted do not matter, as JSON Schema has it, but must be sound.
Result<ExprId> SchemaCompiler::by_type(const json::Object& schema,
                                       TypeSet wanted,
                                       const Place& place) {
  const bool is_free = other_keyword(schema, {"type"}) == nullptr;
  if (is_free && wanted == types::kAll && place.wanted.spelling == Spelling::kJson) {
    return text_.any_value();
  }
  std::vector<ExprId> options;
  if ((wanted & types::kObject) != 0) {
    TRY_ASSIGN(const ExprId option, object(schema, place));
    options.push_back(option);
  }
  if ((wanted & types::kArray) != 0) {
    TRY_ASSIGN(const ExprId option, array(schema, place));
    options.push_back(option);
  }
  if ((wanted & types::kString) != 0) {
    TRY_ASSIGN(const ExprId option, string(schema, place));
    options.push_back(option);
  }
  if ((wanted & types::kNumber) != 0) {
    TRY_ASSIGN(const ExprId option, number(schema, wanted, place));
    options.push_back(option);
  }
  if ((wanted & types::kBoolean) != 0) options.push_back(text_.boolean());
  if ((wanted & types::kNull) != 0) options.push_back(text_.null());
  return rules_.choice(options);
}

// --- references and alternatives

Result<std::pair<const json::Value*, std::string>> SchemaCompiler::resolve(
    const json::Value& reference, const std::string& pointer) const {
  const std::string* text = reference.as_string();
  const bool is_local = text != nullptr && (*text == "#" || text->starts_with("#/")) &&
                        text->find('%') == std::string::npos;
  if (!is_local) {
    return keyword_error(
        pointer, "$ref", "expected \"#\" or \"#/...\", a place in the same schema");
  }
  const json::Value* target = &root_;
  std::string target_pointer;
  for (std::string_view rest = std::string_view(*text).substr(1); !rest.empty();) {
    rest.remove_prefix(1);
    const size_t end = std::min(rest.find('/'), rest.size());
    std::string key;
    for (size_t i = 0; i < end; ++i) {
      const bool is_escape = rest[i] == '~' && i + 1 < end;
      key += !is_escape ? rest[i] : rest[i + 1] == '1' ? '/' : '~';
      if (is_escape) ++i;
    }
    rest.remove_prefix(end);
    const json::Value* next = target->find(key);
    if (const json::Array* items = target->as_array()) {
      size_t index = items->size();
      std::from_chars(key.data(), key.data() + key.size(), index);
      next = index < items->size() ? &(*items)[index] : nullptr;
    }
    if (next == nullptr) {
      return keyword_error(pointer, "$ref", fmt::format("\"{}\" does not exist", *text));
    }
    target = next;
    target_pointer = child(target_pointer, key);
  }
  return std::pair(target, target_pointer);
}

Result<ExprId> SchemaCompiler::reference(const json::Object& schema, const Place& place) {
  if (const json::Member* other = other_keyword(schema, {"$ref"})) {
    return keyword_error(place.pointer, other->key, "is not supported beside \"$ref\"");
  }
  TRY_ASSIGN(const auto target, resolve(*schema.find("$ref"), place.pointer));
  const auto key = std::tuple(target.first, place.wanted.types, place.wanted.spelling);
  const auto [known, is_new] = references_.try_emplace(key);
  if (is_new) {
    known->second = rules_.add_rule("#" + target.second);
    pending_.push_back({.rule = known->second,
                        .schema = target.first,
                        .place = {.pointer = target.second, .wanted = place.wanted}});
  }
  return rules_.call(known->second);
}

Result<ExprId> SchemaCompiler::alternatives(const json::Object& schema,
                                            std::string_view keyword,
                                            const Place& place) {
  const json::Array* branches = schema.find(keyword)->as_array();
  if (branches == nullptr || branches->empty()) {
    return keyword_error(place.pointer, keyword, "expected an array of schemas");
  }
  if (keyword == "allOf" && branches->size() > 1) {
    return keyword_error(place.pointer, keyword, "is supported with one schema only");
  }
  const std::string pointer = child(place.pointer, keyword);
  if (keyword == "oneOf") TRY(check_one_of(*branches, place.pointer));
  std::vector<ExprId> options;
  for (size_t i = 0; i < branches->size(); ++i) {
    const Place inner = {.pointer = child(pointer, i), .wanted = place.wanted};
    TRY_ASSIGN(const json::Value* branch,
               with_siblings(schema, keyword, (*branches)[i], place.pointer));
    TRY_ASSIGN(const ExprId option, value(*branch, inner));
    options.push_back(option);
  }
  return rules_.choice(options);
}

// The branch together with what stands beside the alternatives: keywords restrict independently,
// except those that look at each other.
Result<const json::Value*> SchemaCompiler::with_siblings(const json::Object& schema,
                                                         std::string_view keyword,
                                                         const json::Value& branch,
                                                         const std::string& pointer) {
  const json::Member* sibling = other_keyword(schema, {keyword});
  if (sibling == nullptr || !branch.is_object()) return &branch;
  if (made_.size() == kMaxMerges) {
    return keyword_error(pointer,
                         sibling->key,
                         fmt::format("beside \"{}\" more than {} times", keyword, kMaxMerges));
  }
  json::Object merged = *branch.as_object();
  for (const json::Member& member : schema) {
    if (member.key == keyword || is_annotation(member.key) || member.key == "$id") continue;
    if (merged.insert(member.key, member.value)) continue;
    const json::Value& other = *merged.find(member.key);
    const bool is_same =
        json::dump(other, json::Style::kCompact) == json::dump(member.value, json::Style::kCompact);
    if (!is_same) {
      return keyword_error(
          pointer, member.key, fmt::format("stands beside \"{}\" and inside it", keyword));
    }
  }
  const auto is_split = [&](const char* a, const char* b) {
    return (schema.find(a) != nullptr && branch.find(b) != nullptr) ||
           (schema.find(b) != nullptr && branch.find(a) != nullptr);
  };
  if (is_split("properties", "additionalProperties") || is_split("prefixItems", "items")) {
    return keyword_error(pointer,
                         sibling->key,
                         fmt::format("beside \"{}\" whose schemas are about the same members "
                                     "or items; write them in one place",
                                     keyword));
  }
  return &made_.emplace_back(std::move(merged));
}

// Generated from one branch, a value must not be valid in another: no two may have one in common.
Result<void> SchemaCompiler::check_one_of(const json::Array& branches,
                                          const std::string& pointer) const {
  constexpr std::string_view kHint =
      "is supported where types, constants or a required constant member tell the schemas apart; "
      "use \"anyOf\"";
  if (branches.size() > kMaxOneOfBranches) {
    return keyword_error(
        pointer, "oneOf", fmt::format("expected at most {} schemas", kMaxOneOfBranches));
  }
  std::vector<const json::Object*> objects;
  std::vector<TypeSet> branch_types;
  for (const json::Value& branch : branches) {
    const json::Value* schema = &branch;
    const json::Value* target = branch.find("$ref");
    if (target != nullptr) {
      TRY_ASSIGN(const auto resolved, resolve(*target, pointer));
      schema = resolved.first;
    }
    if (!schema->is_object()) return keyword_error(pointer, "oneOf", kHint);
    objects.push_back(schema->as_object());
    TRY_ASSIGN(const std::optional<TypeSet> declared, declared_types(*objects.back(), pointer));
    TypeSet own = declared.value_or(types::kAll);
    if (const auto constants = constant_values(*objects.back()); constants && !declared) {
      own = 0;
      for (const json::Value& constant : *constants) own |= type_of(constant);
    }
    branch_types.push_back(own);
  }
  for (size_t i = 0; i < objects.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      const bool is_told_apart =
          (branch_types[i] & branch_types[k]) == 0 ||
          are_disjoint(constant_values(*objects[i]), constant_values(*objects[k])) ||
          have_discriminator(*objects[i], *objects[k]);
      if (!is_told_apart) return keyword_error(pointer, "oneOf", kHint);
    }
  }
  return {};
}

Result<ExprId> SchemaCompiler::constants(const json::Object& schema, const Place& place) {
  const char* keyword = schema.find("const") != nullptr ? "const" : "enum";
  if (const json::Member* other = other_keyword(schema, {keyword, "type"})) {
    return keyword_error(
        place.pointer, other->key, fmt::format("is not supported beside \"{}\"", keyword));
  }
  const std::optional<json::Array> values = constant_values(schema);
  if (!values || values->empty()) {
    return keyword_error(place.pointer, keyword, "expected an array of values");
  }
  TRY_ASSIGN(const std::optional<TypeSet> declared, declared_types(schema, place.pointer));
  const TypeSet wanted = declared.value_or(types::kAll) & place.wanted.types;
  const bool is_bare = place.wanted.spelling != Spelling::kJson;
  const TextAlphabet bare(rules_, place.wanted.spelling);
  std::vector<std::string> texts;
  std::vector<ExprId> options;
  for (const json::Value& value : *values) {
    if ((type_of(value) & wanted) == 0) continue;
    if (value.is_array() || value.is_object()) {
      options.push_back(text_.constant(value));
    } else if (value.is_string() && is_bare) {
      if (bare.can_spell(*value.as_string())) texts.push_back(bare.spell(*value.as_string()));
    } else {
      texts.push_back(json::dump(value, json::Style::kCompact));
    }
  }
  options.push_back(rules_.one_of(std::move(texts)));
  return rules_.choice(options);
}

// --- numbers and strings

Result<std::optional<DecimalBound>> SchemaCompiler::bound(const json::Object& schema,
                                                          const char* keyword,
                                                          bool is_exclusive,
                                                          const Place& place) const {
  const json::Value* value = schema.find(keyword);
  if (value == nullptr) return std::optional<DecimalBound>();
  if (!value->is_number()) return keyword_error(place.pointer, keyword, "expected a number");
  Result<Decimal> decimal = Decimal::parse(json::dump(*value, json::Style::kCompact));
  if (!decimal.ok()) return keyword_error(place.pointer, keyword, decimal.error().message);
  return std::optional<DecimalBound>(
      DecimalBound{.value = *std::move(decimal), .is_exclusive = is_exclusive});
}

Result<ExprId> SchemaCompiler::number(const json::Object& schema,
                                      TypeSet wanted,
                                      const Place& place) {
  TRY_ASSIGN(const auto minimum, bound(schema, "minimum", false, place));
  TRY_ASSIGN(const auto above, bound(schema, "exclusiveMinimum", true, place));
  TRY_ASSIGN(const auto maximum, bound(schema, "maximum", false, place));
  TRY_ASSIGN(const auto below, bound(schema, "exclusiveMaximum", true, place));
  const bool is_integer = (wanted & types::kFraction) == 0;
  const DecimalRange range = {.lower = tighter_lower(minimum, above),
                              .upper = tighter_upper(maximum, below),
                              .max_fraction_digits = is_integer ? 0 : kMaxFractionDigits};
  if (range.lower || range.upper) return rules_.shared(decimal_in_range(rules_, range));
  return is_integer ? text_.any_integer() : text_.any_number();
}

Result<ExprId> SchemaCompiler::string(const json::Object& schema, const Place& place) {
  TRY_ASSIGN(const std::optional<int32_t> min, count(schema, "minLength", place.pointer));
  TRY_ASSIGN(const std::optional<int32_t> max, count(schema, "maxLength", place.pointer));
  const TextAlphabet alphabet(rules_, place.wanted.spelling);
  const bool is_json = place.wanted.spelling == Spelling::kJson;
  const auto finish = [&](ExprId text) { return is_json ? text_.quoted(text) : text; };
  const json::Value* pattern = schema.find("pattern");
  const json::Value* format = schema.find("format");
  if (pattern != nullptr || format != nullptr) {
    const char* keyword = pattern != nullptr ? "pattern" : "format";
    for (const char* other : {"format", "minLength", "maxLength"}) {
      if (other == std::string_view(keyword) || schema.find(other) == nullptr) continue;
      return keyword_error(
          place.pointer, other, fmt::format("is not supported beside \"{}\"", keyword));
    }
    const std::string* text = schema.find(keyword)->as_string();
    if (text == nullptr) return keyword_error(place.pointer, keyword, "expected a string");
    const auto named = pattern != nullptr ? std::optional(*text) : pattern_of_format(*text);
    if (!named) {
      return keyword_error(place.pointer,
                           keyword,
                           fmt::format("\"{}\" is not supported; expected one of {}",
                                       escape_for_display(*text),
                                       supported_formats()));
    }
    const RegexUse use = pattern != nullptr ? RegexUse::kSearch : RegexUse::kWhole;
    const Result<ExprId> compiled = compile_regex(*named, use, alphabet);
    if (!compiled.ok()) return keyword_error(place.pointer, keyword, compiled.error().message);
    return finish(*compiled);
  }
  if (!min && !max) return is_json ? text_.any_string() : alphabet.any_text();
  if (max && min.value_or(0) > *max) return rules_.never();
  const ExprId character = is_json ? text_.character() : rules_.shared(alphabet.any_character());
  return finish(rules_.repeat(character, min.value_or(0), max));
}

// --- objects

Result<std::vector<SchemaCompiler::Property>> SchemaCompiler::properties(const json::Object& schema,
                                                                         const Place& place) const {
  std::vector<Property> result;
  std::unordered_set<std::string> left = required_members(schema);
  if (const json::Value* listed = schema.find("properties")) {
    if (!listed->is_object()) {
      return keyword_error(place.pointer, "properties", "expected an object of schemas");
    }
    const std::string pointer = child(place.pointer, "properties");
    for (const json::Member& member : *listed->as_object()) {
      result.push_back({.name = member.key,
                        .schema = &member.value,
                        .pointer = child(pointer, member.key),
                        .is_required = left.erase(member.key) > 0});
    }
  }
  const json::Value* required = schema.find("required");
  if (required == nullptr) return result;
  if (!required->is_array()) {
    return keyword_error(place.pointer, "required", "expected an array of names");
  }
  const json::Value* additional = schema.find("additionalProperties");
  const bool is_closed =
      additional != nullptr && additional->as_bool() != nullptr && !*additional->as_bool();
  for (const json::Value& item : *required->as_array()) {
    const std::string* name = item.as_string();
    if (name == nullptr) {
      return keyword_error(place.pointer, "required", "expected an array of names");
    }
    if (left.erase(*name) == 0) continue;
    if (is_closed) {
      return keyword_error(
          place.pointer,
          "required",
          fmt::format("\"{}\" is not among the properties", escape_for_display(*name)));
    }
    result.push_back({.name = *name,
                      .schema = additional,
                      .pointer = child(place.pointer, "additionalProperties"),
                      .is_required = true});
  }
  return result;
}

Result<ExprId> SchemaCompiler::compile_property(const Property& property, const Wanted& wanted) {
  const Place place = {.pointer = property.pointer, .wanted = wanted};
  TRY_ASSIGN(
      const ExprId body,
      property.schema == nullptr ? any(wanted.types, place) : value(*property.schema, place));
  TRY(compile_references());
  return body;
}

Result<ExprId> SchemaCompiler::object(const json::Object& schema, const Place& place) {
  TRY_ASSIGN(const std::vector<Property> listed, properties(schema, place));
  const json::Value* additional = schema.find("additionalProperties");
  if (listed.empty() && additional == nullptr) return text_.any_object();
  if (additional != nullptr && additional->as_bool() != nullptr && !*additional->as_bool()) {
    additional = nullptr;
  }
  TRY_ASSIGN(const ExprId inside, members(listed, additional, place));
  return text_.bracketed('{', inside, '}');
}

// From the last property to the first: `rest` is what may follow once a member is written, `first`
// what may stand while none is.
Result<ExprId> SchemaCompiler::members(const std::vector<Property>& properties,
                                       const json::Value* additional,
                                       const Place& place) {
  ExprId rest = rules_.empty();
  ExprId first = rules_.empty();
  if (additional != nullptr) {
    const Place inner = {.pointer = child(place.pointer, "additionalProperties"), .wanted = {}};
    for (const Property& property : properties) {
      if (property.name.size() <= kMaxExcludedNameBytes) continue;
      return keyword_error(
          place.pointer,
          "additionalProperties",
          fmt::format("is supported beside names of at most {} bytes", kMaxExcludedNameBytes));
    }
    TRY_ASSIGN(const ExprId other, value(*additional, inner));
    const ExprId member =
        rules_.shared(rules_.sequence({key_other_than(properties), text_.colon(), other}));
    rest = rules_.shared(rules_.repeat(rules_.sequence({text_.comma(), member}), 0, std::nullopt));
    first = rules_.optional(rules_.sequence({member, rest}));
  }
  for (auto property = properties.rbegin(); property != properties.rend(); ++property) {
    const Place inner = {.pointer = property->pointer, .wanted = {}};
    TRY_ASSIGN(
        const ExprId content,
        property->schema == nullptr ? any(types::kAll, inner) : value(*property->schema, inner));
    const ExprId key = rules_.bytes(json::dump(json::Value(property->name), json::Style::kCompact));
    const ExprId member = rules_.shared(rules_.sequence({key, text_.colon(), content}));
    const ExprId here = rules_.sequence({member, rest});
    const ExprId behind = rules_.sequence({text_.comma(), member, rest});
    const bool is_required = property->is_required;
    first = rules_.shared(is_required ? here : rules_.choice({here, first}));
    rest = rules_.shared(is_required ? behind : rules_.choice({behind, rest}));
  }
  return first;
}

// Names without escapes, so that a name has one spelling.
ExprId SchemaCompiler::key_other_than(const std::vector<Property>& properties) {
  const CodePointSet plain = CodePointSet({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}).complement();
  std::vector<std::u32string> names;
  for (const Property& property : properties) names.push_back(decode(property.name));
  std::sort(names.begin(), names.end());
  return text_.quoted(none_of(rules_, plain, names, 0));
}

Result<std::vector<SchemaCompiler::Property>> SchemaCompiler::root_properties() {
  const json::Value* schema = &root_;
  Place place;
  constexpr int32_t kMaxHops = 16;
  for (int32_t hop = 0; hop < kMaxHops && schema->find("$ref") != nullptr; ++hop) {
    TRY(check_keywords(*schema->as_object(), place.pointer));
    if (const json::Member* other = other_keyword(*schema->as_object(), {"$ref"})) {
      return keyword_error(place.pointer, other->key, "is not supported beside \"$ref\"");
    }
    TRY_ASSIGN(const auto target, resolve(*schema->find("$ref"), place.pointer));
    schema = target.first;
    place.pointer = target.second;
  }
  const json::Object* object = schema->as_object();
  if (object == nullptr) return schema_error(place.pointer, "expected the schema of an object");
  TRY(check_keywords(*object, place.pointer));
  const json::Member* other =
      other_keyword(*object, {"type", "properties", "required", "additionalProperties"});
  if (other != nullptr) {
    return keyword_error(place.pointer, other->key, "is not supported for a tool's parameters");
  }
  TRY_ASSIGN(const TypeSet intended, intended_types(*object, place.pointer));
  if ((intended & types::kObject) == 0) {
    return keyword_error(place.pointer, "type", "expected \"object\" for a tool's parameters");
  }
  return properties(*object, place);
}

// --- arrays

Result<ExprId> SchemaCompiler::array(const json::Object& schema, const Place& place) {
  TRY_ASSIGN(const std::optional<int32_t> min_items, count(schema, "minItems", place.pointer));
  TRY_ASSIGN(const std::optional<int32_t> max_items, count(schema, "maxItems", place.pointer));
  const json::Value* unique = schema.find("uniqueItems");
  if (unique != nullptr && (unique->as_bool() == nullptr || *unique->as_bool())) {
    return keyword_error(place.pointer, "uniqueItems", "is not supported");
  }
  const json::Value* items = schema.find("items");
  if (items != nullptr && items->is_array()) {
    return keyword_error(place.pointer, "items", "expected one schema; use \"prefixItems\"");
  }
  const json::Array none;
  const json::Array* prefix = &none;
  if (const json::Value* listed = schema.find("prefixItems")) {
    prefix = listed->as_array();
    if (prefix == nullptr) {
      return keyword_error(place.pointer, "prefixItems", "expected an array of schemas");
    }
  }
  const int32_t min = min_items.value_or(0);
  const auto num_prefix = static_cast<int32_t>(prefix->size());
  if (max_items && *max_items < min) return rules_.never();
  if (items == nullptr && num_prefix == 0 && !min_items && !max_items) return text_.any_array();

  // What may follow the prefix. Behind a prefix, items that are not described are not generated.
  ExprId item = rules_.never();
  if (items != nullptr) {
    TRY_ASSIGN(item, value(*items, {.pointer = child(place.pointer, "items"), .wanted = {}}));
  } else if (num_prefix == 0) {
    item = text_.any_value();
  }
  item = rules_.shared(item);
  const auto left = [&](int32_t total, int32_t written) { return std::max(total - written, 0); };
  const auto repeat_item = [&](int32_t written) {
    std::optional<int32_t> most;
    if (max_items) most = left(*max_items, written);
    return rules_.repeat(rules_.sequence({text_.comma(), item}), left(min, written), most);
  };
  if (num_prefix == 0) {
    if (max_items == 0) return text_.bracketed('[', rules_.empty(), ']');
    const ExprId list = rules_.sequence({item, repeat_item(1)});
    return text_.bracketed('[', min == 0 ? rules_.optional(list) : list, ']');
  }
  // From the last item of the prefix to the first.
  ExprId rest = repeat_item(num_prefix);
  for (int32_t i = num_prefix - 1; i >= 0; --i) {
    const auto position = static_cast<size_t>(i);
    const Place inner = {.pointer = child(child(place.pointer, "prefixItems"), position),
                         .wanted = {}};
    TRY_ASSIGN(const ExprId own, value((*prefix)[position], inner));
    const ExprId separator = i == 0 ? rules_.empty() : text_.comma();
    const ExprId more =
        max_items && i >= *max_items ? rules_.never() : rules_.sequence({separator, own, rest});
    rest = i >= min ? rules_.optional(more) : more;
  }
  return text_.bracketed('[', rest, ']');
}

}  // namespace nibble::grammar

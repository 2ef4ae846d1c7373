#include "grammar/schema_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "base/utf8.h"

namespace nibble::grammar {
namespace {

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
  TypeSet applies_to = 0;  // 0: any
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
                                 {"multipleOf", types::kNumber},
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

// Of a URI fragment (RFC 3986); nullopt for malformed escapes.
std::optional<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const std::string_view digits = text.substr(i + 1, 2);
    uint8_t byte = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (digits.size() != 2 || error != std::errc() || end != digits.data() + 2) {
      return std::nullopt;
    }
    decoded += static_cast<char>(byte);
    i += 2;
  }
  return decoded;
}

// One step of a JSON pointer without its escapes.
std::string unescaped(std::string_view step) {
  std::string key;
  for (size_t i = 0; i < step.size(); ++i) {
    const bool is_escape = step[i] == '~' && i + 1 < step.size();
    key += !is_escape ? step[i] : step[i + 1] == '1' ? '/' : '~';
    if (is_escape) ++i;
  }
  return key;
}

const json::Value* step_down(const json::Value& from, const std::string& key) {
  const json::Array* items = from.as_array();
  if (items == nullptr) return from.find(key);
  size_t index = items->size();
  const char* const end = key.data() + key.size();
  const auto [parsed_to, error] = std::from_chars(key.data(), end, index);
  const bool is_index = error == std::errc() && parsed_to == end && index < items->size();
  return is_index ? &(*items)[index] : nullptr;
}

std::string canonical_number(const json::Value& number) {
  if (const auto small = number.as_int64()) return std::to_string(*small);
  if (const json::Integer* large = number.as_integer()) return large->token;
  const double value = *number.as_double();
  if (value != std::floor(value)) return json::python_repr(value);
  return value == 0 ? "0" : fmt::format("{:.0f}", value);
}

void append_canonical(std::string& out, const json::Value& value) {
  if (value.is_number()) {
    out += canonical_number(value);
  } else if (const json::Array* items = value.as_array()) {
    out += '[';
    for (const json::Value& item : *items) {
      append_canonical(out, item);
      out += ',';
    }
    out += ']';
  } else if (const json::Object* object = value.as_object()) {
    std::vector<std::string> members;
    for (const json::Member& member : *object) {
      std::string text;
      json::append_quoted(text, member.key);
      text += ':';
      append_canonical(text, member.value);
      members.push_back(std::move(text));
    }
    std::sort(members.begin(), members.end());
    out += '{';
    for (const std::string& member : members) out.append(member).append(",");
    out += '}';
  } else {
    json::dump_to(out, value, json::Style::kCompact);
  }
}

}  // namespace

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

const json::Member* other_keyword(const json::Object& schema,
                                  std::initializer_list<std::string_view> known) {
  const auto* found = std::find_if(schema.begin(), schema.end(), [&](const json::Member& member) {
    return !is_annotation(member.key) && member.key != "$id" &&
           std::find(known.begin(), known.end(), member.key) == known.end();
  });
  return found == schema.end() ? nullptr : found;
}

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

TypeSet types_of_keyword(std::string_view keyword) {
  const Keyword* known = find_named(kKeywords, keyword);
  return known == nullptr ? 0 : known->applies_to;
}

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

Result<SchemaPart> resolve(const json::Value& root,
                           const json::Value& reference,
                           const std::string& pointer) {
  const std::string* text = reference.as_string();
  const bool is_local = text != nullptr && (*text == "#" || text->starts_with("#/"));
  const auto fragment =
      is_local ? percent_decoded(std::string_view(*text).substr(1)) : std::nullopt;
  if (!fragment) {
    return keyword_error(
        pointer, "$ref", "expected \"#\" or \"#/...\", a place in the same schema");
  }
  SchemaPart target = {.schema = &root, .pointer = {}};
  for (std::string_view rest = *fragment; !rest.empty();) {
    rest.remove_prefix(1);
    const size_t end = std::min(rest.find('/'), rest.size());
    const std::string key = unescaped(rest.substr(0, end));
    rest.remove_prefix(end);
    target.schema = step_down(*target.schema, key);
    if (target.schema == nullptr) {
      return keyword_error(
          pointer, "$ref", fmt::format("\"{}\" does not exist", escape_for_display(*text)));
    }
    target.pointer = child(target.pointer, key);
  }
  return target;
}

Result<std::optional<int32_t>> read_count(const json::Object& schema,
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

Result<std::optional<std::vector<const json::Value*>>> read_constants(const json::Object& schema,
                                                                      const std::string& pointer) {
  std::optional<std::vector<const json::Value*>> values;
  if (const json::Value* listed = schema.find("enum")) {
    const json::Array* items = listed->as_array();
    if (items == nullptr || items->empty()) {
      return keyword_error(pointer, "enum", "expected an array of values");
    }
    values.emplace();
    for (const json::Value& item : *items) values->push_back(&item);
  }
  const json::Value* only = schema.find("const");
  if (only == nullptr) return values;
  const std::string text = canonical_text(*only);
  const bool is_listed =
      !values || std::any_of(values->begin(), values->end(), [&](const json::Value* value) {
        return canonical_text(*value) == text;
      });
  values.emplace();
  if (is_listed) values->push_back(only);
  return values;
}

std::string canonical_text(const json::Value& value) {
  std::string text;
  append_canonical(text, value);
  return text;
}

}  // namespace nibble::grammar

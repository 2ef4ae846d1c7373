#include "grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <unordered_set>
#include <utility>

#include "base/utf8.h"
#include "grammar/decimal_multiple.h"
#include "grammar/decimal_range.h"
#include "grammar/distinct_items.h"
#include "grammar/formats.h"
#include "grammar/intersection.h"
#include "grammar/regex.h"

namespace nibble::grammar {
namespace {

// Schemas that hold together for one value.
constexpr size_t kMaxParts = 64;
constexpr size_t kMaxOneOfBranches = 64;
// Names beside which other names are generated.
constexpr size_t kMaxExcludedNameBytes = 256;

bool is_only_reference(const SchemaPart& part) {
  return part.schema->find("$ref") != nullptr &&
         other_keyword(*part.schema->as_object(), {"$ref"}) == nullptr;
}

using Texts = std::unordered_set<std::string>;

// What tells the schemas of a oneOf apart.
struct Branch {
  TypeSet generated = types::kAll;  // of the values that are written for it
  TypeSet valid = types::kAll;      // of the values that may be valid in it
  std::optional<Texts> constants;
  std::map<std::string, Texts> discriminators;  // constants of required members
};

// Whether a value written for `a` may be one of `types` in `b`, or the other way round.
bool may_share(const Branch& a, const Branch& b, TypeSet types) {
  return ((a.generated & b.valid & types) | (b.generated & a.valid & types)) != 0;
}

std::optional<Texts> constant_texts(const json::Value& schema) {
  if (const json::Value* only = schema.find("const")) return Texts{canonical_text(*only)};
  const json::Value* values = schema.find("enum");
  if (values == nullptr || !values->is_array()) return std::nullopt;
  Texts texts;
  for (const json::Value& value : *values->as_array()) texts.insert(canonical_text(value));
  return texts;
}

TypeSet types_of_constants(const json::Value& schema) {
  if (const json::Value* only = schema.find("const")) return type_of(*only);
  const json::Value* values = schema.find("enum");
  if (values == nullptr || !values->is_array()) return types::kAll;
  TypeSet types = 0;
  for (const json::Value& value : *values->as_array()) types |= type_of(value);
  return types;
}

Result<Branch> read_branch(const json::Value& schema, const std::string& pointer) {
  const json::Object& object = *schema.as_object();
  TRY_ASSIGN(const std::optional<TypeSet> declared, declared_types(object, pointer));
  TypeSet inferred = 0;
  for (const json::Member& member : object) inferred |= types_of_keyword(member.key);
  Branch branch;
  branch.valid = declared.value_or(types::kAll) & types_of_constants(schema);
  branch.generated = branch.valid & (inferred == 0 || declared ? types::kAll : inferred);
  branch.constants = constant_texts(schema);
  const json::Value* properties = schema.find("properties");
  const json::Value* required = schema.find("required");
  if (properties == nullptr || required == nullptr || !required->is_array()) return branch;
  for (const json::Value& name : *required->as_array()) {
    const json::Value* member = name.is_string() ? properties->find(*name.as_string()) : nullptr;
    if (member == nullptr) continue;
    if (auto texts = constant_texts(*member)) {
      branch.discriminators.emplace(*name.as_string(), *std::move(texts));
    }
  }
  return branch;
}

bool are_disjoint(const Texts& a, const Texts& b, int64_t& work) {
  const Texts& smaller = a.size() < b.size() ? a : b;
  const Texts& larger = a.size() < b.size() ? b : a;
  work += static_cast<int64_t>(smaller.size());
  return std::none_of(smaller.begin(), smaller.end(), [&](const std::string& text) {
    return larger.contains(text);
  });
}

bool are_told_apart(const Branch& a, const Branch& b, int64_t& work) {
  if (!may_share(a, b, types::kAll)) return true;
  if (a.constants && b.constants && are_disjoint(*a.constants, *b.constants, work)) return true;
  if (may_share(a, b, types::kAll & ~types::kObject)) return false;
  work += static_cast<int64_t>(a.discriminators.size());
  return std::any_of(a.discriminators.begin(), a.discriminators.end(), [&](const auto& own) {
    const auto other = b.discriminators.find(own.first);
    return other != b.discriminators.end() && are_disjoint(own.second, other->second, work);
  });
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

SchemaCompiler::SchemaCompiler(JsonText& text, const json::Value& root)
    : text_(text), rules_(text.rules()), root_(root) {}

Result<ExprId> SchemaCompiler::compile(const Wanted& wanted) {
  TRY_ASSIGN(const ExprId whole, value({{.schema = &root_, .pointer = {}}}, wanted));
  TRY(compile_pending());
  return whole;
}

Result<void> SchemaCompiler::spend(int64_t work,
                                   const std::string& pointer,
                                   std::string_view keyword) {
  work_ += work;
  if (work_ <= kMaxWork) return {};
  return keyword_error(pointer, keyword, "the schema takes too much work to compile");
}

// --- combinations of schemas

// References and conjunctions wait until here, so that chains of them need no stack.
Result<void> SchemaCompiler::compile_pending() {
  while (!pending_.empty() && !rules_.is_exhausted()) {
    PendingRule next = std::move(pending_.back());
    pending_.pop_back();
    const bool is_chain = next.schemas.size() == 1;
    TRY_ASSIGN(const ExprId body,
               is_chain ? value(std::move(next.schemas), next.wanted)
                        : combined(next.schemas, next.wanted));
    rules_.define(next.rule, body);
  }
  return {};
}

ExprId SchemaCompiler::later(Conjunction schemas, const Wanted& wanted) {
  RuleKey key = {{}, wanted.types, wanted.spelling};
  for (const SchemaPart& part : schemas) std::get<0>(key).push_back(part.schema);
  const auto [known, is_new] = known_rules_.try_emplace(std::move(key));
  if (is_new) {
    known->second = rules_.add_rule("#" + schemas.front().pointer);
    pending_.push_back({.rule = known->second, .schemas = std::move(schemas), .wanted = wanted});
  }
  return rules_.call(known->second);
}

Result<ExprId> SchemaCompiler::value(Conjunction schemas, const Wanted& wanted) {
  for (const SchemaPart& part : schemas) {
    const bool* permits = part.schema->as_bool();
    if (permits != nullptr && !*permits) return rules_.never();
    if (permits != nullptr) continue;
    if (!part.schema->is_object()) {
      return schema_error(part.pointer, "expected an object or a boolean");
    }
    TRY(check_keywords(*part.schema->as_object(), part.pointer));
  }
  std::erase_if(schemas, [](const SchemaPart& part) { return !part.schema->is_object(); });
  if (schemas.empty()) return by_type({.is_free = true}, wanted);
  if (schemas.size() > 1) return later(std::move(schemas), wanted);
  if (!is_only_reference(schemas.front())) return combined(schemas, wanted);
  const SchemaPart& part = schemas.front();
  TRY_ASSIGN(SchemaPart target, resolve(root_, *part.schema->find("$ref"), part.pointer));
  return later({std::move(target)}, wanted);
}

Result<ExprId> SchemaCompiler::combined(const Conjunction& schemas, const Wanted& wanted) {
  TRY_ASSIGN(auto parts, take_apart(schemas));
  return parts ? alternatives(*std::move(parts), wanted) : rules_.never();
}

// The schemas with those that their $ref and allOf name, each once; nullopt when one is false.
Result<std::optional<std::vector<SchemaCompiler::OpenPart>>> SchemaCompiler::take_apart(
    Conjunction schemas) {
  std::vector<OpenPart> parts;
  std::unordered_set<const json::Value*> seen;
  std::reverse(schemas.begin(), schemas.end());  // read from the back
  while (!schemas.empty()) {
    const SchemaPart part = std::move(schemas.back());
    schemas.pop_back();
    if (const bool* permits = part.schema->as_bool()) {
      if (!*permits) return std::optional<std::vector<OpenPart>>();
      continue;
    }
    const json::Object* schema = part.schema->as_object();
    if (schema == nullptr) return schema_error(part.pointer, "expected an object or a boolean");
    TRY(check_keywords(*schema, part.pointer));
    if (!seen.insert(part.schema).second) continue;
    const json::Value* reference = schema->find("$ref");
    const json::Value* all_of = schema->find("allOf");
    const char* keyword = reference != nullptr ? "$ref" : "allOf";
    TRY(spend(static_cast<int64_t>(schema->size()) + 1, part.pointer, keyword));
    if (seen.size() > kMaxParts) {
      return keyword_error(
          part.pointer, keyword, fmt::format("more than {} schemas hold together", kMaxParts));
    }
    if (all_of != nullptr) {
      const json::Array* branches = all_of->as_array();
      if (branches == nullptr || branches->empty()) {
        return keyword_error(part.pointer, "allOf", "expected an array of schemas");
      }
      const std::string pointer = child(part.pointer, "allOf");
      TRY(spend(static_cast<int64_t>(branches->size()), part.pointer, "allOf"));
      for (size_t i = branches->size(); i-- > 0;) {
        schemas.push_back({.schema = &(*branches)[i], .pointer = child(pointer, i)});
      }
    }
    if (reference != nullptr) {
      TRY_ASSIGN(SchemaPart target, resolve(root_, *reference, part.pointer));
      schemas.push_back(std::move(target));
    }
    if (other_keyword(*schema, {"$ref", "allOf"}) == nullptr) continue;
    parts.push_back({.part = part,
                     .has_any_of = schema->find("anyOf") != nullptr,
                     .has_one_of = schema->find("oneOf") != nullptr});
  }
  return std::optional(std::move(parts));
}

// One alternative for each schema of the first anyOf or oneOf, together with everything else;
// without any, the keywords themselves.
Result<ExprId> SchemaCompiler::alternatives(std::vector<OpenPart> parts, const Wanted& wanted) {
  const auto open = std::find_if(parts.begin(), parts.end(), [](const OpenPart& part) {
    return part.has_any_of || part.has_one_of;
  });
  if (open == parts.end()) {
    TRY_ASSIGN(const Restrictions all, restrictions(parts));
    return by_type(all, wanted);
  }
  const char* keyword = open->has_any_of ? "anyOf" : "oneOf";
  (open->has_any_of ? open->has_any_of : open->has_one_of) = false;
  const SchemaPart source = open->part;
  const json::Array* branches = source.schema->find(keyword)->as_array();
  if (branches == nullptr || branches->empty()) {
    return keyword_error(source.pointer, keyword, "expected an array of schemas");
  }
  std::vector<TypeSet> generated(branches->size(), types::kAll);
  if (keyword == std::string_view("oneOf")) {
    TRY_ASSIGN(generated, check_one_of(*branches, source.pointer));
  }
  const bool is_spent =
      !open->has_one_of &&
      other_keyword(*source.schema->as_object(), {"$ref", "allOf", "anyOf", "oneOf"}) == nullptr;
  if (is_spent) parts.erase(open);
  std::vector<ExprId> options;
  const std::string pointer = child(source.pointer, keyword);
  for (size_t i = 0; i < branches->size() && !rules_.is_exhausted(); ++i) {
    SchemaPart branch = {.schema = &(*branches)[i], .pointer = child(pointer, i)};
    TRY(spend(static_cast<int64_t>(parts.size()) + 1, source.pointer, keyword));
    if (parts.empty()) {
      TRY_ASSIGN(const ExprId option, value({std::move(branch)}, wanted));
      options.push_back(option);
      continue;
    }
    TRY_ASSIGN(auto more, take_apart({std::move(branch)}));
    if (!more) continue;
    std::vector<OpenPart> both = parts;
    for (OpenPart& part : *more) {
      const bool is_known = std::any_of(both.begin(), both.end(), [&](const OpenPart& other) {
        return other.part.schema == part.part.schema;
      });
      if (!is_known) both.push_back(std::move(part));
    }
    if (both.size() > kMaxParts) {
      return keyword_error(
          source.pointer, keyword, fmt::format("more than {} schemas hold together", kMaxParts));
    }
    const Wanted narrowed = {.types = wanted.types & generated[i], .spelling = wanted.spelling};
    TRY_ASSIGN(const ExprId option, alternatives(std::move(both), narrowed));
    options.push_back(option);
  }
  return rules_.choice(options);
}

Result<Restrictions> SchemaCompiler::restrictions(const std::vector<OpenPart>& parts) {
  std::vector<SchemaPart> schemas;
  schemas.reserve(parts.size());
  for (const OpenPart& part : parts) schemas.push_back(part.part);
  return read_restrictions(schemas, work_, kMaxWork);
}

// Generated for one branch, a value must not be valid in another: no two may have one in common.
// The types that may be written for each.
Result<std::vector<TypeSet>> SchemaCompiler::check_one_of(const json::Array& branches,
                                                          const std::string& pointer) {
  constexpr std::string_view kHint =
      "is supported where types, constants or a required constant member tell the schemas apart; "
      "use \"anyOf\"";
  if (branches.size() > kMaxOneOfBranches) {
    return keyword_error(
        pointer, "oneOf", fmt::format("expected at most {} schemas", kMaxOneOfBranches));
  }
  std::vector<Branch> read;
  std::vector<TypeSet> generated;
  for (size_t i = 0; i < branches.size(); ++i) {
    SchemaPart branch = {.schema = &branches[i], .pointer = child(child(pointer, "oneOf"), i)};
    if (const json::Value* reference = branch.schema->find("$ref")) {
      TRY_ASSIGN(branch, resolve(root_, *reference, branch.pointer));
    }
    if (!branch.schema->is_object()) return keyword_error(pointer, "oneOf", kHint);
    TRY_ASSIGN(Branch own, read_branch(*branch.schema, branch.pointer));
    generated.push_back(own.generated);
    read.push_back(std::move(own));
  }
  for (size_t i = 0; i < read.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      const bool is_told_apart = are_told_apart(read[i], read[k], work_);
      if (!is_told_apart) return keyword_error(pointer, "oneOf", kHint);
    }
    TRY(spend(static_cast<int64_t>(i), pointer, "oneOf"));
  }
  return generated;
}

// --- values by type

Result<ExprId> SchemaCompiler::by_type(const Restrictions& all, const Wanted& wanted) {
  const TypeSet types = all.types & wanted.types;
  if (all.values) return constants(*all.values, types, wanted.spelling);
  if (all.is_free && types == types::kAll && wanted.spelling == Spelling::kJson) {
    return text_.any_value();
  }
  std::vector<ExprId> options;
  if ((types & types::kObject) != 0) {
    TRY_ASSIGN(const ExprId option, object(all));
    options.push_back(option);
  }
  if ((types & types::kArray) != 0) {
    TRY_ASSIGN(const ExprId option, array(all));
    options.push_back(option);
  }
  if ((types & types::kString) != 0) {
    TRY_ASSIGN(const ExprId option, string(all, wanted.spelling));
    options.push_back(option);
  }
  if ((types & types::kNumber) != 0) {
    TRY_ASSIGN(const ExprId option, number(all, types));
    options.push_back(option);
  }
  if ((types & types::kBoolean) != 0) options.push_back(text_.boolean());
  if ((types & types::kNull) != 0) options.push_back(text_.null());
  return rules_.choice(options);
}

ExprId SchemaCompiler::constants(const std::vector<const json::Value*>& values,
                                 TypeSet types,
                                 Spelling spelling) {
  const bool is_bare = spelling != Spelling::kJson;
  const TextAlphabet bare(rules_, spelling);
  std::vector<std::string> texts;
  std::vector<ExprId> options;
  for (const json::Value* value : values) {
    if ((type_of(*value) & types) == 0) continue;
    if (value->is_array() || value->is_object()) {
      options.push_back(text_.constant(*value));
    } else if (value->is_string() && is_bare) {
      if (bare.can_spell(*value->as_string())) texts.push_back(bare.spell(*value->as_string()));
    } else {
      texts.push_back(json::dump(*value, json::Style::kCompact));
    }
  }
  options.push_back(rules_.one_of(std::move(texts)));
  return rules_.choice(options);
}

Result<ExprId> SchemaCompiler::in_common(ExprId a,
                                         ExprId b,
                                         const std::string& pointer,
                                         std::string_view keyword) {
  int64_t work = 0;
  const std::optional<ExprId> both = intersection(rules_, a, b, work);
  TRY(spend(work, pointer, keyword));
  if (both) return *both;
  return keyword_error(
      pointer, keyword, "takes too many states together with the other keywords; lower the counts");
}

Result<ExprId> SchemaCompiler::number(const Restrictions& all, TypeSet types) {
  const bool is_integer = (types & types::kFraction) == 0;
  if (!all.lower && !all.upper && all.divisors.empty()) {
    return is_integer ? text_.any_integer() : text_.any_number();
  }
  DecimalRange ends = {.lower = all.lower,
                       .upper = all.upper,
                       .max_fraction_digits = is_integer ? 0 : kMaxFractionDigits};
  size_t& num_fraction = ends.max_fraction_digits;
  for (const auto& divisor : all.divisors) {
    num_fraction = std::min(num_fraction, divisor.first.fraction.size());
  }
  if (!all.divisors.empty() && num_fraction > 0) {
    // So few digits that readers with doubles find the same multiples.
    Decimal most = {.integer = "1" + std::string(kMaxFractionDigits - num_fraction, '0')};
    DecimalBound upper = {.value = most, .is_exclusive = true};
    most.is_negative = true;
    DecimalBound lower = {.value = std::move(most), .is_exclusive = true};
    ends.lower = tighter_lower(std::move(ends.lower), std::move(lower));
    ends.upper = tighter_upper(std::move(ends.upper), std::move(upper));
  }
  ExprId text = decimal_in_range(rules_, ends);
  for (const auto& [divisor, pointer] : all.divisors) {
    const Result<ExprId> multiples = multiples_of(rules_, divisor);
    if (!multiples.ok()) return keyword_error(pointer, "multipleOf", multiples.error().message);
    TRY_ASSIGN(text, in_common(text, *multiples, pointer, "multipleOf"));
  }
  return rules_.shared(text);
}

Result<ExprId> SchemaCompiler::text_form(const TextKeyword& form,
                                         const TextAlphabet& alphabet) const {
  const bool is_pattern = form.keyword == std::string_view("pattern");
  const auto pattern = is_pattern ? std::optional(form.text) : pattern_of_format(form.text);
  if (!pattern) {
    return keyword_error(form.pointer,
                         form.keyword,
                         fmt::format("\"{}\" is not supported; expected one of {}",
                                     escape_for_display(form.text),
                                     supported_formats()));
  }
  const RegexUse use = is_pattern ? RegexUse::kSearch : RegexUse::kWhole;
  Result<ExprId> compiled = compile_regex(*pattern, use, alphabet);
  if (compiled.ok()) return compiled;
  return keyword_error(form.pointer, form.keyword, compiled.error().message);
}

Result<ExprId> SchemaCompiler::string(const Restrictions& all, Spelling spelling) {
  const TextAlphabet alphabet(rules_, spelling);
  const bool is_json = spelling == Spelling::kJson;
  const bool is_counted = all.min_length > 0 || all.max_length;
  if (all.forms.empty() && !is_counted) {
    return is_json ? text_.any_string() : alphabet.any_text();
  }
  if (all.max_length && all.min_length > *all.max_length) return rules_.never();
  std::optional<ExprId> text;
  for (const TextKeyword& form : all.forms) {
    TRY_ASSIGN(ExprId own, text_form(form, alphabet));
    if (text) {
      TRY_ASSIGN(own, in_common(*text, own, form.pointer, form.keyword));
    }
    text = own;
  }
  if (is_counted) {
    const ExprId character = is_json ? text_.character() : rules_.shared(alphabet.any_character());
    ExprId counted = rules_.repeat(character, all.min_length, all.max_length);
    if (text) {
      const TextKeyword& form = all.forms.front();
      TRY_ASSIGN(counted, in_common(*text, counted, form.pointer, form.keyword));
    }
    text = counted;
  }
  return is_json ? text_.quoted(*text) : *text;
}

// --- objects

Result<ExprId> SchemaCompiler::compile_property(const Property& property, const Wanted& wanted) {
  TRY_ASSIGN(const ExprId body, value(property.schemas, wanted));
  TRY(compile_pending());
  return body;
}

// What may stand behind the listed members; never() when nothing may.
Result<ExprId> SchemaCompiler::other_members(const Restrictions& all) {
  if (!all.additional) return rules_.never();
  for (const Property& property : all.properties) {
    if (property.name.size() <= kMaxExcludedNameBytes) continue;
    return schema_error(
        all.additional->front().pointer,
        fmt::format("is supported beside names of at most {} bytes", kMaxExcludedNameBytes));
  }
  TRY_ASSIGN(const ExprId content, value(*all.additional, {}));
  return rules_.shared(rules_.sequence({key_other_than(all.properties), text_.colon(), content}));
}

// From the last property to the first: `rest` is what may follow once a member is written, `first`
// what may stand while none is.
Result<ExprId> SchemaCompiler::object(const Restrictions& all) {
  if (!all.has_members) return text_.any_object();
  TRY_ASSIGN(const ExprId other, other_members(all));
  ExprId rest =
      rules_.shared(rules_.repeat(rules_.sequence({text_.comma(), other}), 0, std::nullopt));
  ExprId first = rules_.optional(rules_.sequence({other, rest}));
  for (auto property = all.properties.rbegin(); property != all.properties.rend(); ++property) {
    TRY_ASSIGN(const ExprId content, value(property->schemas, {}));
    const ExprId key = rules_.bytes(json::dump(json::Value(property->name), json::Style::kCompact));
    const ExprId member = rules_.shared(rules_.sequence({key, text_.colon(), content}));
    const ExprId here = rules_.sequence({member, rest});
    const ExprId behind = rules_.sequence({text_.comma(), member, rest});
    const bool is_required = property->is_required;
    first = rules_.shared(is_required ? here : rules_.choice({here, first}));
    rest = rules_.shared(is_required ? behind : rules_.choice({behind, rest}));
  }
  return text_.bracketed('{', first, '}');
}

// Names without escapes, so that a name has one spelling.
ExprId SchemaCompiler::key_other_than(const std::vector<Property>& properties) {
  const CodePointSet plain = CodePointSet({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}).complement();
  std::vector<std::u32string> names;
  names.reserve(properties.size());
  for (const Property& property : properties) names.push_back(decode(property.name));
  std::sort(names.begin(), names.end());
  return text_.quoted(none_of(rules_, plain, names, 0));
}

Result<std::vector<Property>> SchemaCompiler::root_properties() {
  if (!root_.is_object()) return schema_error("", "expected the schema of an object");
  TRY_ASSIGN(const auto parts, take_apart({{.schema = &root_, .pointer = {}}}));
  if (!parts) return schema_error("", "permits no value");
  for (const OpenPart& part : *parts) {
    if (!part.has_any_of && !part.has_one_of) continue;
    return keyword_error(part.part.pointer,
                         part.has_any_of ? "anyOf" : "oneOf",
                         "is not supported for a tool's parameters");
  }
  TRY_ASSIGN(Restrictions all, restrictions(*parts));
  if (all.values || (all.types & types::kObject) == 0) {
    return keyword_error("", "type", "expected \"object\" for a tool's parameters");
  }
  return std::move(all.properties);
}

// --- arrays

// The values that are permitted when they are listed, or few by their type; nullopt otherwise.
Result<std::optional<std::vector<const json::Value*>>> SchemaCompiler::few_values(
    const Conjunction& schemas) {
  static const json::Value false_value(false);
  static const json::Value true_value(true);
  static const json::Value null_value;
  using Values = std::vector<const json::Value*>;
  TRY_ASSIGN(const auto parts, take_apart(schemas));
  if (!parts) return std::optional(Values());
  const bool is_open = std::any_of(parts->begin(), parts->end(), [](const OpenPart& part) {
    return part.has_any_of || part.has_one_of;
  });
  if (is_open) return std::optional<Values>();
  TRY_ASSIGN(const Restrictions all, restrictions(*parts));
  const bool is_small = (all.types & ~(types::kBoolean | types::kNull)) == 0;
  if (!all.values && !is_small) return std::optional<Values>();
  Values values;
  std::unordered_set<std::string> seen;
  for (const json::Value* value :
       all.values.value_or(Values{&false_value, &true_value, &null_value})) {
    if ((type_of(*value) & all.types) == 0) continue;
    if (seen.insert(canonical_text(*value)).second) values.push_back(value);
  }
  return std::optional(std::move(values));
}

Result<ExprId> SchemaCompiler::unique_array(const Restrictions& all) {
  const std::string& pointer = *all.unique_pointer;
  constexpr std::string_view kKeyword = "uniqueItems";
  const auto refusal = [&] {
    return keyword_error(
        pointer, kKeyword, "is supported where items are constants, booleans or null");
  };
  if (!all.prefix.empty() || !all.items) return refusal();
  TRY_ASSIGN(const auto values, few_values(*all.items));
  if (!values) return refusal();
  std::vector<ExprId> texts;
  for (const json::Value* value : *values) texts.push_back(text_.constant(*value));
  const auto num_values = static_cast<int32_t>(texts.size());
  const int32_t most = std::min(all.max_items.value_or(num_values), num_values);
  const auto list = distinct_items(rules_, texts, text_.comma(), all.min_items, most);
  if (!list) return keyword_error(pointer, kKeyword, "too many values and counts");
  return text_.bracketed('[', *list, ']');
}

Result<ExprId> SchemaCompiler::array(const Restrictions& all) {
  if (!all.has_item_keyword) return text_.any_array();
  if (all.max_items && *all.max_items < all.min_items) return rules_.never();
  if (all.unique_pointer && all.max_items.value_or(2) > 1) return unique_array(all);
  // What may follow the prefix. Behind a prefix, items that are not described are not generated.
  ExprId item = rules_.never();
  if (all.items) {
    TRY_ASSIGN(item, value(*all.items, {}));
  }
  item = rules_.shared(item);
  const auto left = [&](int32_t total, int32_t written) { return std::max(total - written, 0); };
  const auto repeat_item = [&](int32_t written) {
    std::optional<int32_t> most;
    if (all.max_items) most = left(*all.max_items, written);
    return rules_.repeat(
        rules_.sequence({text_.comma(), item}), left(all.min_items, written), most);
  };
  if (all.prefix.empty()) {
    if (all.max_items == 0) return text_.bracketed('[', rules_.empty(), ']');
    const ExprId list = rules_.sequence({item, repeat_item(1)});
    return text_.bracketed('[', all.min_items == 0 ? rules_.optional(list) : list, ']');
  }
  // From the last item of the prefix to the first.
  ExprId rest = repeat_item(static_cast<int32_t>(all.prefix.size()));
  for (auto i = static_cast<int32_t>(all.prefix.size()) - 1; i >= 0; --i) {
    TRY_ASSIGN(const ExprId own, value(all.prefix[static_cast<size_t>(i)], {}));
    const ExprId separator = i == 0 ? rules_.empty() : text_.comma();
    const ExprId more = all.max_items && i >= *all.max_items
                            ? rules_.never()
                            : rules_.sequence({separator, own, rest});
    rest = i >= all.min_items ? rules_.optional(more) : more;
  }
  return text_.bracketed('[', rest, ']');
}

}  // namespace nibble::grammar

#include "grammar/restrictions.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/utf8.h"

namespace nibble::grammar {
namespace {

// A keyword, member or item costs about as much as so many edges of an automaton.
constexpr int64_t kWorkPerMember = 8;

bool is_false(const json::Value* schema) {
  return schema != nullptr && schema->as_bool() != nullptr && !*schema->as_bool();
}

Result<std::optional<Decimal>> read_decimal(const json::Object& schema,
                                            const char* keyword,
                                            const std::string& pointer) {
  const json::Value* value = schema.find(keyword);
  if (value == nullptr) return std::optional<Decimal>();
  if (!value->is_number()) return keyword_error(pointer, keyword, "expected a number");
  Result<Decimal> decimal = Decimal::parse(json::dump(*value, json::Style::kCompact));
  if (!decimal.ok()) return keyword_error(pointer, keyword, decimal.error().message);
  return std::optional<Decimal>(*std::move(decimal));
}

class RestrictionReader final {
 public:
  RestrictionReader(std::span<const SchemaPart> parts, int64_t& work, int64_t max_work)
      : parts_(parts), work_(work), max_work_(max_work) {}

  Result<Restrictions> read() {
    TRY(read_types());
    for (const SchemaPart& part : parts_) {
      const json::Object& schema = *part.schema->as_object();
      TRY(spend(part, schema.size()));
      TRY(read_values(schema, part.pointer));
      TRY(read_number(schema, part.pointer));
      TRY(read_string(schema, part.pointer));
    }
    TRY(check_constants());
    TRY(read_members());
    TRY(read_items());
    return std::move(result_);
  }

 private:
  Result<void> spend(const SchemaPart& part, size_t work) {
    work_ += (static_cast<int64_t>(work) + 1) * kWorkPerMember;
    if (work_ <= max_work_) return {};
    return schema_error(part.pointer, "too many combinations of schemas; write them in one place");
  }

  Result<void> read_types() {
    std::optional<TypeSet> declared;
    TypeSet inferred = 0;
    result_.is_free = true;
    for (const SchemaPart& part : parts_) {
      const json::Object& schema = *part.schema->as_object();
      TRY_ASSIGN(const std::optional<TypeSet> own, declared_types(schema, part.pointer));
      if (own) declared = declared.value_or(types::kAll) & *own;
      for (const json::Member& member : schema) inferred |= types_of_keyword(member.key);
      result_.is_free &=
          other_keyword(schema, {"type", "$ref", "allOf", "anyOf", "oneOf"}) == nullptr;
    }
    result_.types = declared.value_or(inferred == 0 ? types::kAll : inferred);
    return {};
  }

  // Values that every schema with `const` or `enum` lists.
  Result<void> read_values(const json::Object& schema, const std::string& pointer) {
    TRY_ASSIGN(auto own, read_constants(schema, pointer));
    if (!own) return {};
    work_ += static_cast<int64_t>(own->size());
    if (!result_.values) {
      result_.values = std::move(own);
      return {};
    }
    std::unordered_set<std::string> texts;
    for (const json::Value* value : *own) texts.insert(canonical_text(*value));
    std::erase_if(*result_.values, [&](const json::Value* value) {
      return !texts.contains(canonical_text(*value));
    });
    return {};
  }

  Result<void> check_constants() const {
    if (!result_.values) return {};
    for (const SchemaPart& part : parts_) {
      const json::Member* other = other_keyword(
          *part.schema->as_object(), {"type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf"});
      if (other == nullptr) continue;
      return keyword_error(
          part.pointer, other->key, "is not supported beside \"enum\" or \"const\"");
    }
    return {};
  }

  Result<void> read_number(const json::Object& schema, const std::string& pointer) {
    struct Bound {
      const char* keyword;
      bool is_lower;
      bool is_exclusive;
    };
    for (const Bound& bound : {Bound{"minimum", true, false},
                               Bound{"exclusiveMinimum", true, true},
                               Bound{"maximum", false, false},
                               Bound{"exclusiveMaximum", false, true}}) {
      TRY_ASSIGN(std::optional<Decimal> value, read_decimal(schema, bound.keyword, pointer));
      if (!value) continue;
      DecimalBound own = {.value = *std::move(value), .is_exclusive = bound.is_exclusive};
      if (bound.is_lower) {
        result_.lower = tighter_lower(std::move(result_.lower), std::move(own));
      } else {
        result_.upper = tighter_upper(std::move(result_.upper), std::move(own));
      }
    }
    TRY_ASSIGN(std::optional<Decimal> divisor, read_decimal(schema, "multipleOf", pointer));
    if (divisor) result_.divisors.emplace_back(*std::move(divisor), pointer);
    return {};
  }

  Result<void> read_string(const json::Object& schema, const std::string& pointer) {
    TRY_ASSIGN(const std::optional<int32_t> min, read_count(schema, "minLength", pointer));
    TRY_ASSIGN(const std::optional<int32_t> max, read_count(schema, "maxLength", pointer));
    result_.min_length = std::max(result_.min_length, min.value_or(0));
    if (max) result_.max_length = std::min(result_.max_length.value_or(*max), *max);
    for (const char* keyword : {"pattern", "format"}) {
      const json::Value* value = schema.find(keyword);
      if (value == nullptr) continue;
      const std::string* text = value->as_string();
      if (text == nullptr) return keyword_error(pointer, keyword, "expected a string");
      const bool is_known =
          std::any_of(result_.forms.begin(), result_.forms.end(), [&](const TextKeyword& form) {
            return form.keyword == std::string_view(keyword) && form.text == *text;
          });
      if (!is_known) {
        result_.forms.push_back({.keyword = keyword, .text = *text, .pointer = pointer});
      }
    }
    return {};
  }

  // --- members of objects

  Result<void> read_members() {
    for (const SchemaPart& part : parts_) {
      const json::Object& schema = *part.schema->as_object();
      TRY(read_listed(schema, part.pointer));
      const json::Value* additional = schema.find("additionalProperties");
      if (additional == nullptr) continue;
      result_.has_members = true;
      if (!is_closed_ && !result_.additional) result_.additional.emplace();
      is_closed_ |= is_false(additional);
      if (is_closed_) {
        result_.additional.reset();
      } else {
        result_.additional->push_back(additional_part(part));
      }
    }
    for (const SchemaPart& part : parts_) TRY(read_required(part));
    for (const SchemaPart& part : parts_) TRY(restrict_unlisted(part));
    return {};
  }

  static SchemaPart additional_part(const SchemaPart& part) {
    return {.schema = part.schema->find("additionalProperties"),
            .pointer = child(part.pointer, "additionalProperties")};
  }

  Property& property(const std::string& name) {
    const auto [known, is_new] = places_.try_emplace(name, result_.properties.size());
    if (is_new) result_.properties.push_back({.name = name, .schemas = {}, .is_required = false});
    return result_.properties[known->second];
  }

  Result<void> read_listed(const json::Object& schema, const std::string& pointer) {
    const json::Value* listed = schema.find("properties");
    if (listed == nullptr) return {};
    if (!listed->is_object()) {
      return keyword_error(pointer, "properties", "expected an object of schemas");
    }
    const std::string inside = child(pointer, "properties");
    TRY(spend({.schema = listed, .pointer = inside}, listed->as_object()->size()));
    for (const json::Member& member : *listed->as_object()) {
      result_.has_members = true;
      property(member.key)
          .schemas.push_back({.schema = &member.value, .pointer = child(inside, member.key)});
    }
    return {};
  }

  Result<void> read_required(const SchemaPart& part) {
    const json::Value* required = part.schema->find("required");
    if (required == nullptr) return {};
    const auto fault = [&] {
      return keyword_error(part.pointer, "required", "expected an array of names");
    };
    if (!required->is_array()) return fault();
    TRY(spend(part, required->as_array()->size()));
    for (const json::Value& item : *required->as_array()) {
      const std::string* name = item.as_string();
      if (name == nullptr) return fault();
      result_.has_members = true;
      if (is_closed_ && !places_.contains(*name)) {
        return keyword_error(
            part.pointer,
            "required",
            fmt::format("\"{}\" is not among the properties", escape_for_display(*name)));
      }
      property(*name).is_required = true;
    }
    return {};
  }

  // Members that a schema does not list are what its additionalProperties says.
  Result<void> restrict_unlisted(const SchemaPart& part) {
    if (part.schema->find("additionalProperties") == nullptr) return {};
    const json::Value* listed = part.schema->find("properties");
    TRY(spend(part, result_.properties.size()));
    for (Property& property : result_.properties) {
      if (listed != nullptr && listed->find(property.name) != nullptr) continue;
      property.schemas.push_back(additional_part(part));
    }
    return {};
  }

  // --- items of arrays

  Result<void> read_items() {
    size_t num_prefix = 0;
    for (const SchemaPart& part : parts_) {
      const json::Object& schema = *part.schema->as_object();
      TRY(read_item_counts(schema, part.pointer));
      const json::Value* items = schema.find("items");
      if (items != nullptr && items->is_array()) {
        return keyword_error(part.pointer, "items", "expected one schema; use \"prefixItems\"");
      }
      if (items != nullptr) {
        if (!result_.items) result_.items.emplace();
        result_.items->push_back({.schema = items, .pointer = child(part.pointer, "items")});
      }
      const json::Value* prefix = schema.find("prefixItems");
      if (prefix == nullptr) continue;
      if (!prefix->is_array()) {
        return keyword_error(part.pointer, "prefixItems", "expected an array of schemas");
      }
      num_prefix = std::max(num_prefix, prefix->as_array()->size());
    }
    result_.has_item_keyword |= result_.items.has_value() || num_prefix > 0;
    result_.prefix.resize(num_prefix);
    for (const SchemaPart& part : parts_) TRY(read_prefix(part));
    if (num_prefix == 0 && !result_.items) result_.items.emplace();
    return {};
  }

  Result<void> read_item_counts(const json::Object& schema, const std::string& pointer) {
    TRY_ASSIGN(const std::optional<int32_t> min, read_count(schema, "minItems", pointer));
    TRY_ASSIGN(const std::optional<int32_t> max, read_count(schema, "maxItems", pointer));
    result_.min_items = std::max(result_.min_items, min.value_or(0));
    if (max) result_.max_items = std::min(result_.max_items.value_or(*max), *max);
    result_.has_item_keyword |= min || max;
    const json::Value* unique = schema.find("uniqueItems");
    if (unique == nullptr) return {};
    if (unique->as_bool() == nullptr) {
      return keyword_error(pointer, "uniqueItems", "expected a boolean");
    }
    if (*unique->as_bool()) result_.unique_pointer = pointer;
    result_.has_item_keyword |= *unique->as_bool();
    return {};
  }

  Result<void> read_prefix(const SchemaPart& part) {
    static const json::Array none;
    const json::Value* listed = part.schema->find("prefixItems");
    const json::Array& own = listed == nullptr ? none : *listed->as_array();
    const json::Value* items = part.schema->find("items");
    TRY(spend(part, result_.prefix.size()));
    for (size_t i = 0; i < result_.prefix.size(); ++i) {
      if (i < own.size()) {
        result_.prefix[i].push_back(
            {.schema = &own[i], .pointer = child(child(part.pointer, "prefixItems"), i)});
      } else if (items != nullptr) {
        result_.prefix[i].push_back({.schema = items, .pointer = child(part.pointer, "items")});
      }
    }
    return {};
  }

  const std::span<const SchemaPart> parts_;
  int64_t& work_;
  const int64_t max_work_;
  Restrictions result_;
  std::unordered_map<std::string, size_t> places_;  // name -> its place in `properties`
  bool is_closed_ = false;                          // some schema forbids other members
};

}  // namespace

Result<Restrictions> read_restrictions(std::span<const SchemaPart> parts,
                                       int64_t& work,
                                       int64_t max_work) {
  return RestrictionReader(parts, work, max_work).read();
}

}  // namespace nibble::grammar

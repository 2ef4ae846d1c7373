// What several schemas say together about one value, keyword by keyword: the tighter of two bounds,
// the values that all of them list, every pattern. Combinations ($ref, allOf, anyOf, oneOf) are
// taken apart before.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "grammar/decimal_range.h"
#include "grammar/schema_source.h"

namespace nibble::grammar {

// A keyword with a text, and where it stands.
struct TextKeyword {
  const char* keyword = "";  // "pattern" or "format"
  std::string text;
  std::string pointer;  // of its schema
};

// A member of an object.
struct Property {
  std::string name;
  Conjunction schemas;
  bool is_required = false;
};

struct Restrictions {
  // What `type` says everywhere, else what the keywords are about, else all.
  TypeSet types = types::kAll;
  bool is_free = false;  // nothing but `type` restricts
  std::optional<std::vector<const json::Value*>> values;

  std::optional<DecimalBound> lower;
  std::optional<DecimalBound> upper;
  std::vector<std::pair<Decimal, std::string>> divisors;  // with the pointer of its schema

  int32_t min_length = 0;
  std::optional<int32_t> max_length;
  std::vector<TextKeyword> forms;

  bool has_members = false;  // any keyword about the members of an object
  std::vector<Property> properties;
  std::optional<Conjunction> additional;  // nullopt: no other members

  std::vector<Conjunction> prefix;   // of the first items
  std::optional<Conjunction> items;  // nullopt: none behind the prefix
  bool has_item_keyword = false;
  int32_t min_items = 0;
  std::optional<int32_t> max_items;
  std::optional<std::string> unique_pointer;  // of a schema that wants its items unique
};

// `parts` are objects whose keywords are all known. `work` grows by the keywords, members and items
// that were read; above `max_work` the result is an error.
Result<Restrictions> read_restrictions(std::span<const SchemaPart> parts,
                                       int64_t& work,
                                       int64_t max_work);

}  // namespace nibble::grammar

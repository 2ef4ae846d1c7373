// A JSON Schema as it is written: its keywords, places in it, and the errors that name both.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace nibble::grammar {

// Bits of the types of JSON values; integers are numbers, too.
using TypeSet = uint32_t;
namespace types {
inline constexpr TypeSet kNull = 1;
inline constexpr TypeSet kBoolean = 2;
inline constexpr TypeSet kInteger = 4;
inline constexpr TypeSet kFraction = 8;  // numbers that are not integers
inline constexpr TypeSet kNumber = kInteger | kFraction;
inline constexpr TypeSet kString = 16;
inline constexpr TypeSet kArray = 32;
inline constexpr TypeSet kObject = 64;
inline constexpr TypeSet kAll = 127;
}  // namespace types

// A schema and its place in the whole, as a JSON pointer (RFC 6901).
struct SchemaPart {
  const json::Value* schema = nullptr;
  std::string pointer;
};
// Schemas that hold together; none: any value.
using Conjunction = std::vector<SchemaPart>;

std::string child(const std::string& pointer, std::string_view key);
std::string child(const std::string& pointer, size_t index);

Error schema_error(const std::string& pointer, std::string_view text);
// `pointer` is the schema's that has the keyword.
Error keyword_error(const std::string& pointer, std::string_view keyword, std::string_view text);

// kInvalidArgument for the first keyword that the subset lacks.
Result<void> check_keywords(const json::Object& schema, const std::string& pointer);
// The first keyword that restricts values, besides those given; nullptr when there is none.
const json::Member* other_keyword(const json::Object& schema,
                                  std::initializer_list<std::string_view> known);

// What `type` says; nullopt without it.
Result<std::optional<TypeSet>> declared_types(const json::Object& schema,
                                              const std::string& pointer);
// The types whose values the keyword restricts; 0: any, or no such keyword.
TypeSet types_of_keyword(std::string_view keyword);
// Whether `value` may be the type named by a schema's `type`; integers by value: 1.0 is one.
TypeSet type_of(const json::Value& value);

// The place that a `$ref` names.
Result<SchemaPart> resolve(const json::Value& root,
                           const json::Value& reference,
                           const std::string& pointer);

// A count from 0 to 100,000; nullopt without the keyword.
Result<std::optional<int32_t>> read_count(const json::Object& schema,
                                          std::string_view keyword,
                                          const std::string& pointer);
// The values that `const` and `enum` permit; nullopt without them.
Result<std::optional<std::vector<const json::Value*>>> read_constants(const json::Object& schema,
                                                                      const std::string& pointer);

// Equal exactly for values that JSON Schema calls equal: 1 and 1.0, members in any order.
std::string canonical_text(const json::Value& value);

}  // namespace nibble::grammar

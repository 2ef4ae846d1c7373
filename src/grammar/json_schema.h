// JSON Schema to expressions. Every generated text is valid against the schema; of the valid texts
// those are generated that docs/structured-output.md declares: members in the order of
// `properties`, finite white space, no extra members unless the schema says so. What the subset
// lacks is refused by name, never ignored.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "grammar/decimal_range.h"
#include "grammar/expression.h"
#include "grammar/json_text.h"

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

class SchemaCompiler final {
 public:
  // `root` is what "#" refers to; it and the text must outlive the compiler.
  SchemaCompiler(JsonText& text, const json::Value& root);

  // How a value is asked for: which types of it, and strings in quotes or as bare parameters.
  struct Wanted {
    TypeSet types = types::kAll;
    Spelling spelling = Spelling::kJson;
  };
  // never() when no value fits. kInvalidArgument names the keyword and its JSON pointer.
  Result<ExprId> compile(const Wanted& wanted);

  // A member of the root object, as the parameters of a tool are.
  struct Property {
    std::string name;
    const json::Value* schema = nullptr;  // null: any value
    std::string pointer;
    bool is_required = false;
  };
  // Those of the root, through its $ref if it is one. kInvalidArgument when the root is not the
  // schema of an object whose members are listed.
  Result<std::vector<Property>> root_properties();
  Result<ExprId> compile_property(const Property& property, const Wanted& wanted);

 private:
  struct Place {
    std::string pointer;
    Wanted wanted;
  };
  struct PendingReference {
    RuleId rule;
    const json::Value* schema;
    Place place;
  };

  Result<ExprId> value(const json::Value& schema, const Place& place);
  Result<void> compile_references();
  Result<ExprId> reference(const json::Object& schema, const Place& place);
  Result<std::pair<const json::Value*, std::string>> resolve(const json::Value& reference,
                                                             const std::string& pointer) const;
  Result<ExprId> alternatives(const json::Object& schema,
                              std::string_view keyword,
                              const Place& place);
  Result<const json::Value*> with_siblings(const json::Object& schema,
                                           std::string_view keyword,
                                           const json::Value& branch,
                                           const std::string& pointer);
  Result<void> check_one_of(const json::Array& branches, const std::string& pointer) const;
  Result<ExprId> constants(const json::Object& schema, const Place& place);
  Result<ExprId> by_type(const json::Object& schema, TypeSet wanted, const Place& place);
  Result<ExprId> number(const json::Object& schema, TypeSet wanted, const Place& place);
  Result<std::optional<DecimalBound>> bound(const json::Object& schema,
                                            const char* keyword,
                                            bool is_exclusive,
                                            const Place& place) const;
  Result<ExprId> string(const json::Object& schema, const Place& place);
  Result<ExprId> object(const json::Object& schema, const Place& place);
  Result<std::vector<Property>> properties(const json::Object& schema, const Place& place) const;
  Result<ExprId> members(const std::vector<Property>& properties,
                         const json::Value* additional,
                         const Place& place);
  Result<ExprId> array(const json::Object& schema, const Place& place);
  Result<ExprId> any(TypeSet wanted, const Place& place);
  ExprId key_other_than(const std::vector<Property>& properties);

  JsonText& text_;
  Rules& rules_;
  const json::Value& root_;
  std::deque<json::Value> made_;  // schemas that came of merging siblings into branches
  std::map<std::tuple<const json::Value*, TypeSet, Spelling>, RuleId> references_;
  std::vector<PendingReference> pending_;
};

// Whether `value` may be the type named by a schema's `type`; integers by value: 1.0 is one.
TypeSet type_of(const json::Value& value);

}  // namespace nibble::grammar

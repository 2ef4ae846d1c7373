// JSON Schema to expressions. Every generated text is valid against the schema; of the valid texts
// those are generated that docs/structured-output.md declares: members in the order of
// `properties`, finite white space, no extra members unless the schema says so. What the subset
// lacks is refused by name, never ignored.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "grammar/expression.h"
#include "grammar/json_text.h"
#include "grammar/restrictions.h"
#include "grammar/schema_source.h"

namespace nibble::grammar {

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

  // Members of the root object, as the parameters of a tool are. kInvalidArgument when the root is
  // not the schema of an object whose members are listed.
  Result<std::vector<Property>> root_properties();
  Result<ExprId> compile_property(const Property& property, const Wanted& wanted);

  // Keywords, members, items, states and edges that were looked at so far; at most about
  // kMaxWork, then compiling fails.
  int64_t work() const { return work_; }
  static constexpr int64_t kMaxWork = 4'000'000;

 private:
  // A schema of a conjunction whose $ref and allOf are taken apart; of anyOf and oneOf perhaps.
  struct OpenPart {
    SchemaPart part;
    bool has_any_of = false;  // still to be taken apart
    bool has_one_of = false;
  };
  struct PendingRule {
    RuleId rule;
    Conjunction schemas;
    Wanted wanted;
  };
  using RuleKey = std::tuple<std::vector<const json::Value*>, TypeSet, Spelling>;

  Result<ExprId> value(Conjunction schemas, const Wanted& wanted);
  ExprId later(Conjunction schemas, const Wanted& wanted);
  Result<void> compile_pending();
  Result<ExprId> combined(const Conjunction& schemas, const Wanted& wanted);
  Result<std::optional<std::vector<OpenPart>>> take_apart(Conjunction schemas);
  Result<ExprId> alternatives(std::vector<OpenPart> parts, const Wanted& wanted);
  Result<Restrictions> restrictions(const std::vector<OpenPart>& parts);
  Result<std::vector<TypeSet>> check_one_of(const json::Array& branches,
                                            const std::string& pointer);
  Result<void> spend(int64_t work, const std::string& pointer, std::string_view keyword);

  Result<ExprId> by_type(const Restrictions& all, const Wanted& wanted);
  ExprId constants(const std::vector<const json::Value*>& values, TypeSet types, Spelling spelling);
  Result<ExprId> number(const Restrictions& all, TypeSet types);
  Result<ExprId> string(const Restrictions& all, Spelling spelling);
  Result<ExprId> text_form(const TextKeyword& form, const TextAlphabet& alphabet) const;
  Result<ExprId> in_common(ExprId a,
                           ExprId b,
                           const std::string& pointer,
                           std::string_view keyword);
  Result<ExprId> object(const Restrictions& all);
  Result<ExprId> other_members(const Restrictions& all);
  Result<ExprId> array(const Restrictions& all);
  Result<ExprId> unique_array(const Restrictions& all);
  Result<std::optional<std::vector<const json::Value*>>> few_values(const Conjunction& schemas);
  ExprId key_other_than(const std::vector<Property>& properties);

  JsonText& text_;
  Rules& rules_;
  const json::Value& root_;
  int64_t work_ = 0;
  std::map<RuleKey, RuleId> known_rules_;
  std::vector<PendingRule> pending_;
};

}  // namespace nibble::grammar

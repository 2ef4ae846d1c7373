#include "grammar/markup.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/json_schema.h"
#include "grammar/text_alphabet.h"
#include "text/chat_protocol.h"

namespace nibble::grammar {
namespace {

// Calls of one answer; more are a model that repeats itself.
constexpr int32_t kMaxCalls = 32;

// Text of the chat format, in which the DSML mark is a token of its own.
class Markup final {
 public:
  Markup(Rules& rules, int32_t dsml_token) : rules_(rules), dsml_token_(dsml_token) {}

  ExprId operator()(std::string_view text) const {
    std::vector<ExprId> parts;
    while (true) {
      const size_t at = text.find(text::kDsmlToken);
      parts.push_back(rules_.bytes(text.substr(0, at)));
      if (at == std::string_view::npos) return rules_.sequence(parts);
      parts.push_back(rules_.control_token(dsml_token_));
      text.remove_prefix(at + text::kDsmlToken.size());
    }
  }

 private:
  Rules& rules_;
  int32_t dsml_token_;
};

class ToolCallWriter final {
 public:
  ToolCallWriter(JsonText& text, const Markup& markup)
      : text_(text), rules_(text.rules()), markup_(markup) {}

  // The schema as it is.
  Result<ExprId> strict_call(const ToolDefinition& tool) {
    if (!tool.parameters) return call(tool.name, rules_.empty(), true);
    SchemaCompiler compiler(text_, *tool.parameters);
    TRY_ASSIGN(const auto properties, compiler.root_properties());
    std::vector<ExprId> parts;
    bool all_optional = true;
    for (const Property& property : properties) {
      TRY_ASSIGN(const ExprId bare,
                 compiler.compile_property(
                     property, {.types = types::kString, .spelling = Spelling::kParameter}));
      TRY_ASSIGN(const ExprId json,
                 compiler.compile_property(property, {.types = types::kAll & ~types::kString}));
      const ExprId written = parameter(property.name, bare, json);
      parts.push_back(property.is_required ? written : rules_.optional(written));
      all_optional &= !property.is_required;
    }
    return call(tool.name, rules_.sequence(parts), all_optional);
  }

  // The schema's members with any values.
  ExprId loose_call(const ToolDefinition& tool) {
    std::vector<ExprId> parts;
    const TextAlphabet bare(rules_, Spelling::kParameter);
    const ExprId text = rules_.shared(bare.any_text());
    const ExprId json = rules_.choice(
        {text_.any_object(), text_.any_array(), text_.any_number(), text_.boolean(), text_.null()});
    const json::Value* properties = tool.parameters ? tool.parameters->find("properties") : nullptr;
    if (properties != nullptr && properties->is_object()) {
      for (const json::Member& member : *properties->as_object()) {
        parts.push_back(rules_.optional(parameter(member.key, text, json)));
      }
    }
    return call(tool.name, rules_.sequence(parts), true);
  }

 private:
  // <parameter name="KEY" string="true|false">VALUE</parameter> and the end of its line. A name
  // that could be taken for markup cannot be written.
  ExprId parameter(const std::string& name, ExprId bare, ExprId json) const {
    const bool is_plain =
        name.find('"') == std::string::npos && name.find(text::kDsmlToken) == std::string::npos;
    if (!is_plain) return rules_.never();
    const ExprId value = rules_.choice({rules_.sequence({rules_.bytes("true\">"), bare}),
                                        rules_.sequence({rules_.bytes("false\">"), json})});
    return rules_.sequence({markup_(text::kParameterOpen),
                            rules_.bytes(name),
                            rules_.bytes(text::kParameterKind),
                            value,
                            markup_(text::kParameterClose),
                            rules_.bytes("\n")});
  }

  // Without parameters an empty line stands between the tags.
  ExprId call(const std::string& name, ExprId parameters, bool may_be_without) const {
    const ExprId inside =
        may_be_without ? rules_.choice({rules_.bytes("\n"), parameters}) : parameters;
    return rules_.sequence({markup_(text::kInvokeOpen),
                            rules_.bytes(name),
                            rules_.bytes("\">\n"),
                            inside,
                            markup_(text::kInvokeClose)});
  }

  JsonText& text_;
  Rules& rules_;
  const Markup& markup_;
};

}  // namespace

Result<ExprId> reasoning(Rules& rules, const Vocabulary& vocabulary) {
  const auto end = vocabulary.control_token(text::kThinkClose);
  if (!end) return unsupported("constraints behind reasoning: the tokenizer has no </think> token");
  std::vector<ExprId> others;
  for (const int32_t token : vocabulary.control_tokens()) {
    if (token != *end) others.push_back(rules.control_token(token));
  }
  // The tag in other tokens would end the reasoning for its reader, too.
  return rules.sequence(
      {text_without(rules, U"</think>", rules.choice(others)), rules.control_token(*end)});
}

ExprId text_without_markup(Rules& rules) { return text_without(rules, U"<\uff5c", rules.never()); }

Result<ExprId> tool_calls(JsonText& text, const ToolUse& use, const Vocabulary& vocabulary) {
  Rules& rules = text.rules();
  const auto dsml = vocabulary.control_token(text::kDsmlToken);
  if (!dsml) return unsupported("tool calls: the tokenizer has no token for their markup");
  const Markup markup(rules, *dsml);
  ToolCallWriter writer(text, markup);
  std::vector<ExprId> options;
  for (size_t i = 0; i < use.tools.size(); ++i) {
    const ToolDefinition& tool = use.tools[i];
    Result<ExprId> call = writer.strict_call(tool);
    if (!call.ok() && tool.is_strict) {
      Error error = std::move(call).error();
      error.param = tool.param;
      return error;
    }
    options.push_back(call.ok() ? *call : writer.loose_call(tool));
  }
  const ExprId call = rules.shared(rules.sequence({rules.choice(options), rules.bytes("\n")}));
  const ExprId calls = rules.repeat(call, 1, use.allows_parallel ? kMaxCalls : 1);
  return rules.sequence({rules.optional(rules.bytes("\n\n")),
                         markup(text::kToolCallsOpen),
                         rules.bytes("\n"),
                         calls,
                         markup(text::kToolCallsClose)});
}

}  // namespace nibble::grammar

#include "server/chat_request.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble::server {
namespace {

using text::Effort;
using text::Role;
using text::ThinkingMode;

ServedModel served_model() {
  return {.names = {"tiny"}, .vocab_size = 4096, .max_context = 4096, .default_sampling = {}};
}

ChatRequest parse(std::string_view body, const ServedModel& model = served_model()) {
  Result<ChatRequest> request = parse_chat_request(json::parse(body).value(), model);
  EXPECT_TRUE(request.ok()) << request.error().message;
  return std::move(request).value();
}

ChatRequest parse_with(std::string_view extra, const ServedModel& model = served_model()) {
  return parse(R"({"messages": [{"role": "user", "content": "Hello"}])" + std::string(extra) + "}",
               model);
}

ChatRequest parse_messages(std::string_view messages) {
  return parse("{\"messages\": " + std::string(messages) + "}");
}

TEST(ChatRequest, DefaultsToTheOperatorsWishes) {
  ServedModel model = served_model();
  model.default_sampling = {.temperature = 0.6F, .top_p = 0.95F, .stop = {"END"}};
  model.default_thinking = ThinkingMode::kThinking;
  const ChatRequest silent = parse_with("", model);
  EXPECT_EQ(silent.fields.sampling.temperature, 0.6F);
  EXPECT_EQ(silent.fields.sampling.top_p, 0.95F);
  EXPECT_EQ(silent.fields.sampling.stop, std::vector<std::string>{"END"});
  EXPECT_EQ(silent.render.thinking, ThinkingMode::kThinking);
  EXPECT_FALSE(silent.fields.shapes_sampling);
  const ChatRequest loud =
      parse_with(R"(, "temperature": 1, "stop": "x", "reasoning_effort": "none")", model);
  EXPECT_EQ(loud.fields.sampling.temperature, 1.0F);
  EXPECT_EQ(loud.fields.sampling.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(loud.render.thinking, ThinkingMode::kChat);
  EXPECT_TRUE(loud.fields.shapes_sampling);
}

TEST(ChatRequest, MapsEffortsToModesAndPrefixes) {
  EXPECT_EQ(parse_with("").render.thinking, ThinkingMode::kChat);
  EXPECT_EQ(parse_with(R"(, "reasoning_effort": "none")").render.thinking, ThinkingMode::kChat);
  const std::vector<std::pair<const char*, Effort>> efforts = {{"minimal", Effort::kLow},
                                                               {"low", Effort::kLow},
                                                               {"medium", Effort::kHigh},
                                                               {"high", Effort::kHigh},
                                                               {"xhigh", Effort::kMax},
                                                               {"max", Effort::kMax}};
  for (const auto& [name, effort] : efforts) {
    const ChatRequest request = parse_with(R"(, "reasoning_effort": ")" + std::string(name) + "\"");
    EXPECT_EQ(request.render.thinking, ThinkingMode::kThinking) << name;
    EXPECT_EQ(request.render.effort, effort) << name;
  }
}

TEST(ChatRequest, ThinksWithoutAPrefixUnlessAskedForMore) {
  ServedModel model = served_model();
  constexpr const char* kOn = R"(, "thinking": {"type": "enabled"})";
  EXPECT_EQ(parse_with(kOn, model).render.effort, Effort::kHigh);
  model.generation = text::Generation::kJuly;
  EXPECT_EQ(parse_with(kOn, model).render.effort, Effort::kLow);
}

TEST(ChatRequest, LetsTheVendorsSwitchOutrankTheOthers) {
  const auto mode = [](std::string_view extra) { return parse_with(extra).render.thinking; };
  EXPECT_EQ(mode(R"(, "chat_template_kwargs": {"thinking": true})"), ThinkingMode::kThinking);
  EXPECT_EQ(mode(R"(, "chat_template_kwargs": {"enable_thinking": true})"),
            ThinkingMode::kThinking);
  EXPECT_EQ(mode(R"(, "chat_template_kwargs": {"enable_thinking": true, "thinking": false})"),
            ThinkingMode::kChat);
  EXPECT_EQ(
      mode(R"(, "chat_template_kwargs": {"thinking": true}, "thinking": {"type": "disabled"})"),
      ThinkingMode::kChat);
  EXPECT_EQ(mode(R"(, "reasoning_effort": "high", "thinking": {"type": "disabled"})"),
            ThinkingMode::kChat);
  EXPECT_EQ(mode(R"(, "reasoning_effort": "none", "thinking": {"type": "enabled"})"),
            ThinkingMode::kThinking);
}

TEST(ChatRequest, ReadsEveryRole) {
  const ChatRequest request = parse_messages(R"([
      {"role": "developer", "content": "d"}, {"role": "user", "content": "u"},
      {"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}},
      {"role": "function", "name": "f", "content": "r"},
      {"role": "latest_reminder", "content": "l"}, {"role": "user", "content": "v"}])");
  ASSERT_EQ(request.messages.size(), 6U);
  EXPECT_EQ(request.messages[0].role, Role::kSystem);
  EXPECT_EQ(request.messages[2].tool_calls.front().name, "f");
  EXPECT_EQ(request.messages[3].role, Role::kTool);
  EXPECT_EQ(request.messages[4].role, Role::kLatestReminder);
}

TEST(ChatRequest, JoinsTextPartsButKeepsThoseOfTools) {
  const ChatRequest request = parse_messages(R"([
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "tool", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]}])");
  EXPECT_EQ(request.messages[0].content, "ab");
  EXPECT_TRUE(request.messages[0].parts.empty());
  EXPECT_EQ(request.messages[1].parts.size(), 2U);
}

TEST(ChatRequest, TakesReasoningUnderBothNames) {
  for (const char* name : {"reasoning_content", "reasoning"}) {
    const ChatRequest request = parse_messages(
        R"([{"role": "user", "content": "u"}, {"role": "assistant", "content": "a", ")" +
        std::string(name) + R"(": "because"}, {"role": "user", "content": "v"}])");
    EXPECT_EQ(request.messages[1].reasoning_content, "because") << name;
  }
}

TEST(ChatRequest, TakesArgumentsAsTextAndAsObject) {
  for (const char* arguments : {R"("{\"a\": 1}")", R"({"a": 1})"}) {
    const ChatRequest request = parse_messages(
        R"([{"role": "user", "content": "u"}, {"role": "assistant", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": )" +
        std::string(arguments) + R"(}}]}, {"role": "tool", "tool_call_id": "c", "content": "r"}])");
    EXPECT_EQ(request.messages[1].tool_calls.front().arguments, R"({"a": 1})");
    EXPECT_EQ(request.messages[2].tool_call_id, "c");
  }
}

TEST(ChatRequest, OffersToolsInTheFirstSystemMessage) {
  constexpr const char* kTools =
      R"(, "tools": [{"type": "function", "function": {"name": "f", "strict": true}}])";
  const ChatRequest made = parse_with(kTools);
  ASSERT_EQ(made.messages.size(), 2U);
  EXPECT_EQ(made.messages[0].role, Role::kSystem);
  EXPECT_EQ(made.messages[0].tools.size(), 1U);
  EXPECT_TRUE(made.parse_tool_calls);
  const ChatRequest hidden = parse_with(std::string(kTools) + R"(, "tool_choice": "none")");
  EXPECT_EQ(hidden.messages.size(), 1U);
  EXPECT_FALSE(hidden.parse_tool_calls);
}

TEST(ChatRequest, ContinuesAnAssistantMessageWithoutReasoningAgain) {
  const ChatRequest request = parse(
      R"({"messages": [{"role": "user", "content": "u"},
          {"role": "assistant", "content": "The", "prefix": true}], "reasoning_effort": "high"})");
  EXPECT_TRUE(request.messages.back().without_eos);
  EXPECT_FALSE(request.starts_in_reasoning());
}

TEST(ChatRequest, ContinuesTheFinalMessageWhenToldTo) {
  constexpr const char* kOpen =
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "The"}])";
  const ChatRequest request = parse(
      std::string(kOpen) + R"(, "continue_final_message": true, "add_generation_prompt": false})");
  EXPECT_TRUE(request.messages.back().without_eos);
  for (const char* extra : {R"(, "continue_final_message": true, "add_generation_prompt": true})",
                            R"(, "add_generation_prompt": false})"}) {
    const auto refused =
        parse_chat_request(json::parse(std::string(kOpen) + extra).value(), served_model());
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().param, "add_generation_prompt");
  }
}

TEST(ChatRequest, ReadsWhatTheSchedulerGoesBy) {
  const ChatRequest request = parse_with(R"(, "priority": 5, "cache_salt": "tenant")");
  EXPECT_EQ(request.fields.priority, 5);
  EXPECT_EQ(request.fields.cache_salt, "tenant");
}

TEST(ChatRequest, GivesAnEndingWithoutAUserAnEmptyTurn) {
  const ChatRequest request = parse_messages(R"([{"role": "system", "content": "s"}])");
  EXPECT_EQ(request.messages.back().role, Role::kUser);
}

TEST(ChatRequest, ShowsASchemaThatIsNotStrict) {
  const ChatRequest request = parse_with(
      R"(, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": 1}}})");
  ASSERT_TRUE(request.messages.front().response_format.has_value());
  EXPECT_EQ(json::dump(*request.messages.front().response_format, json::Style::kCompact),
            R"({"a":1})");
}

TEST(ChatRequest, CountsUnknownFieldsAtBothLevels) {
  EXPECT_EQ(parse_with(R"(, "x": 1, "chat_template_kwargs": {"y": 1, "thinking": true})")
                .num_unknown_fields,
            2);
}

}  // namespace
}  // namespace nibble::server

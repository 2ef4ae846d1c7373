#include "server/assistant_turn.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/server_testing.h"
#include "text/chat_protocol.h"

namespace nibble::server {
namespace {

using Kind = TurnPiece::Kind;

constexpr std::string_view kTwoCallsAndText =
    "Let me look.\n\n<\uff5cDSML\uff5ctool_calls>\n<\uff5cDSML\uff5cinvoke name=\"a\">\n"
    "<\uff5cDSML\uff5cparameter name=\"x\" string=\"true\">1 > 0</\uff5cDSML\uff5cparameter>\n"
    "</\uff5cDSML\uff5cinvoke>\n<\uff5cDSML\uff5cinvoke name=\"b\">\n"
    "<\uff5cDSML\uff5cparameter name=\"y\" string=\"false\">[2]</\uff5cDSML\uff5cparameter>\n"
    "</\uff5cDSML\uff5cinvoke>\n</\uff5cDSML\uff5ctool_calls>And done.";

AssistantTurn new_turn(text::ThinkingMode thinking = text::ThinkingMode::kChat) {
  return AssistantTurn({.thinking = thinking}, "call_", tiny_tokenizer());
}

engine::Output ending(engine::FinishReason reason = engine::FinishReason::kStop) {
  engine::Output output;
  output.finish.emplace();
  output.finish->reason = reason;
  return output;
}

std::vector<TurnPiece> say(AssistantTurn& turn, std::string_view text, size_t piece_bytes) {
  std::vector<TurnPiece> pieces;
  for (size_t at = 0; at < text.size(); at += piece_bytes) {
    engine::Output output;
    output.text = text.substr(at, piece_bytes);
    for (TurnPiece& piece : turn.add(std::move(output))) pieces.push_back(std::move(piece));
  }
  for (TurnPiece& piece : turn.add(ending())) pieces.push_back(std::move(piece));
  return pieces;
}

// "kind:text" of neighbours joined, so that the splits do not show.
std::string script(const std::vector<TurnPiece>& pieces) {
  constexpr const char* kNames[] = {"reasoning", "content", "begin", "arguments"};
  std::string shown;
  const TurnPiece* last = nullptr;
  for (const TurnPiece& piece : pieces) {
    const bool continues = last != nullptr && last->kind == piece.kind && last->call == piece.call;
    if (!continues) shown += std::string("|") + kNames[static_cast<size_t>(piece.kind)] + ":";
    shown += piece.text;
    last = &piece;
  }
  return shown;
}

// Field report B42: a start marker that was split over chunks leaked fragments.
TEST(AssistantTurn, B42KeepsTheOrderOfTheTextInEverySplit) {
  for (const size_t bytes :
       {size_t{1}, size_t{2}, size_t{7}, size_t{40}, kTwoCallsAndText.size()}) {
    AssistantTurn turn = new_turn();
    EXPECT_EQ(script(say(turn, kTwoCallsAndText, bytes)),
              "|content:Let me look.|begin:a|arguments:{\"x\": \"1 > 0\"}"
              "|begin:b|arguments:{\"y\": [2]}|content:And done.")
        << bytes;
    EXPECT_EQ(turn.end(), TurnEnd::kToolCalls);
    EXPECT_EQ(turn.call_ids().size(), 2U);
    EXPECT_NE(turn.call_ids()[0], turn.call_ids()[1]);
  }
}

TEST(AssistantTurn, TellsReasoningFromContent) {
  AssistantTurn turn = new_turn(text::ThinkingMode::kThinking);
  EXPECT_EQ(script(say(turn, "Why?</think>Because.", 1000)), "|reasoning:Why?|content:Because.");
  EXPECT_FALSE(turn.ended_in_reasoning());
  AssistantTurn silent = new_turn(text::ThinkingMode::kThinking);
  EXPECT_EQ(script(say(silent, "Why?", 1000)), "|reasoning:Why?");
  EXPECT_TRUE(silent.ended_in_reasoning());
}

TEST(AssistantTurn, EndsACutCallWithLength) {
  const size_t cut = kTwoCallsAndText.find("[2]");
  AssistantTurn turn = new_turn();
  say(turn, kTwoCallsAndText.substr(0, cut), 1000);
  EXPECT_EQ(turn.end(), TurnEnd::kLength);
}

TEST(AssistantTurn, CountsReasoningTokensUpToTheClosingTag) {
  AssistantTurn turn = new_turn(text::ThinkingMode::kThinking);
  engine::Output output;
  output.token_ids = {40, 41, *tiny_tokenizer().added_token(text::kThinkClose), 42};
  turn.add(std::move(output));
  EXPECT_EQ(turn.usage().reasoning_tokens, 2);
  EXPECT_EQ(turn.usage().completion_tokens, 4);
}

}  // namespace
}  // namespace nibble::server

// The literal texts of the DeepSeek-V4 chat format, shared by the encoder and its inverse. They are
// part of what the model was trained on: every byte counts. U+FF5C is the full-width bar, U+2581
// the word mark.
#pragma once

#include <string_view>

namespace nibble::text {

inline constexpr std::string_view kBeginOfSentence = "<\uff5cbegin\u2581of\u2581sentence\uff5c>";
inline constexpr std::string_view kEndOfSentence = "<\uff5cend\u2581of\u2581sentence\uff5c>";
inline constexpr std::string_view kUserTag = "<\uff5cUser\uff5c>";
inline constexpr std::string_view kAssistantTag = "<\uff5cAssistant\uff5c>";
inline constexpr std::string_view kLatestReminderTag = "<\uff5clatest_reminder\uff5c>";
inline constexpr std::string_view kThinkOpen = "<think>";
inline constexpr std::string_view kThinkClose = "</think>";
inline constexpr std::string_view kToolResultOpen = "<tool_result>";
inline constexpr std::string_view kToolResultClose = "</tool_result>";

// The tool-call block. The bars around "DSML" are one special token of their own, without the angle
// brackets.
inline constexpr std::string_view kDsmlToken = "\uff5cDSML\uff5c";
inline constexpr std::string_view kToolCallsOpen = "<\uff5cDSML\uff5ctool_calls>";
inline constexpr std::string_view kToolCallsClose = "</\uff5cDSML\uff5ctool_calls>";
inline constexpr std::string_view kInvokeOpen = "<\uff5cDSML\uff5cinvoke name=\"";  // then NAME">
inline constexpr std::string_view kInvokeClose = "</\uff5cDSML\uff5cinvoke>";
inline constexpr std::string_view kParameterOpen =
    "<\uff5cDSML\uff5cparameter name=\"";                           // then KEY
inline constexpr std::string_view kParameterKind = "\" string=\"";  // then true">
inline constexpr std::string_view kParameterClose = "</\uff5cDSML\uff5cparameter>";

// The tools block of a system or developer message: head, one JSON line per tool, tail.
inline constexpr std::string_view kToolsHead =
    "## Tools\n"
    "\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by "
    "writing a \"<\uff5cDSML\uff5ctool_calls>\" block like the following:\n"
    "\n"
    "<\uff5cDSML\uff5ctool_calls>\n"
    "<\uff5cDSML\uff5cinvoke name=\"$TOOL_NAME\">\n"
    "<\uff5cDSML\uff5cparameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE"
    "</\uff5cDSML\uff5cparameter>\n"
    "...\n"
    "</\uff5cDSML\uff5cinvoke>\n"
    "<\uff5cDSML\uff5cinvoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</\uff5cDSML\uff5cinvoke>\n"
    "</\uff5cDSML\uff5ctool_calls>\n"
    "\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types "
    "(numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\n"
    "\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning "
    "inside <think>...</think> BEFORE any tool calls or final response.\n"
    "\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n"
    "\n"
    "### Available Tool Schemas\n"
    "\n";
inline constexpr std::string_view kToolsTail =
    "\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";

inline constexpr std::string_view kResponseFormatHead =
    "## Response Format:\n"
    "\n"
    "You MUST strictly adhere to the following schema to reply:\n";

// Effort prefixes. Which effort they stand for depends on the checkpoint generation.
inline constexpr std::string_view kAbsoluteMaximumEffort =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, "
    "edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, "
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
    "unchecked.\n"
    "\n";
inline constexpr std::string_view kBeyondMaximumEffort =
    "Reasoning Effort: Beyond maximum \u2014 exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "
    "exhaustively decompose the problem into its most fundamental components, trace every causal "
    "chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles "
    "and are certain that no assumption remains unchecked and no error remains undiscovered.\n"
    "\n";

}  // namespace nibble::text

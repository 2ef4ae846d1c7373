#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat_protocol.h"

namespace nibble::text {
namespace {

#define D "\uff5cDSML\uff5c"
#define OPEN "<" D "tool_calls>\n"
#define CLOSE "\n</" D "tool_calls>"
#define INVOKE(name) "<" D "invoke name=\"" name "\">\n"
#define INVOKE_END "\n</" D "invoke>"
#define STRING(key, value) \
  "<" D "parameter name=\"" key "\" string=\"true\">" value "</" D "parameter>"
#define JSON(key, value) \
  "<" D "parameter name=\"" key "\" string=\"false\">" value "</" D "parameter>"

constexpr OutputParser::Options kChatMode{.thinking = ThinkingMode::kChat};
constexpr OutputParser::Options kThink{.thinking = ThinkingMode::kThinking};

constexpr const char* kEndNames[] = {"text", "calls", "cut", "reasoning"};

// A parser fed in pieces; checks what holds for every delta.
class Feed final {
 public:
  explicit Feed(const OutputParser::Options& options) : parser_(options) {}

  OutputDelta push(std::string_view piece) { return add(parser_.push(piece)); }
  OutputDelta finish() { return add(parser_.finish()); }

  // One line: R[reasoning] C[content] name(arguments) ... end
  std::string summary() const {
    const Message& message = parser_.message();
    std::string out;
    if (message.reasoning_content) out += "R[" + *message.reasoning_content + "] ";
    out += "C[" + message.content + "] ";
    for (const ToolCall& call : message.tool_calls) out += call.name + "(" + call.arguments + ") ";
    out += kEndNames[static_cast<size_t>(parser_.end())];
    return parser_.has_unfinished_call() ? out + " unfinished" : out;
  }

  const OutputParser& parser() const { return parser_; }

 private:
  OutputDelta add(OutputDelta delta) {
    reasoning_ += delta.reasoning;
    content_ += delta.content;
    for (const auto& call : delta.tool_calls) {
      const auto index = static_cast<size_t>(call.index);
      EXPECT_LE(index, calls_.size());
      EXPECT_EQ(call.name.empty(), index < calls_.size());
      if (index == calls_.size()) calls_.push_back({.id = {}, .name = call.name, .arguments = {}});
      EXPECT_EQ(index + 1, calls_.size());
      calls_.back().arguments += call.arguments;
    }
    expect_sum_is_message();
    return delta;
  }

  void expect_sum_is_message() const {
    const Message& message = parser_.message();
    EXPECT_EQ(message.role, Role::kAssistant);
    EXPECT_EQ(message.reasoning_content.value_or(""), reasoning_);
    EXPECT_EQ(message.content, content_);
    ASSERT_EQ(message.tool_calls.size(), calls_.size());
    for (size_t i = 0; i < calls_.size(); ++i) {
      EXPECT_EQ(message.tool_calls[i].name, calls_[i].name);
      EXPECT_EQ(message.tool_calls[i].arguments, calls_[i].arguments);
    }
  }

  OutputParser parser_;
  std::string reasoning_;
  std::string content_;
  std::vector<ToolCall> calls_;
};

// Cuts are sorted byte offsets.
std::string parse_in_pieces(std::string_view text,
                            const std::vector<size_t>& cuts,
                            const OutputParser::Options& options) {
  Feed feed(options);
  size_t begin = 0;
  for (const size_t cut : cuts) {
    feed.push(text.substr(begin, cut - begin));
    begin = cut;
  }
  feed.push(text.substr(begin));
  feed.finish();
  return feed.summary();
}

std::vector<size_t> every_byte(size_t size) {
  std::vector<size_t> cuts;
  for (size_t i = 1; i < size; ++i) cuts.push_back(i);
  return cuts;
}

// The summary, after checking that no split of the text gives another.
std::string parse(std::string_view text, const OutputParser::Options& options) {
  const std::string whole = parse_in_pieces(text, {}, options);
  EXPECT_EQ(parse_in_pieces(text, every_byte(text.size()), options), whole);
  for (size_t cut = 1; cut < text.size(); ++cut) {
    EXPECT_EQ(parse_in_pieces(text, {cut}, options), whole) << "cut at " << cut;
  }
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<size_t> cuts;
    for (size_t i = 1; i < text.size(); ++i) {
      if (random() % 8 == 0) cuts.push_back(i);
    }
    EXPECT_EQ(parse_in_pieces(text, cuts, options), whole);
  }
  return whole;
}

TEST(OutputParser, PassesPlainText) {
  EXPECT_EQ(parse("Hello <b>\n\nworld\n", kChatMode), "C[Hello <b>\n\nworld\n] text");
  EXPECT_EQ(parse("", kChatMode), "C[] text");
}

TEST(OutputParser, SplitsReasoningAtTheFirstClosingTag) {
  EXPECT_EQ(parse("I think </b></thin>.</think>Paris</think>.", kThink),
            "R[I think </b></thin>.] C[Paris</think>.] text");
  EXPECT_EQ(parse("</think>Paris", kThink), "R[] C[Paris] text");
}

TEST(OutputParser, SaysWhenTheTextEndedInReasoning) {
  EXPECT_EQ(parse("still thinking </thi", kThink), "R[still thinking </thi] C[] reasoning");
  EXPECT_EQ(parse("", kThink), "R[] C[] reasoning");
}

TEST(OutputParser, LeavesMarkupInsideReasoningAlone) {
  EXPECT_EQ(parse("use " OPEN "</think>ok", kThink), "R[use " OPEN "] C[ok] text");
}

TEST(OutputParser, DropsATagThatThePromptAlreadyHad) {
  EXPECT_EQ(parse("</think>Hello", kChatMode), "C[Hello] text");
  EXPECT_EQ(parse("</think></think>Hello", kChatMode), "C[</think>Hello] text");
  EXPECT_EQ(parse("<think>hm</think>Hello", kThink), "R[hm] C[Hello] text");
  EXPECT_EQ(parse("</thin", kChatMode), "C[</thin] text");
}

TEST(OutputParser, ParsesCallsAsTheEncoderWritesThem) {
  EXPECT_EQ(
      parse("Let me see.\n\n" OPEN INVOKE("get_weather") STRING("location", "Beijing") "\n" JSON(
                "days", "[1, 2]") INVOKE_END "\n" INVOKE("now") INVOKE_END CLOSE,
            kChatMode),
      "C[Let me see.] get_weather({\"location\": \"Beijing\", \"days\": [1, 2]}) now({}) calls");
}

TEST(OutputParser, ParsesBlocksWithAnyNumberOfNewlinesBefore) {
  const std::string block = OPEN INVOKE("f") INVOKE_END CLOSE;
  EXPECT_EQ(parse(block, kChatMode), "C[] f({}) calls");
  EXPECT_EQ(parse("a" + block, kChatMode), "C[a] f({}) calls");
  EXPECT_EQ(parse("a\n" + block, kChatMode), "C[a] f({}) calls");
  EXPECT_EQ(parse("a\n\n" + block, kChatMode), "C[a] f({}) calls");
  EXPECT_EQ(parse("a\n\n\n" + block, kChatMode), "C[a\n] f({}) calls");
  EXPECT_EQ(parse("</think>" + block, kThink), "R[] C[] f({}) calls");
  EXPECT_EQ(parse("</think>\n\n" + block, kThink), "R[] C[] f({}) calls");
}

TEST(OutputParser, AcceptsAnyWhiteSpaceBetweenElements) {
  EXPECT_EQ(parse("<" D "tool_calls>" INVOKE("f") "\r\n\t" STRING("a", " x\n") " " JSON(
                      "b", " 1\n") "</" D "invoke> \n </" D "tool_calls>\n",
                  kChatMode),
            "C[] f({\"a\": \" x\\n\", \"b\":  1\n}) calls");
}

TEST(OutputParser, QuotesStringValuesAndKeys) {
  EXPECT_EQ(parse(OPEN INVOKE("f") STRING("a\"b", "\"\\\n\t\x01\u00e9\U0001f642</b></" D "param>")
                      INVOKE_END CLOSE,
                  kChatMode),
            "C[] f({\"a\\\"b\": \"\\\"\\\\\\n\\t\\u0001\u00e9\U0001f642</b></" D
            "param>\"}) calls");
}

TEST(OutputParser, AcceptsOneObjectAsTheBodyOfAnInvoke) {
  EXPECT_EQ(parse(OPEN INVOKE("f") "{\"a\":[1,\"x\"]}" INVOKE_END CLOSE, kChatMode),
            "C[] f({\"a\":[1,\"x\"]}) calls");
  const std::string cut_object = OPEN INVOKE("f") "{\"a\":" INVOKE_END CLOSE;
  EXPECT_EQ(parse(cut_object, kChatMode), "C[" + cut_object + "] text");
}

TEST(OutputParser, KeepsTextAroundBlocksAndDropsSpaceBetweenThem) {
  const std::string block = OPEN INVOKE("f") INVOKE_END CLOSE;
  EXPECT_EQ(parse("Before\n\n" + block + "\n\nAfter <b>", kChatMode),
            "C[Before\n\nAfter <b>] f({}) calls");
  EXPECT_EQ(parse(block + "\n\n" + block + " \n", kChatMode), "C[] f({}) f({}) calls");
  EXPECT_EQ(parse("a\n\n" + block + "b\n\n" + block, kChatMode), "C[ab] f({}) f({}) calls");
}

// Field report: a start marker split over chunks leaked fragments.
TEST(OutputParser, LeaksNoFragmentOfAMarkerCutAnywhere) {
  const std::string text = "Before.\n\n" OPEN INVOKE("f") STRING("a", "1") INVOKE_END
      "\n" INVOKE("g") JSON("b", "2") INVOKE_END CLOSE "\n\nAfter.";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Feed feed(kChatMode);
    for (const OutputDelta& delta : {feed.push(std::string_view(text).substr(0, cut)),
                                     feed.push(std::string_view(text).substr(cut)),
                                     feed.finish()}) {
      EXPECT_EQ(delta.content.find_first_of("<>|\xef"), std::string::npos) << delta.content;
      for (const auto& call : delta.tool_calls) {
        EXPECT_EQ(call.arguments.find_first_of("<>|\xef"), std::string::npos) << call.arguments;
      }
    }
    EXPECT_EQ(feed.summary(), "C[Before.\n\nAfter.] f({\"a\": \"1\"}) g({\"b\": 2}) calls");
  }
}

TEST(OutputParser, EndsAsCutWhereverABlockIsCut) {
  const std::string before = "Before.\n\n";
  const std::string text = before + OPEN INVOKE("f") STRING("a", "1") INVOKE_END "\n" INVOKE("g")
                                        JSON("b", "2") INVOKE_END CLOSE;
  for (size_t size = 0; size < text.size(); ++size) {
    Feed feed(kChatMode);
    feed.push(std::string_view(text).substr(0, size));
    feed.finish();
    const bool is_in_block = size > before.size() + 1;  // a lone "<" may be text
    EXPECT_EQ(feed.parser().end(), is_in_block ? OutputEnd::kCutToolCall : OutputEnd::kText)
        << size;
    EXPECT_EQ(feed.parser().message().content, is_in_block ? "Before." : text.substr(0, size));
  }
}

TEST(OutputParser, KeepsTheCertainArgumentsOfACutCall) {
  EXPECT_EQ(
      parse(OPEN INVOKE("f") "<" D "parameter name=\"a\" string=\"true\">New Yo</" D, kChatMode),
      "C[] f({\"a\": \"New Yo) cut unfinished");
  EXPECT_EQ(parse(OPEN INVOKE("f") "<" D "parameter name=\"a\" string=\"false\">[1,", kChatMode),
            "C[] cut");
  EXPECT_EQ(parse(OPEN INVOKE("f") STRING("a", "x") INVOKE_END, kChatMode),
            "C[] f({\"a\": \"x\"}) cut");
}

TEST(OutputParser, StreamsStringValuesAsTheyGrow) {
  Feed feed(kChatMode);
  feed.push(OPEN INVOKE("write"));
  EXPECT_TRUE(feed.push("<" D "parameter name=\"text\" string=").empty());
  OutputDelta delta = feed.push("\"true\">Dear");
  ASSERT_EQ(delta.tool_calls.size(), 1U);
  EXPECT_EQ(delta.tool_calls[0].name, "write");
  EXPECT_EQ(delta.tool_calls[0].arguments, "{\"text\": \"Dear");
  delta = feed.push(" Anna,\n<");
  EXPECT_EQ(delta.tool_calls[0].name, "");
  EXPECT_EQ(delta.tool_calls[0].arguments, " Anna,\\n");
  delta = feed.push("b></" D "parameter>" INVOKE_END);
  EXPECT_EQ(delta.tool_calls[0].arguments, "<b>\"}");
}

TEST(OutputParser, HoldsBackUnfinishedCharacters) {
  for (const std::string& head :
       {std::string(),
        std::string(OPEN INVOKE("f") "<" D "parameter name=\"a\" string=\"true\">")}) {
    Feed feed(kChatMode);
    feed.push(head);
    EXPECT_TRUE(feed.push("\xf0\x9f\x99").empty());
    EXPECT_FALSE(feed.push("\x82").empty());
  }
}

void expect_given_back(const std::string& block) {
  EXPECT_EQ(parse("a\n\n" + block + "b", kChatMode), "C[a\n\n" + block + "b] text");
}

TEST(OutputParser, GivesMalformedBlocksBackAsContent) {
  expect_given_back(OPEN "stray" CLOSE);
  expect_given_back("<" D "tool_calls></" D "tool_calls>");
  expect_given_back(OPEN INVOKE("") INVOKE_END CLOSE);
  expect_given_back(OPEN INVOKE("f") "stray" INVOKE_END CLOSE);
  expect_given_back(OPEN INVOKE("f") JSON("a", "tru") INVOKE_END CLOSE);
  expect_given_back(OPEN INVOKE("f") JSON("a", "") INVOKE_END CLOSE);
  expect_given_back(OPEN INVOKE("f") JSON("a", "[1] 2") INVOKE_END CLOSE);
  expect_given_back(OPEN "<" D "invoke name=\"f>\n" STRING("a", "x") INVOKE_END CLOSE);
  expect_given_back(OPEN INVOKE("f") "<" D "parameter name=\"a\" string=\"maybe\">x</" D
                                     "parameter>" INVOKE_END CLOSE);
  expect_given_back(OPEN INVOKE("f") "<" D "parameter name=\"a>x</" D
                                     "parameter>\n" STRING("b", "y") INVOKE_END CLOSE);
  expect_given_back("<" D "tool_call>");
}

TEST(OutputParser, KeepsCompletedCallsBeforeAFault) {
  const std::string faulty = "\n" INVOKE("g") "stray" INVOKE_END CLOSE;
  EXPECT_EQ(parse("a\n\n" OPEN INVOKE("f") INVOKE_END + faulty, kChatMode),
            "C[a" + faulty + "] f({}) text");
}

TEST(OutputParser, NeverClosesAnAnnouncedCallThatTurnsOutMalformed) {
  const std::string duplicate =
      OPEN INVOKE("f") STRING("a", "1") "\n" STRING("a", "2") INVOKE_END CLOSE;
  EXPECT_EQ(parse(duplicate, kChatMode), "C[" + duplicate + "] f({\"a\": \"1\") text unfinished");
  const std::string bad_json =
      OPEN INVOKE("f") STRING("a", "1") "\n" JSON("b", "nul") INVOKE_END CLOSE;
  EXPECT_EQ(parse(bad_json, kChatMode), "C[" + bad_json + "] f({\"a\": \"1\") text unfinished");
  const std::string stray = OPEN INVOKE("f") STRING("a", "1") "stray" INVOKE_END CLOSE;
  EXPECT_EQ(parse(stray, kChatMode), "C[" + stray + "] f({\"a\": \"1\") text unfinished");
}

TEST(OutputParser, LeavesMarkupAloneWhenToolCallsAreOff) {
  const std::string block = "a\n\n" OPEN INVOKE("f") INVOKE_END CLOSE;
  EXPECT_EQ(
      parse("r</think>" + block, {.thinking = ThinkingMode::kThinking, .parse_tool_calls = false}),
      "R[r] C[" + block + "] text");
}

TEST(OutputParser, ReadsLongPartsInLinearTime) {
  // Quadratic rescanning or copying would take minutes for one byte at a time.
  const std::string value(1 << 20, 'x');
  for (const std::string& text :
       {OPEN INVOKE("f") "<" D "parameter name=\"a\" string=\"false\">\"" + value,
        OPEN INVOKE("f") "<" D "parameter name=\"a\" string=\"true\">" + value,
        OPEN INVOKE("f") "{\"a\":\"" + value,
        OPEN INVOKE("") + value,
        OPEN "<" D "invoke name=\"" + value,
        OPEN INVOKE("f") INVOKE_END CLOSE + std::string(1 << 20, '\n')}) {
    OutputParser parser(kChatMode);
    for (const char c : text) parser.push({&c, 1});
    parser.finish();
    EXPECT_EQ(parser.message().content.empty(), parser.end() != OutputEnd::kText);
  }
}

// Builds random messages from fragments that resemble markup without being it.
class RandomMessage final {
 public:
  explicit RandomMessage(uint32_t seed) : random_(seed) {}

  Message make(ThinkingMode mode) {
    Message message{.role = Role::kAssistant};
    if (mode == ThinkingMode::kThinking) message.reasoning_content = text(8);
    message.content = text(8);
    // Taken for a cut marker at the very end.
    if (message.content.ends_with("<\uff5c")) message.content += '.';
    for (size_t i = below(4); i > 0; --i) {
      message.tool_calls.push_back({.id = {}, .name = name(), .arguments = arguments()});
    }
    return message;
  }

 private:
  size_t below(size_t n) { return random_() % n; }

  std::string text(size_t max_fragments) {
    constexpr std::string_view kFragments[] = {"a",
                                               "b ",
                                               "\n",
                                               "\n\n",
                                               "<",
                                               "</",
                                               "\uff5c",
                                               "\"",
                                               "\\",
                                               "\u00e9",
                                               "\u4e2d",
                                               "\U0001f642",
                                               "{\"k\":",
                                               ">",
                                               "</th",
                                               "\x01",
                                               "\x7f",
                                               "&amp;"};
    std::string out;
    for (size_t i = below(max_fragments + 1); i > 0; --i)
      out += kFragments[below(std::size(kFragments))];
    return out;
  }

  std::string name() { return "f" + std::to_string(below(100)); }

  std::string arguments() {
    json::Object object;
    for (size_t i = below(4); i > 0; --i) object.insert(text(3), value(2));
    return json::dump(std::move(object), json::Style::kPython);
  }

  json::Value value(int depth) {
    switch (below(depth > 0 ? 7 : 5)) {
      case 0:
        return nullptr;
      case 1:
        return below(2) == 0;
      case 2:
        return static_cast<int64_t>(below(2000)) - 1000;
      case 3:
        return static_cast<double>(below(2000)) / 16.0;
      case 4:
        return text(6);
      case 5:
        return json::Array{value(depth - 1), value(depth - 1)};
      default: {
        json::Object object;
        object.insert(text(2), value(depth - 1));
        return object;
      }
    }
  }

  std::mt19937 random_;
};

// What the model would have generated for `message`: its rendering behind the prompt, without EOS.
std::string generated_text(const Message& message, ThinkingMode mode) {
  const Message question{.role = Role::kUser, .content = "q"};
  const RenderOptions options{.thinking = mode};
  const auto prompt = render_chat({question}, options);
  const auto whole = render_chat({question, message}, options);
  EXPECT_TRUE(prompt.ok() && whole.ok() && whole->text.starts_with(prompt->text));
  EXPECT_TRUE(whole->text.ends_with(kEndOfSentence));
  const size_t begin = prompt->text.size();
  return whole->text.substr(begin, whole->text.size() - kEndOfSentence.size() - begin);
}

TEST(OutputParser, RecoversWhatTheEncoderRendered) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    const ThinkingMode mode = seed % 2 == 0 ? ThinkingMode::kChat : ThinkingMode::kThinking;
    const Message message = RandomMessage(seed).make(mode);
    const std::string text = generated_text(message, mode);
    std::string expected;
    if (message.reasoning_content) expected += "R[" + *message.reasoning_content + "] ";
    expected += "C[" + message.content + "] ";
    for (const ToolCall& call : message.tool_calls)
      expected += call.name + "(" + call.arguments + ") ";
    expected += message.tool_calls.empty() ? "text" : "calls";
    const OutputParser::Options options{.thinking = mode};
    ASSERT_EQ(parse_in_pieces(text, {}, options), expected) << "seed " << seed;
    ASSERT_EQ(parse_in_pieces(text, every_byte(text.size()), options), expected) << "seed " << seed;
  }
}

TEST(OutputParser, GivesTheSameMessageForEverySplitOfDamagedText) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const ThinkingMode mode = seed % 2 == 0 ? ThinkingMode::kChat : ThinkingMode::kThinking;
    std::string text = generated_text(RandomMessage(seed).make(mode), mode);
    for (int damages = 0; damages < 2 && !text.empty(); ++damages) {
      text.erase(random() % text.size(), 1 + random() % 6);
    }
    const OutputParser::Options options{.thinking = mode};
    const std::string whole = parse_in_pieces(text, {}, options);
    ASSERT_EQ(parse_in_pieces(text, every_byte(text.size()), options), whole) << "seed " << seed;
    for (size_t cut = 1; cut < text.size(); cut += 7) {
      ASSERT_EQ(parse_in_pieces(text, {cut}, options), whole) << "seed " << seed << " cut " << cut;
    }
  }
}

}  // namespace
}  // namespace nibble::text

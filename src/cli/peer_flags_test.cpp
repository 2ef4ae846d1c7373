#include "cli/peer_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/file.h"
#include "cli/command_line.h"

namespace nibble::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> translated(std::vector<std::string> arguments) {
  const auto result = translate_peer_flags(arguments);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? result->arguments : std::vector<std::string>();
}

std::string fault(std::vector<std::string> arguments) {
  const auto result = translate_peer_flags(arguments);
  if (result.ok()) return "";
  EXPECT_EQ(result.error().code, Errc::kInvalidArgument);
  return result.error().message;
}

std::vector<std::string> spellings_of(const PeerFlag& row) {
  std::vector<std::string> spellings;
  std::string_view rest = row.spellings;
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(' '));
    spellings.emplace_back(one);
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
  }
  return spellings;
}

TEST(PeerFlags, LeavesOurOwnFlagsAlone) {
  EXPECT_THAT(translated({"dir", "--port", "0", "--think", "--max-context=64"}),
              ElementsAre("dir", "--port", "0", "--think", "--max-context=64"));
}

TEST(PeerFlags, TranslatesWhatActsHere) {
  EXPECT_THAT(translated({"--model-path", "dir"}), ElementsAre("dir"));
  EXPECT_THAT(translated({"--max-model-len", "4096"}), ElementsAre("--max-context", "4096"));
  EXPECT_THAT(translated({"--max_model_len=4096"}), ElementsAre("--max-context", "4096"));
  EXPECT_THAT(translated({"--load-format", "auto"}), ElementsAre("--load-format", "checkpoint"));
  EXPECT_THAT(translated({"--load-format", "dummy"}), ElementsAre("--load-format", "dummy"));
  EXPECT_THAT(translated({"--sampling-defaults", "openai"}),
              ElementsAre("--temperature", "1", "--top-p", "1"));
  EXPECT_THAT(translated({"--default-chat-template-kwargs", R"({"thinking": true})"}),
              ElementsAre("--think"));
  EXPECT_THAT(translated({"--log-requests"}), ElementsAre("--log-level", "info"));
  EXPECT_THAT(translated({"--kv-cache-dtype", "fp8_e4m3"}), ElementsAre("--kv-cache-dtype", "fp8"));
}

TEST(PeerFlags, DropsWhatIsSoAnyway) {
  EXPECT_THAT(translated({"--trust-remote-code", "--tp", "1", "-tp", "1", "dir"}),
              ElementsAre("dir"));
  const auto result = translate_peer_flags(std::vector<std::string>{"--tp", "1"});
  EXPECT_THAT(result->notes, ElementsAre(HasSubstr("--tp: nothing to do")));
}

TEST(PeerFlags, RefusesWhatCannotTakeEffect) {
  EXPECT_THAT(fault({"--tp", "2"}), HasSubstr("--tp 2 cannot take effect here: "));
  EXPECT_THAT(fault({"--kv-cache-dtype", "fp4_e2m1"}), HasSubstr("cannot take effect"));
  EXPECT_THAT(fault({"--kv-cache-dtype", "fp8_e5m2"}), HasSubstr("two mantissa bits"));
  EXPECT_THAT(fault({"--api-key", "secret"}), HasSubstr("--api-key-file"));
  EXPECT_THAT(fault({"--log-requests-level=3"}), HasSubstr("never logged"));
  EXPECT_THAT(fault({"--tp"}), HasSubstr("needs a value"));
}

TEST(PeerFlags, NeverPrintsAKey) {
  EXPECT_THAT(fault({"--api-key", "secret"}), ::testing::Not(HasSubstr("secret")));
  EXPECT_THAT(fault({"--admin-api-key=secret"}), ::testing::Not(HasSubstr("secret")));
}

TEST(PeerFlags, TellsTheSpellingsApart) {
  std::map<std::string, bool> takes_value;
  for (const PeerFlag& row : peer_flags()) {
    EXPECT_EQ(row.effect == PeerEffect::kApplied, !row.native.empty()) << row.spellings;
    EXPECT_TRUE(row.effect == PeerEffect::kApplied || !row.note.empty()) << row.spellings;
    for (const std::string& spelling : spellings_of(row)) {
      EXPECT_TRUE(spelling.starts_with('-')) << spelling;
      const auto [known, is_new] = takes_value.emplace(spelling, row.takes_value);
      EXPECT_TRUE(is_new || known->second == row.takes_value) << spelling;
    }
  }
}

// Every row does what it says, through the whole parser.
TEST(PeerFlags, TheParserDoesWhatTheTableSays) {
  for (const PeerFlag& row : peer_flags()) {
    const std::string value(row.values.empty() ? "3" : row.values.substr(0, row.values.find(' ')));
    if (row.native == "--load-format") continue;  // names, no number
    for (const std::string& spelling : spellings_of(row)) {
      std::vector<std::string> texts = {"nibble", "serve", spelling};
      if (row.takes_value) texts.push_back(value);
      if (row.native != "MODEL") texts.emplace_back("dir");
      std::vector<const char*> arguments;
      for (const std::string& text : texts) arguments.push_back(text.c_str());
      const auto line = parse_command_line(static_cast<int>(arguments.size()), arguments.data());
      EXPECT_EQ(line.ok(), row.effect != PeerEffect::kRefused)
          << spelling << (line.ok() ? "" : line.error().message);
      if (!line.ok()) continue;
      const auto& flags = std::get<ServeFlags>(line->command);
      EXPECT_EQ(flags.notes.size(), 1U) << spelling;
    }
  }
}

TEST(PeerFlags, TheDocumentationIsUpToDate) {
  const Path page = Path(NIBBLE_SOURCE_DIR) / "docs/serve-flags.md";
  EXPECT_EQ(read_file(page, 1 << 20).value(), peer_flags_markdown())
      << "run: nibble flags --markdown > docs/serve-flags.md";
}

TEST(PeerFlags, TheHelpListsEverySpelling) {
  const std::string help = peer_flags_help();
  for (const PeerFlag& row : peer_flags()) {
    for (const std::string& spelling : spellings_of(row)) EXPECT_THAT(help, HasSubstr(spelling));
  }
}

}  // namespace
}  // namespace nibble::cli

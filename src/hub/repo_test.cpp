#include "hub/repo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hub/errors.h"

namespace nibble::hub {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> paths(const std::vector<RepoFile>& files) {
  std::vector<std::string> names;
  for (const RepoFile& file : files) names.push_back(file.path);
  return names;
}

TEST(RepoId, ParsesNamesRevisionsAndUrls) {
  const RepoId plain = parse_repo_id("deepseek-ai/DeepSeek-V4-Flash").value();
  EXPECT_EQ(plain.name, "deepseek-ai/DeepSeek-V4-Flash");
  EXPECT_EQ(plain.revision, "main");
  EXPECT_EQ(plain.endpoint, "");
  EXPECT_EQ(parse_repo_id("org/name@refs/pr/7")->revision, "refs/pr/7");
  EXPECT_EQ(parse_repo_id("gpt2")->name, "gpt2");
  const RepoId page = parse_repo_id("https://hub.example/org/name/tree/refs%2Fpr%2F7/").value();
  EXPECT_EQ(page.name, "org/name");
  EXPECT_EQ(page.revision, "refs/pr/7");
  EXPECT_EQ(page.endpoint, "https://hub.example:443");
}

TEST(RepoId, RefusesWhatCouldBecomeAnotherPath) {
  for (const char* text : {"",
                           "/",
                           "org/",
                           "/name",
                           "a/b/c",
                           "../name",
                           "org/..",
                           "org/.name",
                           "org/a--b",
                           "org/na me",
                           "org/name@",
                           "org/name@../x",
                           "org/name@/x",
                           "org/name@a\\b",
                           "https://hub.example/",
                           "https://hub.example/a/b/c",
                           "ftp://h/a/b",
                           "https://hub.example/a/b/tree/..%2F..%2Fx",
                           "org/n\xC3\xA4me"}) {
    EXPECT_FALSE(parse_repo_id(text).ok()) << text;
  }
}

TEST(RepoId, IsToldFromPaths) {
  EXPECT_TRUE(looks_like_repo_id("org/name"));
  EXPECT_TRUE(looks_like_repo_id("https://hub.example/org/name"));
  EXPECT_FALSE(looks_like_repo_id("./org/name"));
  EXPECT_FALSE(looks_like_repo_id("/org/name"));
  EXPECT_FALSE(looks_like_repo_id("name"));
}

TEST(RepoPath, AcceptsPlainRelativePaths) {
  for (const char* path :
       {"a", "a/b/c.txt", ".gitattributes", "a..b", "...", "na me", "\xC3\xA9"}) {
    EXPECT_TRUE(check_repo_path(path).ok()) << path;
  }
}

TEST(RepoPath, RefusesWhatLeavesOrHides) {
  for (const std::string& path : {std::string(),
                                  std::string("/a"),
                                  std::string("a/"),
                                  std::string("a//b"),
                                  std::string("."),
                                  std::string(".."),
                                  std::string("a/../b"),
                                  std::string("a\\b"),
                                  std::string("a\nb"),
                                  std::string("a\0b", 3),
                                  std::string("a\x7F"),
                                  std::string("\xFF"),
                                  std::string(241, 'a'),
                                  "a/" + std::string(1100, 'b')}) {
    const Result<void> checked = check_repo_path(path);
    ASSERT_FALSE(checked.ok()) << path;
    EXPECT_EQ(checked.error().reason, kReasonIntegrity);
  }
}

TEST(Glob, MatchesLikeAShellButAcrossSlashes) {
  EXPECT_TRUE(matches_glob("*.json", "a/b/config.json"));
  EXPECT_TRUE(matches_glob("a/*", "a/b/c"));
  EXPECT_TRUE(matches_glob("a/", "a/b"));
  EXPECT_FALSE(matches_glob("a/", "ab"));
  EXPECT_TRUE(matches_glob("model-0000[1-3]-*", "model-00002-of-9"));
  EXPECT_FALSE(matches_glob("model-0000[!1-3]-*", "model-00002-of-9"));
  EXPECT_TRUE(matches_glob("?b*c", "abxxcxc"));
  EXPECT_TRUE(matches_glob("[]]", "]"));
  EXPECT_TRUE(matches_glob("[a", "[a"));
  EXPECT_FALSE(matches_glob("[a", "a"));
  EXPECT_TRUE(matches_glob("**", ""));
  EXPECT_FALSE(matches_glob("", "a"));
  EXPECT_FALSE(matches_glob("*.json", "config.jsonl"));
}

TEST(Glob, ManyStarsTakeNoExponentialTime) {
  std::string pattern;
  for (int32_t i = 0; i < 200; ++i) pattern += "*a";
  EXPECT_FALSE(matches_glob(pattern + "b", std::string(5000, 'a')));
}

TEST(Selection, LeavesOutOtherFormatsOfTheSameWeights) {
  const std::vector<RepoFile> files = {{"config.json", 1, ""},
                                       {"model.safetensors", 1, ""},
                                       {"pytorch_model.bin", 1, ""},
                                       {"m.gguf", 1, ""}};
  const Selection all = select_files(files, {});
  EXPECT_THAT(paths(all.files), ElementsAre("config.json", "model.safetensors"));
  EXPECT_THAT(paths(all.duplicates), ElementsAre("pytorch_model.bin", "m.gguf"));
  EXPECT_THAT(paths(select_files(files, {{"*.bin"}, {}}).files), ElementsAre("pytorch_model.bin"));
  EXPECT_THAT(paths(select_files(files, {{"*"}, {"*.json", "m*"}}).files),
              ElementsAre("pytorch_model.bin"));
  EXPECT_THAT(paths(select_files({files[0], files[2]}, {}).duplicates), IsEmpty());
}

}  // namespace
}  // namespace nibble::hub
